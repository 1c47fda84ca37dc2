"""Statuses of stages, cases and gates as words, and how they are to look."""

from __future__ import annotations

from typing import Literal

__all__ = ["CASES", "SIGNS", "STAGES", "tone", "word"]

_GOOD = frozenset({"pass"})
_BAD = frozenset({"fail", "crashed", "hung", "undelegated", "xpass", "died", "raised", "damaged", "unanswered"})
_WORDS = {"stale": "out of date", "missing": "not run"}

CASES: dict[str, str] = {
    "pass": "ran on the device, right",
    "fell_back": "right, but computed on the CPU: no proof for the device",
    "fail": "ran on the device, wrong",
    "undelegated": "the locked implementation never ran",
    "crashed": "raised an error",
    "hung": "did not end",
    "skipped": "could not be judged",
    "xfail": "fails as listed",
    "xpass": "is listed as failing, but passes",
}
"""What each status of a case means."""

STAGES: dict[str, str] = {
    "pass": "every rule of the stage is kept",
    "fail": "a rule is broken, or nothing could be judged",
    "stale": "its record does not belong to the records beside it",
    "missing": "there is no record yet",
    "skipped": "it was left out, with a reason",
    "undecided": "a gate whose interval holds its limit: more samples are needed",
    "damaged": "its record cannot be read",
}
"""What each status of a stage, a gate or a record means."""

SIGNS: dict[str, str] = {"good": "✓", "bad": "✗", "wait": "–"}
"""A sign for each tone, so that no colour has to tell."""


def tone(status: str) -> Literal["good", "bad", "wait"]:
    """Say whether a status is a success, a failure or neither."""
    return "good" if status in _GOOD else "bad" if status in _BAD else "wait"


def word(status: str) -> str:
    """Return a status as it is read."""
    return _WORDS.get(status, status.replace("_", " "))
