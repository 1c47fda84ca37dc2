"""torch's histogram with equal bins."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from day0.reference_ops._spec import Operator, Sample, Tolerance

__all__ = ["OP", "reference"]


def reference(
    self: torch.Tensor,
    bins: int = 100,
    min: float = 0,
    max: float = 0,
) -> torch.Tensor:
    """Return counts [bins] in the dtype of the input: values outside are left out, `max` falls into the last bin.

    With min equal to max the range is that of the data. Computed in float64, where torch has a kernel.
    """
    return torch.histc(self.to(torch.float64), bins, min, max).to(self.dtype)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Floats, integers with values outside, nothing at all, and the tokens of each of gpt-oss' 128 experts."""
    yield Sample(kind="small", args=(torch.rand(20, generator=generator), 5, 0, 1), kwargs={})
    yield Sample(kind="odd", args=(torch.randint(-2, 12, (33,), generator=generator), 7), kwargs={"min": 0, "max": 6})
    yield Sample(kind="corner", args=(torch.zeros(0, dtype=torch.int32), 3, 0, 2), kwargs={})
    experts = torch.randint(0, 128, (8 * 4,), generator=generator, dtype=torch.int32)
    yield Sample(kind="traced", args=(experts,), kwargs={"bins": 128, "min": 0, "max": 127})


OP = Operator(
    name="aten::histc",
    version=1,
    summary="histogram with equal bins",
    schema="",
    mathematics="count of values in [min + i w, min + (i + 1) w), w = (max - min) / bins, the last bin closed",
    source="torch.histc documentation",
    reference=reference,
    samples=samples,
    comparison="exact",
    tolerance=Tolerance(ratio=1.0, ceiling=0.0, ulps=0.0, reason="counts are integers"),
    verified_against="torch's own CPU kernel in float64",
)
