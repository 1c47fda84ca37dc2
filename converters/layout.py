"""Stacked experts under other names and in another order: stacks split into experts, gate and up sorted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from day0.converters.architectures._architecture import Architecture
from day0.converters.header import Stored
from day0.converters.weight import Format, Segment, Weight
from day0.errors import Day0Error
from day0.records.convert import ConversionParameters

__all__ = ["RAW", "arranged", "biases"]

GATE_UP = "gate_up_proj"

RAW = Format(name="raw", summary="bytes as they are", find=lambda *_: None)


def arranged(weight: Weight, architecture: Architecture, parameters: ConversionParameters) -> Iterator[Weight]:
    """Return the weights that a stacked one becomes, under the names that they get. Others stay as they are.

    Raises Day0Error where the architecture does not know how its stacks are made up.
    """
    if not weight.stacked:
        yield weight
        return
    leaf = weight.name.rpartition(".")[2]
    if parameters.experts == "split":
        yield from _split(weight, leaf, architecture)
        return
    if leaf == GATE_UP and parameters.gate_up not in ("keep", architecture.gate_up):
        weight = replace(weight, segments=_reordered(weight.rows, parameters.gate_up))
    yield weight


def _reordered(rows: int, wanted: str) -> tuple[Segment, ...]:
    half = rows // 2
    if rows % 2:
        raise Day0Error("--gate-up", f"{rows} rows are no pairs of gate and up", hint="leave the option out")
    if wanted == "concatenated":
        return (Segment(first=0, step=2, count=half), Segment(first=1, step=2, count=half))
    return tuple(Segment(first=row + side, step=1, count=1) for row in range(half) for side in (0, half))


def _split(weight: Weight, leaf: str, architecture: Architecture) -> Iterator[Weight]:
    parts = (architecture.split or {}).get(leaf)
    if parts is None:
        what = f"the map of {architecture.name} does not say what the rows of {weight.name} are"
        raise Day0Error("--experts split", what, hint="leave the option out")
    if weight.rows % len(parts):
        raise Day0Error("--experts split", f"{weight.name} has {weight.rows} rows, no pairs of gate and up")
    each = weight.rows // len(parts)
    stem = weight.name.removesuffix(leaf)
    for expert in weight.experts:
        for number, part in enumerate(parts):
            if len(parts) > 1 and architecture.gate_up == "interleaved":
                rows = Segment(first=number, step=len(parts), count=each)
            else:
                rows = Segment(first=number * each, step=1, count=each)
            yield replace(
                weight, name=f"{stem}{expert}.{part}.weight", stacked=False, experts=(expert,), segments=(rows,)
            )


def biases(stored: Stored, weight: Weight, arranged_weights: list[Weight]) -> list[Weight]:
    """Arrange the bias [E, rows] of a stack as its weight was."""
    if stored.shape != (len(weight.experts), weight.rows):
        what = f"{stored.name} has shape {list(stored.shape)}, and its weight has {len(weight.experts)} x {weight.rows} rows"
        raise Day0Error(str(stored.file), what, hint="fetch the checkpoint again")
    made = []
    for one in arranged_weights:
        name = one.name.removesuffix("weight") + "bias" if not one.stacked else stored.name
        made.append(replace(one, name=name, format=RAW, parts={"payload": stored}, columns=1))
    return made
