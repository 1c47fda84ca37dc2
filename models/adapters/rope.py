"""Rotary positions: the attention keeps its own code and calls `day0::rope` where it called its file's function.

Shape suffixes: B batch, H heads, S tokens, D head dimension, R rotated values, P = R / 2 pairs; A is B or 1.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import nn

from day0.errors import USER_ERRORS
from day0.models.adapters._adapter import Adapter, Candidate, Probe, Refused
from day0.models.adapters._angles import angle_form, laid_out, read
from day0.models.adapters._rebind import calls_of, rebound
from day0.models.adapters._small import draw

__all__ = ["ADAPTER", "rotations", "to_halves"]

FUNCTIONS = ("apply_rotary_pos_emb", "apply_rotary_pos_emb_interleave")
TURNED = 12
MOVED, LAST = ", moved to half order", " of the last values"
WAYS = tuple(f"{pairing}{place}" for pairing in ("half", f"interleaved{MOVED}", "interleaved") for place in ("", LAST))


def candidates(module: nn.Module) -> Sequence[Candidate]:
    """Both pairings, values at either end, in their places or moved to half order, for each function that it calls."""
    return [Candidate(text=text, forward=rebound(module, ours)) for text, ours in rotations(module)]


def rotations(module: nn.Module) -> Sequence[tuple[str, dict[str, Callable[..., Any]]]]:
    """Return the ways to rotate as its forward does: what is assumed, and functions by the names that it calls.

    Raises Refused where it calls none of them.
    """
    functions = calls_of(module, *FUNCTIONS)
    if not functions:
        raise Refused(f"its forward calls neither {' nor '.join(FUNCTIONS)}")
    form = angle_form(module)
    found = []
    for ways in product(WAYS, repeat=len(functions)):
        ours = {name: turn(own, way, form) for (name, own), way in zip(functions.items(), ways, strict=True)}
        found.append(("; ".join(f"{name} {way}" for name, way in zip(functions, ways, strict=True)), ours))
    return found


def turn(own: Callable[..., Any], way: str, form: str) -> Callable[..., Any]:
    """Return a function with the signature of transformers' own, that of one tensor or that of two."""
    last, way = way.endswith(LAST), way.removesuffix(LAST)
    pairing, moves = way.removesuffix(MOVED), way.endswith(MOVED)

    def one(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int) -> torch.Tensor:
        x_BSHD = x if heads == 2 else x.transpose(1, 2)
        cos_ASP, sin_ASP = read(cos, form), read(sin, form)
        width = 2 * cos_ASP.shape[-1]
        start = x.shape[-1] - width if last else 0
        turned: torch.Tensor = torch.ops.day0.rope(x_BSHD, cos_ASP, sin_ASP, pairing, start)
        if moves:
            turned = to_halves(turned, start, width)
        return turned if heads == 2 else turned.transpose(1, 2)

    def both(
        q: torch.Tensor,
        k: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        unsqueeze_dim: int = 1,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if isinstance(position_ids, int):
            # Where there are no position_ids the dimension stands fifth.
            unsqueeze_dim = position_ids
        return one(q, cos, sin, unsqueeze_dim), one(k, cos, sin, unsqueeze_dim)

    def single(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1) -> torch.Tensor:
        return one(x, cos, sin, unsqueeze_dim)

    return single if _takes_one(own) else both


def to_halves(x: torch.Tensor, start: int, width: int) -> torch.Tensor:
    """Return x with a slice of its last dimension in half order that stands in alternating order."""
    before, inner, after = x.split((start, width, x.shape[-1] - start - width), dim=-1)
    return torch.cat((before, inner.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2), after), dim=-1)


def _takes_one(own: Callable[..., Any]) -> bool:
    return list(inspect.signature(own).parameters)[1:3] == ["cos", "sin"]


def probe(module: nn.Module, generator: torch.Generator) -> Probe:
    """Queries and keys with other numbers of heads, and angles for each sequence of a batch or for all of them.

    Heads of which a part turns too, where their function takes those.
    """
    functions = calls_of(module, *FUNCTIONS)
    form = angle_form(module)

    def all_of(called: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
        def call(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *names: str) -> list[Any]:
            return [
                (called[name](q, cos, sin), called[name](k, cos, sin))
                if _takes_one(functions[name])
                else called[name](q, k, cos, sin)
                for name in names
            ]

        return call

    own = all_of(functions)
    calls = []
    for width, batch in ((TURNED, 1), (TURNED, 2), (TURNED + 8, 1)):
        angle_ASP = 3.0 * draw(generator, batch, 5, TURNED // 2)
        cos, sin = (laid_out(x, form) for x in (angle_ASP.cos(), angle_ASP.sin()))
        args = (draw(generator, 2, 4, 5, width), draw(generator, 2, 1, 5, width), cos, sin)
        taken = tuple(name for name in functions if width == TURNED or _runs(own, args, name))
        calls.append((*args, *taken))

    def ours(candidate: Candidate) -> Callable[..., Any]:
        return all_of(candidate.forward.__globals__)

    return Probe(module=None, calls=tuple(calls), own=own, ours=ours)


def _runs(own: Callable[..., Any], args: tuple[Any, ...], name: str) -> bool:
    try:
        own(*args, name)
    except USER_ERRORS:
        return False
    return True


ADAPTER = Adapter(
    title="rotary positions inside an attention, which keeps the rest of its own code",
    operators=("day0::rope",),
    classes=("transformers.models.*Attention",),
    candidates=candidates,
    probe=probe,
)
