"""The first layers on the device, the others on the CPU: logits against the golden."""

from __future__ import annotations

import torch

from day0.analyzers.canary.context import CanaryContext, Measured
from day0.analyzers.canary.layers import Both, first_layers, layers_elsewhere
from day0.analyzers.canary.reference import error_figures, told
from day0.analyzers.modules.passes import Pass
from day0.analyzers.modules.places import CPU, Logits, on_device
from day0.analyzers.modules.ways import batched
from day0.models.spec import decoder_layers
from day0.models.workload import token_ids
from day0.playbook import Gate

TITLE = "the first layers, at least half of them and one of each kind"
GATES = (
    Gate(metric="error_ratio", rule="<=", limit=3.0, inconclusive="fail"),
    Gate(metric="non_finite", rule="==", limit=0, inconclusive="fail"),
)
METRICS = {
    "layers": "layers on the device",
    "of_layers": "layers of the model",
    "error": "relative L2 error of the logits against float64",
    "yardstick": "the same error of the dtype itself on the CPU",
    "error_ratio": "the error, relative to the yardstick",
    "choices_wrong": "rows of experts or tokens that rounding does not explain",
    "non_finite": "logits that are NaN or infinite on the device alone",
}


def run(context: CanaryContext) -> Measured:
    """Run a prompt with some layers on the device and all else on the CPU; no cache is kept."""
    model, paths = context.reference(), first_layers(context.reference())
    if not paths:
        return Measured(metrics={}, unfit="the model has no list of layers")
    ids_BS = _ids(context)
    calls = batched(ids_BS)
    right = told(context, "some_layers", calls, ids_BS.tolist())
    both = Both(model, context.on_device(), paths)
    with layers_elsewhere(both, context.device), on_device(both, right.choices, right.noise) as heard:
        (call,) = calls
        got_BSV = call.run(model, CPU, None).logits_BSV
    logits = Logits(golden=right.golden_BSV, same=right.same_BSV, device=got_BSV, lost=heard.lost)
    counts = {"layers": float(len(paths)), "of_layers": float(len(decoder_layers(model)))}
    return Measured(metrics={**counts, **error_figures(logits, heard)}, evidence=f"layers up to {paths[-1]}")


def look_at(context: CanaryContext) -> Pass:
    """Return the pass in which the first wrong module is looked for."""
    return batched(_ids(context))


def _ids(context: CanaryContext) -> torch.Tensor:
    return token_ids(context.spec, 1, context.prompt_tokens, seed=4)
