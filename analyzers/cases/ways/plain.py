"""One call."""

from __future__ import annotations

from typing import Any

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.cases.ways._way import Called, Way

__all__ = ["WAY"]


def _run(operator: Any, moved: CaseInputs, inputs: CaseInputs) -> Called:
    return Called(output=operator(*moved.args, **moved.kwargs))


WAY = Way(name="plain", why="what the model does", applies=lambda signature, contract: True, run=_run)
