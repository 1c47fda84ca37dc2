"""Several prompts at once: each is what it is alone, and what the golden says.

Shape suffixes: B batch, S tokens.
"""

from __future__ import annotations

import torch

from day0.analyzers.canary.context import CanaryContext, Measured
from day0.analyzers.canary.gates import Figure
from day0.analyzers.canary.reference import error_figures, run_told, told
from day0.analyzers.modules.passes import Pass
from day0.analyzers.modules.places import Logits
from day0.analyzers.modules.ways import Way, batched, compare_ways
from day0.models.workload import token_ids
from day0.playbook import Gate

TITLE = "several prompts at once"
WHOLE = True
ROWS = 3
GATES = (
    Gate(metric="error_ratio", rule="<=", limit=3.0, inconclusive="fail"),
    Gate(metric="non_finite", rule="==", limit=0, inconclusive="fail"),
    Gate(metric="batch_unexplained", rule="==", limit=0),
)
METRICS = {
    "rows": "prompts at once",
    "error": "relative L2 error of the logits against float64",
    "yardstick": "the same error of the dtype itself on the CPU",
    "error_ratio": "the error, relative to the yardstick",
    "choices_wrong": "rows of experts or tokens that rounding does not explain",
    "non_finite": "logits that are NaN or infinite on the device alone",
    "batch_difference": "relative L2 difference of a row in the batch and alone, on the device",
    "batch_difference_cpu": "the same on the CPU in the same dtype",
    "batch_unexplained": "positions with another best token than alone, further apart than rounding explains",
    "batch_bits_differ": "logits with other bits in the batch than alone",
}


def run(context: CanaryContext) -> Measured:
    """Run several prompts together, and the first of them alone."""
    ids_BS = _ids(context)
    together, alone = batched(ids_BS), batched(ids_BS[:1])
    right = told(context, "small_batch", together, ids_BS.tolist())
    logits, heard = run_told(context, together, right)
    right_alone = told(context, "alone", alone, ids_BS[:1].tolist())
    lonely, _ = run_told(context, alone, right_alone)
    found = compare_ways("a row alone and in a batch", _way("alone", lonely), _way("in a batch", logits))
    unexplained: float | Figure = float(found.unexplained_flips)
    if found.status == "skipped":
        unexplained = Figure(None, why=found.reason)
    return Measured(
        metrics={
            "rows": float(ROWS),
            **error_figures(logits, heard),
            "batch_difference": found.difference,
            "batch_difference_cpu": found.yardstick,
            "batch_unexplained": unexplained,
            "batch_bits_differ": float(int((logits.device[:1] != lonely.device).sum())),
        }
    )


def look_at(context: CanaryContext) -> Pass:
    """Return the pass in which the first wrong module is looked for."""
    return batched(_ids(context))


def _ids(context: CanaryContext) -> torch.Tensor:
    return token_ids(context.spec, ROWS, context.prompt_tokens, seed=5)


def _way(name: str, logits: Logits) -> Way:
    golden, same, device = (one[:1].flatten(0, 1) for one in (logits.golden, logits.same, logits.device))
    return Way(name=name, golden=golden, same=same, device=device, lost=logits.lost)
