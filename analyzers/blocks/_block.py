"""What a file of this folder defines: how a block is known, what it stands for, and samples that prove both.

A path is a text of steps, `pow|square mean add/1 rsqrt! mul`. A step names operators without overload and without the
underscore of in-place ones; `/1` counts tensor arguments; `?` before a step makes it optional; `!` behind it marks the
call that happens once in each run of the block; `..` stands for up to six calls of any kind. Each step takes a tensor
that the step before made, also through views, copies and casts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import torch
from torch import nn

from day0.records import TraceEntry

__all__ = ["Block", "Call", "Step", "parse_path"]

Function = Callable[..., Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step of a path."""

    ops: frozenset[tuple[str, int | None]]
    """Operators by bare name, with how many tensors they take where that matters."""
    anchor: bool = False
    wide: bool = False
    """True where up to six other calls may stand before this step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One known group of operators."""

    title: str
    operators: tuple[str, ...]
    """Operators of ours that compute it; empty where none does."""
    why: str
    """What one kernel in its place is good for."""
    kind: Literal["block", "fusion"] = "block"
    classes: tuple[str, ...] = ()
    """Names of module classes, with `*`: `*RMSNorm`; `*Attention/Linear` is a Linear directly in such a class."""
    unlike: tuple[str, ...] = ()
    """Classes that `classes` would take too and that are something else."""
    confirm: tuple[str, ...] = ()
    """Operators of which one must be seen in the module: a class name alone proves nothing. Empty: no proof needed."""
    counts: tuple[str, ...] = ()
    """Operators of which each call is a run, where modules cannot be counted."""
    paths: tuple[str, ...] = ()
    """Each is one way to write it down in operators."""
    also: tuple[str, ...] = ()
    """Paths of which one must end at the same anchor too."""
    never: tuple[str, ...] = ()
    """Paths that may not end at the same anchor."""
    absorbs: tuple[str, ...] = ()
    """Operators that belong to it where all that takes their result does."""
    when: Callable[[TraceEntry], bool] | None = None
    """What must hold of the anchor's call besides its name."""
    phases: Literal["all", "one", "many"] = "all"
    """Only where one token comes at a time, or only where many do."""
    scope: Literal["module", "parent", "any"] = "module"
    """How far apart the steps of a path may be: in one module, also in its neighbours and parent, anywhere."""
    carves: tuple[str, ...] = ()
    """Blocks from whose modules its paths may take calls: a rotation that is written out inside an attention."""
    sample: Callable[[], Call]
    """A module that must be recognised."""
    near_miss: Callable[[], Call]
    """A module that looks like it and must not be."""


class Call(nn.Module):
    """A function as a module, with arguments to call it with. `named` gives the class another name."""

    def __init__(self, function: Function, *inputs: torch.Tensor) -> None:
        super().__init__()
        self.function, self.inputs = function, inputs

    def forward(self) -> Any:
        """Call the function with its own arguments."""
        return self.function(*self.inputs)

    def named(self, *names: str) -> Call:
        """Return the same call inside modules of these class names, outermost first."""
        inner: Call = self
        for number, name in enumerate(reversed(names)):
            kind = type(name, (Call,), {})
            inner = kind(self.function, *self.inputs) if number == 0 else _around(kind, inner)
        return inner


def _around(kind: type[Call], inner: Call) -> Call:
    outer = kind(inner)
    outer.inner = inner
    return outer


def parse_path(text: str) -> tuple[tuple[Step, ...], ...]:
    """Return all sequences of steps that a path allows: with and without its optional ones."""
    words: list[tuple[Step, bool]] = []
    wide = False
    for word in text.split():
        if word == "..":
            wide = True
            continue
        names = word.removeprefix("?").removesuffix("!").split("|")
        ops = frozenset(_op(name) for name in names)
        words.append((Step(ops=ops, anchor=word.endswith("!"), wide=wide), word.startswith("?")))
        wide = False
    choices = product(*(((step,), ()) if optional else ((step,),) for step, optional in words))
    return tuple(tuple(step for part in choice for step in part) for choice in choices)


def _op(name: str) -> tuple[str, int | None]:
    bare, _, tensors = name.partition("/")
    return bare, int(tensors) if tensors else None
