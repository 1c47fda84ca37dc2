"""How good the check itself is: what became of every planted fault, and how often it cried wolf."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from day0.records._base import Record

__all__ = ["Alarm", "FaultScore", "Found", "How", "RightScore", "SelftestReport"]

How = Literal["values", "other_cases", "warned", "reported", "not_on_device", "raised", "missed", "not_measured"]
"""`values`: results at ordinary values are judged wrong. `other_cases`: only results for other values, or of other ways
to call. `warned`: each result is right, and there is the warning that this kind of fault asks for. `reported`: only a
call that stands in a report of the bug. `not_on_device`: results are right, and did not come from where they should.
`raised`: the device raised or died. `missed`: nothing of all that. `not_measured`: not on this level."""


class Found(Record):
    """What became of one fault on one level, operators or models."""

    how: How
    rule: str = ""
    """The rule that decided in the first case that shows what `how` says."""
    reached: int = 0
    """Cases in which the faulty kernel was called."""
    found: int = 0
    """Cases in which it was reported."""
    first: str = ""
    """Operator, arguments and values of the first of them; the module on the level of models."""
    reason: str = ""
    """What was reported, or why nothing was."""

    @property
    def is_found(self) -> bool:
        """Say whether the fault was reported."""
        return self.how not in ("missed", "not_measured")


class FaultScore(Record):
    """One planted fault."""

    name: str
    family: str
    source: str
    does: str
    operators: tuple[str, ...]
    held_out: bool
    """By the parity of the SHA-256 of its name: in the half that nobody looks at while the cases are made."""
    operator: Found
    model: Found
    usual: dict[str, bool]
    """By name of a usual rule: whether it objects to any result of the same cases; a raise counts for all of them."""

    @property
    def is_found(self) -> bool:
        """Say whether either level reports it."""
        return self.operator.is_found or self.model.is_found


class Alarm(Record):
    """Something right that was reported."""

    op: str
    shapes: str
    implementation: str
    case: str
    status: str
    rule: str
    reason: str


class RightScore(Record):
    """Cases in which nothing is wrong, and what was said of them."""

    subject: str
    """`clean device`, `kernel aten::topk base:rank_cut`, `difference topk_ties_other_way`."""
    level: Literal["operator", "model"] = "operator"
    judged: int
    alarms: tuple[Alarm, ...]
    usual_judged: int = 0
    usual: dict[str, int] = Field(default_factory=dict)
    """By name of a usual rule: to how many of these it objects."""


class SelftestReport(Record):
    """The whole: one row for each planted fault, one for each thing that is right."""

    device: str
    seeds: int
    usual: tuple[str, ...]
    """The usual rules that were measured beside the check, in the order of the tables."""
    faults: tuple[FaultScore, ...]
    right: tuple[RightScore, ...]
