"""A context longer than the sparse top-k, and one just as long: where sparse attention begins.

Shape suffixes: B batch, S tokens.
"""

from __future__ import annotations

import torch

from day0.analyzers.canary.context import CanaryContext, Measured
from day0.analyzers.canary.dense import dense_attention
from day0.analyzers.canary.gates import Figure
from day0.analyzers.canary.operators import clock_of, seconds_of
from day0.analyzers.canary.reference import error_figures, run_told, told
from day0.analyzers.modules.passes import Pass, token_calls
from day0.errors import USER_ERRORS
from day0.models.driver import step
from day0.models.spec import ModelSpec
from day0.models.workload import token_ids
from day0.playbook import Gate

TITLE = "a context longer than the sparse top-k"
WHOLE = True
MOST_TOKENS = 512
"""A golden in float64 of more tokens takes minutes."""
GATES = (
    Gate(metric="error_ratio", rule="<=", limit=3.0, inconclusive="fail"),
    Gate(metric="at_top_k_error_ratio", rule="<=", limit=3.0, inconclusive="fail"),
    Gate(metric="choices_wrong", rule="==", limit=0, inconclusive="pass"),
    Gate(metric="non_finite", rule="==", limit=0, inconclusive="fail"),
)
METRICS = {
    "top_k": "tokens that sparse attention selects",
    "context_tokens": "tokens in the context of the last one",
    **{
        f"{prefix}{name}": f"{what}{where}"
        for prefix, where in (("", ", beyond the top-k"), ("at_top_k_", ", with one token more than the top-k"))
        for name, what in (
            ("error", "relative L2 error of the logits against float64"),
            ("yardstick", "the same error of the dtype itself on the CPU"),
            ("error_ratio", "the error, relative to the yardstick"),
            ("choices_wrong", "rows of experts or tokens that rounding does not explain"),
            ("non_finite", "logits that are NaN or infinite on the device alone"),
        )
    },
    "sparse_over_dense": "tokens decoded per second with sparse attention, over the same with dense attention",
}


def unfit(spec: ModelSpec) -> str:
    """Say why a model has no such context, or return an empty text."""
    if spec.sparse_top_k is None:
        return "it has no sparse attention"
    room = min(MOST_TOKENS, (spec.max_positions or MOST_TOKENS) - 1)
    if spec.sparse_top_k + 2 > room:
        return f"its top-k of {spec.sparse_top_k:,} tokens leaves no room below {room:,}: take a smaller one, --shrink does"
    return ""


def run(context: CanaryContext) -> Measured:
    """Decode one token after as many as the top-k, and one in a context of three times the top-k."""
    top_k = context.spec.sparse_top_k or 0
    metrics: dict[str, float | Figure] = {"top_k": float(top_k)}
    for name, calls, ids_BS, prefix in (
        ("at_topk", _at_top_k(context), _edge_ids(context), "at_top_k_"),
        ("past_topk", look_at(context), _ids(context), ""),
    ):
        logits, heard = run_told(context, calls, told(context, name, calls, ids_BS.tolist()))
        metrics |= error_figures(logits, heard, prefix=prefix)
    metrics["context_tokens"] = float(_ids(context).shape[1])
    metrics["sparse_over_dense"] = _against_dense(context)
    return Measured(metrics=metrics)


def look_at(context: CanaryContext) -> Pass:
    """Return the pass in which the first wrong module is looked for."""
    return token_calls(_ids(context))


def _at_top_k(context: CanaryContext) -> Pass:
    return token_calls(_edge_ids(context))


def _edge_ids(context: CanaryContext) -> torch.Tensor:
    return token_ids(context.spec, 1, (context.spec.sparse_top_k or 0) + 1, seed=6)


def _ids(context: CanaryContext) -> torch.Tensor:
    top_k = context.spec.sparse_top_k or 0
    room = min(MOST_TOKENS, (context.spec.max_positions or MOST_TOKENS) - 1)
    return token_ids(context.spec, 1, max(top_k + 2, min(3 * top_k + 1, room)), seed=7)


def _against_dense(context: CanaryContext) -> Figure:
    """Time one decode step with sparse attention and one with dense attention, on the same cache length."""
    if clock_of(context.device).name == "wall" and context.device.type == "cpu":
        return Figure(None, why="a small model's time on the host's clock says nothing")
    model, ids_BS = context.on_device(), _ids(context).to(context.device)
    cache = step(model, ids_BS[:, :-1]).cache
    _, sparse = seconds_of(context.device, lambda: step(model, ids_BS[:, -1:], cache))
    with dense_attention(model, ids_BS.shape[1]) as changed:
        if not changed:
            return Figure(None, why="the model does not say where its top-k stands, so it cannot be made dense")
        try:
            # What stands in the cache is no matter: only the time is looked at.
            _, dense = seconds_of(context.device, lambda: step(model, ids_BS[:, -1:], cache))
        except USER_ERRORS as error:
            return Figure(None, why=f"with dense attention it stops: {type(error).__name__}: {str(error)[:200]}")
    return Figure(dense / sparse if sparse else None, why="" if sparse else "no time passes on this device")
