"""A model whose weights come when a layer is called and go when it returns: one of a model larger than memory can run.

Nothing of the model's own code is known here: hooks put the weights of a decoder layer, an embedding or a head into their
places while it runs; what else stands outside of the layers is there while the model runs. What is carried from layer to
layer is what the model itself carries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from day0.errors import USER_ERRORS, Day0Error
from day0.models.spec import ModelSpec, decoder_layers

__all__ = ["ReadWeight", "meta_bytes", "streamed", "streamed_reader"]

ReadWeight = Callable[[str], torch.Tensor]
"""Reads one parameter or buffer, by its name in the module, onto the CPU."""


def streamed(spec: ModelSpec, dtype: torch.dtype) -> nn.Module:
    """Return a model on the CPU that holds the weights of one layer at a time, widened to `dtype`.

    Weights are rounded to the model's own dtype first, as they are on the device. Raises Day0Error for a model whose
    weights cannot be read one by one, and for a buffer that is computed in a way that nobody here knows.
    """
    read = streamed_reader(spec, dtype)
    model = spec.build_own("meta").eval()
    _fill_computed(model, spec, dtype)
    first: dict[int, str] = {}
    for name, one in model.named_parameters(remove_duplicate=False):
        first.setdefault(id(one), name)
    for unit, modules in _units(model, decoder_layers(model)):
        _hook(unit, modules, read, first)
    return model


def streamed_reader(spec: ModelSpec, dtype: torch.dtype) -> ReadWeight:
    """Return what reads a weight, rounded to the model's own dtype and widened to another.

    Raises Day0Error for a model whose weights cannot be read one by one.
    """
    if spec.read_weights is None:
        what = "its weights cannot be read one by one: they are drawn from a seed, or made by a factory"
        raise Day0Error(
            spec.source, what, hint="name a folder with safetensors, or make the model smaller with --shrink"
        )
    return _rounded(spec.read_weights(), spec.dtype, dtype)


def meta_bytes(spec: ModelSpec, dtype: torch.dtype) -> int:
    """Return the bytes of a model's weights in another floating dtype. Allocates nothing."""
    model = spec.build_own("meta")
    return sum(
        one.numel() * (dtype.itemsize if _widens(one) else one.element_size())
        for one in (*model.parameters(), *model.buffers())
    )


def _widens(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() > 1


def _rounded(read: ReadWeight, own: torch.dtype, wide: torch.dtype) -> ReadWeight:
    def widened(name: str) -> torch.Tensor:
        # Outside of whatever mode is active: the golden's makes float64 of every narrower dtype, also while reading.
        with _disable_current_modes():
            tensor = read(name)
            return tensor.to(own).to(wide) if _widens(tensor) else tensor

    return widened


_CALLED = (nn.Embedding, nn.Linear)
"""Modules outside of the layers whose weights are needed while they are called, and at no other time."""


def _units(
    model: nn.Module, layers: Mapping[str, nn.Module]
) -> Iterator[tuple[nn.Module, list[tuple[str, nn.Module]]]]:
    """Yield what is loaded as one, by the module whose call it is needed for: a layer, an embedding, the model itself."""
    rest: list[tuple[str, nn.Module]] = []
    for path, module in model.named_modules():
        if any(path == layer or path.startswith(f"{layer}.") for layer in layers):
            continue
        if type(module) in _CALLED:
            yield module, [(path, module)]
        else:
            rest.append((path, module))
    yield model, rest
    for path, layer in layers.items():
        yield layer, list(layer.named_modules(prefix=path))


def _persistent(module: nn.Module) -> list[str]:
    return [name for name in module._buffers if name not in module._non_persistent_buffers_set]


def _places(modules: list[tuple[str, nn.Module]]) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield the dictionary, the key and the name of every weight that is read."""
    for prefix, module in modules:
        start = f"{prefix}." if prefix else ""
        yield from (
            (module._parameters, key, start + key) for key, one in module._parameters.items() if one is not None
        )
        yield from (
            (module._buffers, key, start + key) for key in _persistent(module) if module._buffers[key] is not None
        )


def _hook(unit: nn.Module, modules: list[tuple[str, nn.Module]], read: ReadWeight, first: Mapping[int, str]) -> None:
    """Fill modules when the unit is called, and empty them when it returns. Tied weights are read by their first name."""
    places = list(_places(modules))
    empty = {name: held[key] for held, key, name in places}

    def enter(*_: Any) -> None:
        for held, key, name in places:
            tensor = read(first.get(id(empty[name]), name))
            if tensor.shape != empty[name].shape:
                raise Day0Error(name, f"it has shape {list(tensor.shape)}, expected {list(empty[name].shape)}")
            held[key] = nn.Parameter(tensor, requires_grad=False) if isinstance(empty[name], nn.Parameter) else tensor

    def leave(*_: Any) -> None:
        for held, key, name in places:
            held[key] = empty[name]

    unit.register_forward_pre_hook(enter, prepend=True)
    unit.register_forward_hook(leave, always_call=True)


def _fill_computed(model: nn.Module, spec: ModelSpec, dtype: torch.dtype) -> None:
    """Compute the buffers that no checkpoint holds, such as the frequencies of rotary embeddings."""
    for path, module in model.named_modules():
        names = [name for name in module._non_persistent_buffers_set if module._buffers.get(name) is not None]
        if not names:
            continue
        made = _made_again(module, getattr(module, "config", getattr(model, "config", None)))
        if made is None:
            what = f"module {path} ({type(module).__name__}) computes {', '.join(names)} when it is made"
            raise Day0Error(spec.source, what, hint="such a model has to be built whole: make it smaller with --shrink")
        for name, value in made.items():
            module._buffers[name] = value.to(dtype) if _widens(value) else value
            if isinstance(getattr(module, f"original_{name}", None), torch.Tensor):
                setattr(module, f"original_{name}", module._buffers[name])


def _made_again(module: nn.Module, config: Any) -> Mapping[str, torch.Tensor] | None:
    kind: Any = type(module)
    try:
        made = kind(config)
    except USER_ERRORS:
        return None
    return {
        name: made._buffers[name] for name in module._non_persistent_buffers_set if made._buffers.get(name) is not None
    }
