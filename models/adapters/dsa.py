"""Sparse attention over latents (DSA): DeepSeek-V3.2, GLM-5 and what is made like them, in the absorbed form.

The attention keeps its own code: projections, rotation, cache, indexer and gates. What changes is what it hands to the
function that attends: latents as they are cached instead of keys and values of each head, and the indexer's choice instead
of a mask. That function multiplies the key's up-projection into the queries and the value's onto the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from day0.models.adapters._absorbed import attend
from day0.models.adapters._adapter import Adapter, Candidate, Refused, needs
from day0.models.adapters._dsa_probe import probe
from day0.models.adapters._rebind import calls_of, names_of, rebound
from day0.models.adapters.rope import FUNCTIONS, rotations

__all__ = ["ADAPTER"]

INTERFACES, EXPAND = "ALL_ATTENTION_FUNCTIONS", "expand_kv"
KNOWN = ("eager", "sdpa")


def candidates(module: nn.Module) -> Sequence[Candidate]:
    """One way to attend, behind each way to rotate; the last one rotates by their own function."""
    needs(module, "kv_b_proj", "indexer", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank", "config")
    _refuse(module)
    try:
        turned = rotations(module) if calls_of(module, *FUNCTIONS) else ()
    except Refused:
        turned = ()
    ways = (*turned, ("its own rotation", {}))
    return [Candidate(text=text, forward=_forward(module, ours)) for text, ours in ways]


def _refuse(module: Any) -> None:
    """Raise Refused for what the operators cannot express, or what cannot be read from outside."""
    if module.indexer is None and not getattr(module, "skip_topk", False):
        raise Refused("it has no indexer: it reads every key")
    missing = [name for name in (INTERFACES, EXPAND) if name not in names_of(module)]
    if missing:
        raise Refused(f"its forward does not name {' nor '.join(missing)}")
    projection, implementation = module.kv_b_proj, module.config._attn_implementation
    if type(projection) is not nn.Linear or projection.bias is not None or projection.weight.dtype.itemsize < 2:
        raise Refused(f"its kv_b_proj is {projection}: its weight is absorbed, so it has to be a plain matrix")
    if implementation not in KNOWN:
        raise Refused(f"it attends by {implementation}, which is no code of its own")


def _forward(module: nn.Module, turned: dict[str, Any]) -> Any:
    own = rebound(module, {**turned, INTERFACES: _Interfaces()})

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return own(_Seen(self), *args, **kwargs)

    return forward


class _Interfaces:
    """Stands where their table of attention functions stands."""

    def get_interface(self, name: str, default: Any) -> Any:
        return attend


class _Config:
    """A config with another attention function: for one that it does not know their code makes no mask."""

    def __init__(self, config: Any) -> None:
        self.config, self._attn_implementation = config, "day0"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.config, name)


class _Seen:
    """A module as its own forward sees it here: it expands nothing, and a choice stays one."""

    def __init__(self, module: Any) -> None:
        self.module, self.config = module, _Config(module.config)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def expand_kv(self, kv_nope: torch.Tensor, k_rot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return kv_nope, k_rot

    def build_attention_mask_from_topk(
        self, topk_indices: torch.Tensor, query_states: torch.Tensor, kv_length: int
    ) -> torch.Tensor:
        return topk_indices


ADAPTER = Adapter(
    title="sparse attention over latents: the chosen rows alone, up-projections absorbed",
    operators=("day0::sparse_mla_prefill", "day0::sparse_mla_decode", "day0::rope"),
    classes=tuple(
        f"transformers.models.*.{name}Attention"
        for name in (
            "DeepseekV32",
            "GlmMoeDsa",
            "Glm5NextText",
            "AXK2",
            "HYV4",
            "HYV4VL",
            "Dots3NoteText",
            "MistralLarge4Text",
        )
    ),
    candidates=candidates,
    probe=probe,
)
