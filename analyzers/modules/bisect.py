"""The parts that make a check fail, by delta debugging over subsets (Zeller and Hildebrandt, 2002).

It also works where two parts are only bad together, or where there are several causes. One sample can blame the wrong
part, so several are asked and their agreement is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

__all__ = ["Agreement", "Answer", "Sample", "agree", "bisect_sample", "smallest_bad"]

Answer = Literal["good", "bad", "unknown"]
Ask = Callable[[frozenset[int]], Answer]
"""Says what the check says with these parts on and all others off; parts are numbers from 0."""

MOST_CAUSES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """What one sample says."""

    seed: int
    outcome: Literal["found", "passes", "fails_without", "flaky", "unknown"]
    reason: str
    causes: tuple[frozenset[int], ...] = ()
    """Sets of parts; the members of one are only bad together."""
    runs: int = 0
    """How often the command was run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """What the samples say together."""

    verdict: Literal["agreed", "suspected", "disagreed", "not_found"]
    reason: str
    causes: tuple[tuple[frozenset[int], int], ...]
    """Each cause with the number of samples that found it, most first."""


def bisect_sample(parts: int, seed: int, run: Ask) -> Sample:
    """Find the parts that make one sample fail. `run` runs the check; answers are kept, and asked twice where it counts."""
    known: dict[frozenset[int], Answer] = {}
    runs = 0

    def again(on: frozenset[int]) -> Answer:
        nonlocal runs
        runs += 1
        known[on] = run(on)
        return known[on]

    def ask(on: frozenset[int]) -> Answer:
        return known[on] if on in known else again(on)

    def said(outcome: Literal["found", "passes", "fails_without", "flaky", "unknown"], reason: str) -> Sample:
        return Sample(seed=seed, outcome=outcome, reason=reason, causes=tuple(causes), runs=runs)

    causes: list[frozenset[int]] = []
    every = frozenset(range(parts))
    first = again(every)
    if first != again(every):
        return said("flaky", "with everything on, it gives another answer the second time")
    if first != "bad":
        outcome: Literal["passes", "unknown"] = "passes" if first == "good" else "unknown"
        return said(outcome, "it does not fail" if first == "good" else "the check cannot tell, with everything on")
    none = ask(frozenset())
    if none != "good":
        fails: Literal["fails_without", "unknown"] = "fails_without" if none == "bad" else "unknown"
        return said(
            fails,
            "it fails with all of them off, so none of them is the cause"
            if none == "bad"
            else "the check cannot tell, with all off",
        )
    left = every
    while len(causes) < MOST_CAUSES and ask(left) == "bad":
        cause = smallest_bad(left, ask)
        if again(cause) != "bad":
            return said("flaky", "the smallest part that failed passes the second time")
        causes.append(cause)
        left -= cause
    return said("found", f"{len(causes)} causes" if len(causes) > 1 else "one cause")


def smallest_bad(bad: frozenset[int], ask: Ask) -> frozenset[int]:
    """Return a subset of a bad set that is bad, and good or undecided without any one of its members."""
    pieces = 2
    while len(bad) > 1:
        parts = _split(sorted(bad), pieces)
        smaller = next(
            (one for one in (*parts, *(bad - one for one in parts)) if one < bad and ask(one) == "bad"), None
        )
        if smaller is not None:
            pieces = 2 if smaller in parts else max(2, pieces - 1)
            bad = smaller
        elif pieces >= len(bad):
            break
        else:
            pieces = min(len(bad), 2 * pieces)
    return bad


def _split(members: list[int], pieces: int) -> list[frozenset[int]]:
    size, extra = divmod(len(members), pieces)
    found, begin = [], 0
    for number in range(pieces):
        end = begin + size + (number < extra)
        found.append(frozenset(members[begin:end]))
        begin = end
    return [one for one in found if one]


def agree(samples: list[Sample]) -> Agreement:
    """Say what several samples agree on. One sample alone suspects, and never blames."""
    failing = [one for one in samples if one.outcome == "found"]
    counts: dict[frozenset[int], int] = {}
    for one in failing:
        for cause in one.causes:
            counts[cause] = counts.get(cause, 0) + 1
    causes = tuple(sorted(counts.items(), key=lambda item: (-item[1], sorted(item[0]))))
    if not failing:
        return Agreement(verdict="not_found", reason=_why_none(samples), causes=())
    if len(failing) == 1:
        return Agreement(
            verdict="suspected", reason="one sample alone fails: too little to blame anything", causes=causes
        )
    if causes[0][1] == len(failing):
        others = sum(one.outcome == "flaky" for one in samples)
        more = f"; {others} samples were flaky" if others else ""
        return Agreement(verdict="agreed", reason=f"all {len(failing)} samples that fail agree{more}", causes=causes)
    reason = f"the {len(failing)} samples that fail do not agree"
    return Agreement(verdict="disagreed", reason=reason, causes=causes)


def _why_none(samples: list[Sample]) -> str:
    for outcome in ("fails_without", "flaky", "unknown"):
        found = next((one for one in samples if one.outcome == outcome), None)
        if found is not None:
            return f"sample {found.seed}: {found.reason}"
    return "the check does not fail"
