"""Run one phase of a workload on a module that follows the transformers call protocol."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

__all__ = ["StepOutput", "greedy", "step"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutput:
    """Logits of the last call [B, S, V], and the cache to give to the next call."""

    logits_BSV: torch.Tensor
    cache: Any


def step(model: nn.Module, ids_BS: torch.Tensor, cache: Any = None) -> StepOutput:
    """Call the model once with new tokens [B, S], after those that the cache holds."""
    with torch.no_grad():
        output = model(input_ids=ids_BS, use_cache=True, **{_cache_name(model): cache})
    kept = getattr(output, "past_key_values", None)
    return StepOutput(logits_BSV=output.logits, cache=kept if kept is not None else getattr(output, "cache", None))


def _cache_name(model: nn.Module) -> str:
    """Return what the forward calls its cache: transformers renamed `past_key_values` to `cache` in release 5.24."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def greedy(model: nn.Module, ids_BS: torch.Tensor, new_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Generate greedily. Returns token ids [B, new] and the logits [B, new, V] they were taken from, on the CPU."""
    output = step(model, ids_BS)
    rows, tokens = [], []
    for number in range(new_tokens):
        row_BV = output.logits_BSV[:, -1].float().cpu()
        rows.append(row_BV)
        # The choice is made on the CPU so that a device without argmax can generate too.
        token_B1 = row_BV.argmax(dim=-1, keepdim=True)
        tokens.append(token_B1)
        if number + 1 < new_tokens:
            output = step(model, token_B1.to(ids_BS.device), output.cache)
    return torch.cat(tokens, dim=1), torch.stack(rows, dim=1)
