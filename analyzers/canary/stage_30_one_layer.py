"""One layer of each kind, given the inputs that it gets in the golden run."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from day0.analyzers.canary.context import CanaryContext, Measured, model_error
from day0.analyzers.canary.layers import layer_kinds
from day0.analyzers.modules.passes import Pass
from day0.analyzers.modules.places import in_float64, in_own_dtype, on_device
from day0.analyzers.modules.ways import batched
from day0.models.workload import token_ids
from day0.playbook import Gate
from day0.reference_ops.signatures import tensors_in
from day0.registry.dispatch import suspended

TITLE = "one layer of each kind"
GATES = (
    Gate(metric="worst_error_ratio", rule="<=", limit=3.0, inconclusive="fail"),
    Gate(metric="layer_kinds", rule=">=", limit=1, inconclusive="fail"),
)
METRICS = {
    "layer_kinds": "layers that differ in their parts, or say that they are of another type",
    "worst_error": "relative L2 error against float64",
    "worst_error_ratio": "the error, relative to that of the dtype itself",
}


def run(context: CanaryContext) -> Measured:
    """Run one decoder layer of each kind on the device with the reference's own inputs.

    Metrics: layer_kinds, worst_error, worst_error_ratio. The failure names the worst layer.
    """
    kinds = layer_kinds(context.reference())
    if not kinds:
        return Measured(metrics={"layer_kinds": 0.0}, unfit="the model has no list of layers")
    ids_BS = token_ids(context.spec, 1, context.prompt_tokens, seed=1)
    with suspended():
        calls = _capture(context.reference(), tuple(kinds.values()), ids_BS)
    worst: dict[str, float] = {"worst_error": 0.0, "worst_error_ratio": 0.0}
    worst_path = ""
    for path in kinds.values():
        found = _compare(context, path, *calls[path])
        if not found["error_ratio"] <= worst["worst_error_ratio"]:
            worst_path = path
            worst = {"worst_error": found["error"], "worst_error_ratio": found["error_ratio"]}
    return Measured(metrics={"layer_kinds": float(len(kinds)), **worst}, evidence=worst_path)


def look_at(context: CanaryContext) -> Pass:
    """Return the pass in which the first wrong module is looked for."""
    return batched(token_ids(context.spec, 1, context.prompt_tokens, seed=1))


Call = tuple[tuple[Any, ...], dict[str, Any]]


def _capture(model: nn.Module, paths: tuple[str, ...], ids_BS: torch.Tensor) -> dict[str, Call]:
    """Record the arguments of some modules in one forward without a cache."""
    calls: dict[str, Call] = {}
    handles = []
    for path in paths:

        def keep(module: nn.Module, args: Any, kwargs: Any, path: str = path) -> None:
            calls[path] = (args, kwargs)

        handles.append(model.get_submodule(path).register_forward_pre_hook(keep, with_kwargs=True))
    try:
        with torch.no_grad():
            model(input_ids=ids_BS, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _compare(context: CanaryContext, path: str, args: Any, kwargs: Any) -> dict[str, float]:
    layers = [model.get_submodule(path) for model in (context.golden(), context.reference(), context.on_device())]
    with in_float64(layers[0]) as right:
        golden = _first(layers[0], *_convert((args, kwargs), torch.float64, None))
    with in_own_dtype(layers[1], right.made) as same:
        reference = _first(layers[1], args, kwargs)
    with on_device(layers[2], right.made, same.made) as heard:
        got = _first(layers[2], *_convert((args, kwargs), None, context.device))
    return model_error(got.cpu(), reference, golden, followed=not heard.lost)


def _first(layer: nn.Module, args: Any, kwargs: Any) -> torch.Tensor:
    with torch.no_grad():
        return next(tensors_in(layer(*args, **kwargs)))


def _convert(value: Any, floating: torch.dtype | None, device: torch.device | None) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.to(floating) if floating is not None and value.is_floating_point() else value
        return value.to(device) if device is not None else value
    if isinstance(value, (list, tuple)):
        return type(value)(_convert(item, floating, device) for item in value)
    if isinstance(value, dict):
        return {name: _convert(item, floating, device) for name, item in value.items()}
    return value
