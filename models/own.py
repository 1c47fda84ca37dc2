"""A model of the user's own, with inputs of its own: any module with any forward.

A factory for `day0 trace py:module:factory` returns one of

- a module with `config.vocab_size`, called with token ids like a causal model of transformers;
- `(module, args)` or `(module, args, kwargs)`: one phase, `forward`;
- an `OwnModel`: as many phases as it names.

Inputs are tensors, or nested lists, tuples and dicts of them, on any device: they are moved to where the model is.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from day0.errors import USER_ERRORS, Day0Error

__all__ = ["Inputs", "OwnModel", "call_of", "inputs_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """The arguments of one call of a module."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnModel:
    """A module and the calls to trace, by phase.

    An entry of `inputs` is an `Inputs`, a tuple of positional arguments, a dict of named ones, or a function that
    takes the device, `"meta"` or `"cpu"`, and returns one of these: then large inputs cost nothing on meta.
    """

    module: nn.Module
    inputs: Mapping[str, object]
    name: str = ""
    """What to call the model; its class if empty."""
    dtype: torch.dtype | None = None
    """What the module shall be cast to; its own if None."""


def inputs_of(made: object, where: str) -> Inputs:
    """Read one entry of `OwnModel.inputs`. Raises Day0Error for anything else."""
    if isinstance(made, Inputs):
        return made
    if isinstance(made, tuple):
        return Inputs(args=made)
    if isinstance(made, Mapping) and all(isinstance(key, str) for key in made):
        return Inputs(kwargs=made)
    raise Day0Error(
        where,
        f"its inputs are a {type(made).__name__}",
        hint="give a tuple of positional arguments, a dict of named ones, or day0.models.own.Inputs",
    )


def call_of(entry: object, where: str) -> Callable[[nn.Module, str], Callable[[], object]]:
    """Return what makes the inputs of a phase on a device, and then the call itself.

    Making inputs raises Day0Error where the user's function fails or returns something else; the call raises what the
    module raises, as one of day0's USER_ERRORS.
    """

    def prepare(module: nn.Module, device: str) -> Callable[[], object]:
        # Drawn on the CPU for every device: each device draws other numbers from one seed.
        made = _made(entry, "meta" if device == "meta" else "cpu", where) if callable(entry) else entry
        given = inputs_of(made, where)
        args, kwargs = _moved(given.args, device, where), _moved(dict(given.kwargs), device, where)

        # The weights of a model in float64, the golden, take inputs in float64.
        wide = any(one.dtype == torch.float64 for one in module.parameters())
        if wide:
            args, kwargs = _widened(args), _widened(kwargs)

        def call() -> object:
            with contextlib.redirect_stdout(sys.stderr), torch.no_grad():
                return _called(module, args, kwargs)

        return call

    return prepare


def _made(entry: Callable[..., object], device: str, where: str) -> object:
    with contextlib.redirect_stdout(sys.stderr), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # so that two traces see the same values
        try:
            return entry(device)
        except (Exception, SystemExit) as error:
            what = f"making the inputs fails: {type(error).__name__}: {error}"
            raise Day0Error(where, what, hint="the function is called with the device as text") from error


def _moved(tree: Any, device: str, where: str) -> Any:
    try:
        return tree_map(lambda one: one.to(device) if isinstance(one, torch.Tensor) else one, tree)
    except (RuntimeError, NotImplementedError) as error:
        what = f"the inputs cannot be moved to {device}: {error}"
        raise Day0Error(where, what, hint="give a function that takes the device") from error


def _widened(tree: Any) -> Any:
    return tree_map(
        lambda one: one.double() if isinstance(one, torch.Tensor) and one.is_floating_point() else one, tree
    )


def _called(module: nn.Module, args: Any, kwargs: Any) -> object:
    try:
        return module(*args, **kwargs)
    except USER_ERRORS:
        raise
    except Exception as error:  # an error class of the user's own, which nobody here would expect
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
