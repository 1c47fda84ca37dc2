"""How every call was judged."""

from __future__ import annotations

from typing import Literal

from day0.records._base import Record
from day0.records.modules import ModelCheck

__all__ = ["GOOD_STATUSES", "WARNING", "CaseResult", "CaseStatus", "NumericsReport"]


CaseStatus = Literal["pass", "fail", "fell_back", "undelegated", "crashed", "hung", "skipped", "xfail", "xpass"]

GOOD_STATUSES: frozenset[CaseStatus] = frozenset({"pass", "fell_back", "skipped", "xfail"})
"""Statuses that do not fail the stage, but for a fallback that nobody declared."""

WARNING = "warning: "
"""How a note begins that somebody has to know, though nothing is wrong."""


class CaseResult(Record):
    """One call with one set of values, judged."""

    case: str
    """Key of the case: signature, value regime and seed."""
    signature: str
    op: str
    shapes: str
    implementation: str
    """`native` or the identity of the locked implementation."""
    regime: str
    seed: int
    status: CaseStatus
    rule: str
    """The rule that decided."""
    reason: str
    golden: str = ""
    """What it was measured against, for example `float64 on cpu`."""
    error: float | None = None
    """Relative L2 error against the golden."""
    yardstick: float | None = None
    """The same error of the same-dtype reference on the CPU: what the dtype itself costs."""
    limit: float | None = None
    """The largest error that would have passed."""
    needed: float | None = None
    """The smallest limit with which it would have passed: of a case that failed, its own error."""
    worst_index: tuple[int, ...] | None = None
    worst_got: str = ""
    worst_expected: str = ""
    notes: tuple[str, ...] = ()
    """What was seen beside the verdict: output that the kernel printed, processes it left behind, values left out."""
    seconds: float | None = None
    """Wall time of the case. Kept while a check runs, left out of the report: that is equal for equal inputs."""
    reproducer: str = ""
    """Path below the run folder, for a failed case."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is within the rules, and shows in a model all the same."""
        return tuple(one.removeprefix(WARNING) for one in self.notes if one.startswith(WARNING))

    @property
    def failed(self) -> bool:
        """Whether it fails the stage. A kernel that went to the CPU in silence does; a declared fallback does not."""
        return self.status not in GOOD_STATUSES or (self.status == "fell_back" and self.rule == "ran")


class NumericsReport(Record):
    """Every case with its status."""

    device: str
    lock: str
    seed: int
    cases: tuple[CaseResult, ...]
    model: ModelCheck | None = None
    """The model level; None where only operators were checked."""
