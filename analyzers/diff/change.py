"""One change, and the changes of one kind of record: plain data that the screen and `--json` both show."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from day0.records import Record

__all__ = ["Change", "Diff", "Effect", "Part", "arrow", "layer_free", "most", "ordered"]

Effect = Literal["worse", "better", "other"]


class Change(Record):
    """One thing that is not as it was."""

    kind: str
    """What sort of change: `appeared`, `dtype`, `verdict`, `error`, … (see the file of the record's kind)."""
    effect: Effect = "other"
    """`worse` fails `day0 diff` where both sides are of one model on one device; most changes of a trace are neither."""
    subject: str
    """The operator, the stage or the metric."""
    old: str = ""
    new: str = ""
    where: str = ""
    """Module, layers written as `*`, or phase."""
    reason: str = ""
    calls: int = 0
    weight: float = 0.0
    """How much it matters among changes of its kind: work that it moves, or growth."""


class Part(Record):
    """The changes of one kind of record, most important first."""

    name: str
    """`trace`, `inventory`, …"""
    summary: str
    same: int
    """How many signatures, cases or stages are as they were."""
    changes: tuple[Change, ...]


class Diff(Record):
    """Two sides and what differs."""

    old: str
    new: str
    warnings: tuple[str, ...] = ()
    """Why figures of the two sides may not be comparable."""
    parts: tuple[Part, ...]

    def count(self, effect: Effect) -> int:
        """Return how many changes have an effect."""
        return sum(one.effect == effect for part in self.parts for one in part.changes)


_RANK: dict[str, int] = {"worse": 0, "better": 1, "other": 2}


def ordered(changes: Iterable[Change], kinds: tuple[str, ...]) -> tuple[Change, ...]:
    """Sort: what is worse first, then by kind in the order given, then by weight."""
    place = {name: number for number, name in enumerate(kinds)}
    return tuple(
        sorted(changes, key=lambda c: (_RANK[c.effect], place.get(c.kind, 99), -c.weight, c.subject, c.where, c.new))
    )


def layer_free(path: str) -> str:
    """Return a module path with every number in it as `*`: the same place in every layer."""
    return re.sub(r"(?<=\.)[0-9]+(?=\.|$)", "*", path)


def arrow(old: float, new: float, form: str = ",.0f") -> str:
    """Return `old → new` with one format."""
    return f"{old:{form}} → {new:{form}}"


def most(texts: Iterable[str], limit: int = 2) -> str:
    """Return the first few different texts and how many more there are."""
    found = list(dict.fromkeys(texts))
    more = f" and {len(found) - limit} more" if len(found) > limit else ""
    return ", ".join(found[:limit]) + more
