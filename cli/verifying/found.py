"""What a check of evidence found, to be added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from day0.records import EvidenceProblem, VerifyReport

__all__ = ["Found", "summed"]


@dataclass(kw_only=True, slots=True)
class Found:
    """Problems, how much was recomputed, and what could not be."""

    problems: list[EvidenceProblem] = field(default_factory=list)
    checked: Counter[str] = field(default_factory=Counter)
    unchecked: list[str] = field(default_factory=list)

    def bad(self, file: str, what: str, part: str = "") -> None:
        """Name a file, and the part of it where that is known."""
        self.problems.append(EvidenceProblem(file=file, field=part, what=what))


def summed(parts: Iterable[Found]) -> VerifyReport:
    """Return everything in one record: problems by file, nothing twice."""
    found = tuple(parts)
    problems = {(one.file, one.field, one.what): one for part in found for one in part.problems}
    checked: Counter[str] = Counter()
    for part in found:
        checked.update(part.checked)
    return VerifyReport(
        problems=tuple(problems[key] for key in sorted(problems)),
        checked=dict(checked),
        unchecked=tuple(dict.fromkeys(text for part in found for text in part.unchecked)),
    )
