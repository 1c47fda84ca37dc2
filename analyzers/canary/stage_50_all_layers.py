"""The whole model: logits of prefill and of decode with a cache, against the golden."""

from __future__ import annotations

import torch
from torch import nn

from day0.analyzers.canary.context import CanaryContext, Measured, model_error
from day0.analyzers.golden import Float64Mode
from day0.models.driver import step
from day0.models.workload import token_ids
from day0.playbook import Gate
from day0.registry.dispatch import suspended

TITLE = "all layers, batch 1"
WHOLE = True
GATES = (
    Gate(metric="prefill_error_ratio", rule="<=", limit=3.0, inconclusive="fail"),
    Gate(metric="decode_error_ratio", rule="<=", limit=3.0, inconclusive="fail"),
)
METRICS = {
    "prompt_tokens": "tokens of the prompt",
    **{
        f"{phase}_{name}": f"{what}, {phase}"
        for phase in ("prefill", "decode")
        for name, what in (
            ("error", "relative L2 error of the logits against float64"),
            ("yardstick", "the same error of the dtype itself on the CPU"),
            ("error_ratio", "the error, relative to the yardstick"),
        )
    },
}


def run(context: CanaryContext) -> Measured:
    """Prefill a prompt beyond the sparse top-k, then decode one token from the cache.

    Metrics: error, error_ratio and yardstick of prefill and of decode (prefill_error, ...), prompt_tokens.
    """
    tokens = max(context.prompt_tokens, 2 * (context.spec.sparse_top_k or 0))
    ids_BS = token_ids(context.spec, 1, tokens + 1, seed=2)
    with suspended():
        reference = _logits(context.reference(), ids_BS)
    model = context.golden()  # built outside of the mode: drawn in float64, random weights would be others
    with suspended(), Float64Mode():
        golden = _logits(model, ids_BS)
    got = _logits(context.on_device(), ids_BS.to(context.device))
    metrics = {"prompt_tokens": float(tokens)}
    for phase in ("prefill", "decode"):
        found = model_error(got[phase], reference[phase], golden[phase])
        metrics[f"{phase}_error"] = found["error"]
        metrics[f"{phase}_error_ratio"] = found["error_ratio"]
        metrics[f"{phase}_yardstick"] = found["yardstick"]
    return Measured(metrics=metrics)


def _logits(model: nn.Module, ids_BS: torch.Tensor) -> dict[str, torch.Tensor]:
    prefill = step(model, ids_BS[:, :-1].contiguous())
    decode = step(model, ids_BS[:, -1:].contiguous(), prefill.cache)
    return {"prefill": prefill.logits_BSV.cpu(), "decode": decode.logits_BSV.cpu()}
