"""Rows of a size that is no power of two, for operators that choose or order: with values that what fills a row up ties with."""

from __future__ import annotations

from collections.abc import Iterator

from day0.analyzers.cases.forms._form import Form
from day0.analyzers.cases.forms._resize import with_sizes
from day0.analyzers.cases.kinds import ties_matter
from day0.records import Signature
from day0.reference_ops._spec import Operator

__all__ = ["FORM"]

SIZE = 19
MOST = 1 << 13
"""Elements of the largest tensor of a derived call."""


def _derive(signature: Signature, contract: Operator | None) -> Iterator[tuple[str, Signature]]:
    if ties_matter(signature):
        yield from with_sizes(signature, [SIZE], MOST)


FORM = Form(
    name="odd_choices",
    why="rows that are filled up to a power of two: the filling must not be chosen, whatever value it ties with",
    derive=_derive,
    regimes=("non_finite", "ties"),
)
