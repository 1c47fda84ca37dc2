"""The samples of the operator's contract that have the heads and widths of real models."""

from __future__ import annotations

from functools import partial

from day0.analyzers.cases.forms._form import Form
from day0.analyzers.cases.forms.own_sample import derive, inputs

__all__ = ["FORM"]

FORM = Form(
    name="own_traced",
    why="heads and widths of models other than the traced one",
    derive=partial(derive, traced=True),
    inputs=inputs,
    thorough=True,
    once=True,
)
