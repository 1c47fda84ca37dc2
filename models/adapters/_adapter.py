"""What a file of this folder defines: which modules it stands for, and the `forward` that takes the place of theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

__all__ = ["Adapter", "Candidate", "Probe", "Refused", "needs", "no_grad_needed"]

Forward = Callable[..., Any]


class Refused(Exception):
    """The module is of the right class and cannot be expressed by the operator; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One way in which the operator may stand for a module. Of several, the proof takes the first that is right."""

    text: str
    """What is assumed, for people: `weight offset 1, rounded last`."""
    forward: Forward
    """Takes the module, then what the module's own `forward` takes, and returns what that returns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A small module of the same class with the same attributes, and calls on which both codes must agree.

    Without a module the two functions are compared by themselves.
    """

    module: nn.Module | None
    calls: tuple[tuple[Any, ...], ...]
    own: Forward | None = None
    """The code that is replaced, where it is a function and not the class's `forward`."""
    ours: Callable[[Candidate], Forward] | None = None
    """What replaces it."""
    settle: Callable[[Any], Any] = field(default=lambda result: result)
    """Brings results into one order where theirs has none: experts that are chosen in any order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """One family of module classes, and the operators of ours that compute what they compute."""

    title: str
    operators: tuple[str, ...]
    classes: tuple[str, ...]
    """Qualified names of module classes with `*`; a class fits by its own name or that of a class that it is made of."""
    unlike: tuple[str, ...] = ()
    """Names that `classes` would take too and that are something else."""
    candidates: Callable[[nn.Module], Sequence[Candidate]]
    """Reads the module's attributes. Raises Refused for what the operator cannot express."""
    probe: Callable[[nn.Module, torch.Generator], Probe]
    """Makes the small module for the proof; reads shapes and attributes of the module, and no values."""
    gradients: bool = True
    """False where the module's own code computes none, so that nothing is lost without them."""
    name: str = ""
    """The file's name; `load_adapters` puts it in."""


def needs(module: nn.Module, *names: str) -> None:
    """Raise Refused for a module that lacks an attribute."""
    missing = [name for name in names if not hasattr(module, name)]
    if missing:
        raise Refused(f"it has no {' and no '.join(missing)}")


def no_grad_needed(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether autograd would ask this call for nothing."""
    if not torch.is_grad_enabled():
        return True
    tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    return not any(one.requires_grad for one in (*tensors, *module.parameters()))
