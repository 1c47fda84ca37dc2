"""A prompt with an image: logits against the golden.

Shape suffixes: B batch, S tokens.
"""

from __future__ import annotations

import torch

from day0.analyzers.canary.context import CanaryContext, Measured
from day0.analyzers.canary.reference import error_figures, run_told, told
from day0.analyzers.modules.passes import Pass, picture_calls
from day0.models.pictures import picture_inputs
from day0.models.spec import ModelSpec
from day0.models.workload import IMAGE_PROMPT, token_ids
from day0.playbook import Gate

TITLE = "a prompt with an image"
GATES = (
    Gate(metric="error_ratio", rule="<=", limit=3.0, inconclusive="fail"),
    Gate(metric="non_finite", rule="==", limit=0, inconclusive="fail"),
)
METRICS = {
    "image_tokens": "tokens of the prompt with its image",
    "error": "relative L2 error of the logits against float64",
    "yardstick": "the same error of the dtype itself on the CPU",
    "error_ratio": "the error, relative to the yardstick",
    "choices_wrong": "rows of experts or tokens that rounding does not explain",
    "non_finite": "logits that are NaN or infinite on the device alone",
}


def unfit(spec: ModelSpec) -> str:
    """Say why a model cannot be given an image, or return an empty text."""
    return "" if spec.image_inputs is not None or spec.class_name == "ToyModel" else "it has no vision branch"


def run(context: CanaryContext) -> Measured:
    """Run one prompt with one image."""
    if not _has_pictures(context):
        return Measured(metrics={}, unfit="it has no vision branch")
    if _not_traced(context):
        return Measured(metrics={}, unfit="no phase of the trace has an image, so the lock was not made for its calls")
    calls = look_at(context)
    right = told(context, "vision", calls, _ids(context).tolist())
    logits, heard = run_told(context, calls, right)
    return Measured(metrics={"image_tokens": float(logits.golden.shape[1]), **error_figures(logits, heard)})


def look_at(context: CanaryContext) -> Pass:
    """Return the pass in which the first wrong module is looked for."""
    return picture_calls(context.spec, _ids(context))


def _ids(context: CanaryContext) -> torch.Tensor:
    return token_ids(context.spec, 1, max(IMAGE_PROMPT, 12), seed=8)


def _has_pictures(context: CanaryContext) -> bool:
    return picture_inputs(context.spec, context.reference(), _ids(context), lambda one: one) is not None


def _not_traced(context: CanaryContext) -> bool:
    """Say whether a lock stands for calls without images alone; one that replaces nothing serves any call."""
    if context.trace is None or not context.active.lock.entries:
        return False
    return not any(phase.images for phase in context.trace.phases)
