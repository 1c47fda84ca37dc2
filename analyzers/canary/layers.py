"""The decoder layers of a model: their kinds, and a model of which some layers run on the device."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import NoneType
from typing import Any

import torch
from torch import nn

from day0.analyzers.modules.tree import rebuilt
from day0.models.spec import decoder_layers

__all__ = ["Both", "first_layers", "layer_kinds", "layers_elsewhere"]


def layer_kinds(model: nn.Module) -> dict[str, str]:
    """Return one layer path for each kind: layers with other modules in them, or modules that say they are of another type.

    Windows and types of attention are attributes in many models, and no classes.
    """
    kinds: dict[str, str] = {}
    for path, layer in decoder_layers(model).items():
        inside = [f"{name}:{type(module).__name__}{_said(module)}" for name, module in layer.named_modules()]
        kinds.setdefault(" ".join(inside), path)
    return kinds


_KIND_NAMES = re.compile(r"(\w+_)?type|\w*window\w*|(is|has|use|with)_\w+")


def _said(module: nn.Module) -> str:
    """Return the plain attributes by which a module says of what kind it is."""
    told = {name: value for name, value in vars(module).items() if _KIND_NAMES.fullmatch(name)}
    plain = {name: value for name, value in told.items() if isinstance(value, (bool, int, str, NoneType))}
    return f"{sorted(plain.items())}" if plain else ""


def first_layers(model: nn.Module) -> tuple[str, ...]:
    """Return the shortest run of layers from the first on that has every kind, and at least half of all."""
    layers = list(decoder_layers(model))
    if not layers:
        return ()
    last = max(layers.index(path) for path in layer_kinds(model).values())
    return tuple(layers[: max(last + 1, -(-len(layers) // 2))])


class Both(nn.Module):
    """A model on the CPU, and the same on a device that computes some of its layers; as one tree of modules."""

    def __init__(self, here: nn.Module, there: nn.Module, paths: tuple[str, ...]) -> None:
        super().__init__()
        # In a tuple, so that they do not become children of this one.
        self.models = (here, there)
        self.paths = paths

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules of the CPU, and those of the device below the layers that it computes."""
        here, there = self.models
        yield from here.named_modules()
        for path in self.paths:
            yield from (
                (name, one) for name, one in there.get_submodule(path).named_modules(prefix=path) if name != path
            )


@contextmanager
def layers_elsewhere(both: Both, device: torch.device) -> Iterator[None]:
    """Let the layers of the model on the CPU be computed by those on the device, one after the other."""
    here, there = both.models
    layers = [(here.get_submodule(path), there.get_submodule(path)) for path in both.paths]
    try:
        for mine, theirs in layers:
            _send(mine, theirs, device)
        yield
    finally:
        for mine, _ in layers:
            mine.__dict__.pop("forward", None)


def _send(here: nn.Module, there: nn.Module, device: torch.device) -> None:
    def forward(*args: Any, **kwargs: Any) -> Any:
        moved_args, moved_kwargs = rebuilt((args, kwargs), lambda one: one.to(device))
        return rebuilt(there(*moved_args, **moved_kwargs), lambda one: one.cpu())

    # On the object and not in the class: nobody else's layer is touched, and taking it away brings the old one back.
    here.__dict__["forward"] = forward
