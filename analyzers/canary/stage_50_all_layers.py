"""The whole model: logits of prefill and of decode with a cache, against the golden; and what each operator takes.

Shape suffixes: B batch, S tokens.
"""

from __future__ import annotations

import torch

from day0.analyzers.canary.context import CanaryContext, Measured
from day0.analyzers.canary.gates import Figure
from day0.analyzers.canary.operators import OperatorWatch, operator_figures
from day0.analyzers.canary.reference import error_figures, run_told, told
from day0.analyzers.canary.repeat import first_unlike
from day0.analyzers.modules.passes import Pass, token_calls, walk
from day0.analyzers.modules.places import Logits
from day0.models.workload import token_ids
from day0.playbook import Gate
from day0.records import OperatorFigures

TITLE = "all layers, batch 1"
WHOLE = True
GATES = (
    Gate(metric="prefill_error_ratio", rule="<=", limit=3.0, inconclusive="fail"),
    Gate(metric="decode_error_ratio", rule="<=", limit=3.0, inconclusive="fail"),
    Gate(metric="choices_wrong", rule="==", limit=0, inconclusive="pass"),
    Gate(metric="non_finite", rule="==", limit=0, inconclusive="fail"),
    Gate(metric="repeat_differs", rule="==", limit=0),
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
    "choices_wrong": "rows of experts or tokens that rounding does not explain",
    "non_finite": "logits that are NaN or infinite on the device alone",
    "repeat_differs": "logits with other bits when the same pass is run again",
    "operators": "operators that ran on the device",
    "operator_seconds": "seconds of all their calls, by the device's clock",
    "bandwidth_share": "bytes that operators move over what the memory could in their time",
}


def run(context: CanaryContext) -> Measured:
    """Prefill a prompt beyond the sparse top-k, then decode one token from the cache; the same twice.

    The second pass notes what each operator takes.
    """
    calls = look_at(context)
    right = told(context, "all_layers", calls, _ids(context).tolist())
    logits, heard = run_told(context, calls, right)
    figures = error_figures(logits, heard)
    metrics: dict[str, float | Figure] = {
        "prompt_tokens": float(logits.golden.shape[1] - 1),
        "choices_wrong": figures["choices_wrong"],
        "non_finite": figures["non_finite"],
    }
    for phase, place in (("prefill", slice(None, -1)), ("decode", slice(-1, None))):
        part = Logits(
            golden=logits.golden[:, place], same=logits.same[:, place], device=logits.device[:, place], lost=logits.lost
        )
        found = error_figures(part, heard, prefix=f"{phase}_")
        metrics |= {name: value for name, value in found.items() if name in METRICS}
    again_BSV, operators = _again(context, calls)
    first_BSV = logits.device
    if any(one.explained for one in heard.moved):
        # A choice was set to the golden's in the first pass: what has to be equal are two passes without that.
        rows = [result.logits_BSV.detach().cpu() for _, result in walk(calls, context.on_device(), context.device)]
        first_BSV = torch.cat(rows, dim=1)
    metrics["repeat_differs"] = float(int((first_BSV != again_BSV).sum()))
    metrics |= _cost(context, operators)
    named = first_unlike(calls, context.on_device(), context.device) if metrics["repeat_differs"] else ""
    return Measured(metrics=metrics, operators=operators, unrepeated=named)


def _again(context: CanaryContext, calls: Pass) -> tuple[torch.Tensor, tuple[OperatorFigures, ...]]:
    rows = []
    with OperatorWatch(context.device) as watch:
        for name, result in walk(calls, context.on_device(), context.device):
            watch.phase = name
            rows.append(result.logits_BSV.detach().cpu())
    context.timeline = watch.timeline()
    return torch.cat(rows, dim=1), operator_figures(context.timeline, context.active.lock, context.profile)


def _cost(context: CanaryContext, operators: tuple[OperatorFigures, ...]) -> dict[str, float | Figure]:
    seconds, moved = sum(one.seconds for one in operators), sum(one.bytes for one in operators)
    figures: dict[str, float | Figure] = {"operators": float(len({one.operator for one in operators}))}
    if not operators or operators[0].clock == "wall":
        why = "there is no clock of the device: the host's differs from run to run, and stands with each operator"
        return {**figures, "operator_seconds": Figure(None, why=why), "bandwidth_share": Figure(None, why=why)}
    figures["operator_seconds"] = Figure(round(seconds, 12), unit="s")
    peak = context.profile.bandwidth_gb_s * 1e9 if context.profile is not None else 0.0
    share = moved / seconds / peak if peak and seconds else None
    return {**figures, "bandwidth_share": Figure(share, why="" if share is not None else "no peak is known")}


def look_at(context: CanaryContext) -> Pass:
    """Return the pass in which the first wrong module is looked for."""
    return token_calls(_ids(context))


def _ids(context: CanaryContext) -> torch.Tensor:
    tokens = max(context.prompt_tokens, 2 * (context.spec.sparse_top_k or 0))
    return token_ids(context.spec, 1, tokens + 1, seed=2)
