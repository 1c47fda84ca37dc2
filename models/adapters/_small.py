"""A small module of the same class: the same code and attributes, few values of its own.

Its constructor is not called, since what that wants differs from class to class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

__all__ = ["draw", "linear", "norm", "small"]

_OWN = frozenset(vars(nn.Module()))


def small(
    module: nn.Module,
    generator: torch.Generator,
    shapes: Mapping[str, tuple[int, ...]],
    children: Mapping[str, nn.Module] | None = None,
    **changed: Any,
) -> nn.Module:
    """Return a module of the same class on the CPU.

    `shapes` gives the sizes of its parameters and buffers, which keep their dtypes and get random values; `children`
    its submodules; `changed` attributes with other values. A tensor that `shapes` does not name is left out.
    """
    made: nn.Module = object.__new__(type(module))
    nn.Module.__init__(made)
    kept = {name: value for name, value in vars(module).items() if name not in _OWN and name != "forward"}
    vars(made).update({**kept, **changed}, training=False)
    for name, parameter in module._parameters.items():
        values = None if parameter is None or name not in shapes else draw(generator, *shapes[name])
        made.register_parameter(name, None if values is None else nn.Parameter(values.to(parameter.dtype)))  # type: ignore[union-attr]  # values come from a parameter
    for name, buffer in module._buffers.items():
        values = None if buffer is None or name not in shapes else draw(generator, *shapes[name])
        made.register_buffer(name, None if values is None else values.to(buffer.dtype))  # type: ignore[union-attr]  # as above
    for name, child in (children or {}).items():
        made.add_module(name, child)
    return made.requires_grad_(False)


def draw(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Return random values [shape] in float64, about 1 in size."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def linear(like: Any, generator: torch.Generator, inputs: int, outputs: int) -> nn.Module:
    """Return a linear layer in the dtype of another, with a bias where that has one.

    The module's own may be of any class with one input and one result: what is compared begins behind it.
    """
    weight = getattr(like, "weight", None)
    dtype = weight.dtype if isinstance(weight, torch.Tensor) and weight.is_floating_point() else torch.float32
    made = nn.Linear(inputs, outputs, bias=getattr(like, "bias", None) is not None, dtype=dtype)
    for parameter in made.parameters():
        parameter.data = (draw(generator, *parameter.shape) * inputs**-0.5).to(dtype)
    return made.requires_grad_(False)


def norm(like: Any, generator: torch.Generator, width: int) -> nn.Module:
    """Return a layer norm of another width in the dtype and with the eps of another."""
    made = nn.LayerNorm(width, eps=like.eps, dtype=like.weight.dtype)
    for parameter in made.parameters():
        parameter.data = draw(generator, width).to(parameter.dtype)
    return made.requires_grad_(False)
