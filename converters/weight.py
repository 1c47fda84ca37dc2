"""A weight as the model means it, whatever tensors a checkpoint stores it in.

Shape suffixes: R rows of a tile, C columns (input values), P = C / 2 packed bytes, G = C / 32 groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from day0.converters.header import Stored
from day0.converters.reading import Reader

__all__ = ["GROUP", "Format", "MxTile", "Segment", "Weight"]

GROUP = 32
"""Values that share a scale in MX formats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Some rows of the stored matrix: `count` of them from `first`, every `step`-th."""

    first: int
    step: int
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Weight:
    """One weight: a matrix, or a stack of them (one for each expert)."""

    name: str
    """Of the plain weight, such as `model.layers.0.mlp.experts.gate_up_proj` or `....w1.weight`."""
    format: Format
    parts: Mapping[str, Stored]
    """The tensors that hold it, by what they are to the format; `payload` is always there."""
    stacked: bool
    """True where the name stands for all experts of a layer."""
    experts: tuple[int, ...]
    """Which matrices of the stored stack belong to it; (0,) for one that is stored alone."""
    stored_rows: int
    """Of one stored matrix."""
    columns: int
    segments: tuple[Segment, ...]
    facts: Mapping[str, object] = field(default_factory=dict)
    """What the format found out, such as the block of its scales."""

    @property
    def rows(self) -> int:
        """Of one matrix."""
        return sum(one.count for one in self.segments)

    @property
    def values(self) -> int:
        """Of all matrices."""
        return len(self.experts) * self.rows * self.columns

    @property
    def shape(self) -> tuple[int, ...]:
        """As the plain weight has it, rows first."""
        return (len(self.experts), self.rows, self.columns) if self.stacked else (self.rows, self.columns)

    @property
    def nbytes(self) -> int:
        """Of all its tensors in the files."""
        return sum(one.nbytes for one in self.parts.values())

    def spans(self, first: int, last: int) -> Iterator[Segment]:
        """Return which stored rows the rows first to last (without it) are."""
        at = 0
        for one in self.segments:
            begin, end = max(first, at), min(last, at + one.count)
            if begin < end:
                yield replace(one, first=one.first + (begin - at) * one.step, count=end - begin)
            at += one.count


@dataclass(frozen=True, kw_only=True, slots=True)
class MxTile:
    """Some rows of a weight in four-bit codes: low nibble first, one scale byte for 32 values."""

    codes_RP: torch.Tensor
    bytes_RG: torch.Tensor


Find = Callable[[Stored, Mapping[str, Stored], Mapping[str, object]], Weight | None]
"""`find(payload, all tensors, quantisation of the config)`: the weight that this tensor is the payload of, or None."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """One way in which checkpoints store weights."""

    name: str
    summary: str
    find: Find
    mx: Callable[[Weight, Reader, int, int, int], MxTile] | None = None
    """`mx(weight, reader, expert, first row, last row)`: only for formats whose values are E2M1 * 2^n."""
    values: Callable[[Weight, Reader, int, int, int], torch.Tensor] | None = None
    """The same for all others: values [R, C] as float32."""
    exact_values: Callable[[Weight, Reader, int, int, int], torch.Tensor] | None = None
    """The same as float64, without the range of float32 in between: what a comparison reads a result with."""
    exact_bits: Callable[[Weight, Reader], int | None] | None = None
    """Significant bits that hold every value, found from the scales alone; None where 24 do not."""
    note: str = ""
