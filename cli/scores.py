"""`day0 check scores`: two files of answers, read with care."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from day0.analyzers.modules.scores import Answers, Comparison, compare_scores
from day0.cli.talk import Talk
from day0.errors import Day0Error, ExitCode
from day0.textfile import numbered_lines, read_text

__all__ = ["CANNOT_TELL", "scores"]

CANNOT_TELL = 125
"""The exit code with which checks say so; `day0 check bisect` and git understand it."""
MAX_BYTES = 64 << 20
_HINT = 'write a JSON list, or a line for each question, of 0, 1, true, false or {"id": ..., "correct": ...}'


def scores(*, before: Path, after: Path, drop: float, confidence: float, json: bool) -> int:
    """Compare two files of answers. Exit codes: 0 pass, 1 fail, 125 cannot tell."""
    (old, named_old), (new, named_new) = _read(before), _read(after)
    paired = named_old and named_new
    if paired and old.keys() != new.keys():
        lone = sorted(old.keys() ^ new.keys())
        raise Day0Error(
            str(after),
            f"it answers other questions than {before}: {len(lone)} stand in one file alone",
            facts=tuple(f"{name[:80]}: only in {before if name in old else after}" for name in lone[:5]),
            hint="ask both the same questions, or leave the ids away in one file",
        )
    found = compare_scores(old, new, paired=paired, drop=drop, confidence=confidence)
    _say(Talk(as_json=json), found)
    if json:
        print(jsonlib.dumps(asdict(found), indent=1))
    return {"pass": int(ExitCode.OK), "fail": int(ExitCode.GATE_FAILED), "cannot tell": CANNOT_TELL}[found.answer]


def _say(talk: Talk, found: Comparison) -> None:
    for name, score, span, count in zip(
        ("before", "after"), found.scores, found.intervals, found.questions, strict=True
    ):
        talk.say(f"{name:<7}{score:6.1%} of {count} questions, {span[0]:.1%} to {span[1]:.1%}")
    how = "the same questions, one by one" if found.paired else "as two independent sets of questions"
    talk.say(f"compared {how}")
    colour = {"pass": "green", "fail": "red", "cannot tell": "yellow"}[found.answer]
    talk.say(f"[{colour}]{found.answer}[/{colour}]: {found.reason}")


def _read(path: Path) -> tuple[Answers, bool]:
    """Return the answers by question, and whether the file names its questions."""
    values = _values(path)
    if not values:
        raise Day0Error(str(path), "it has no answers", hint=_HINT)
    named = isinstance(values[0], dict)
    answers: Answers = {}
    for number, value in enumerate(values, start=1):
        name, right = _answer(path, number, value, named=named)
        if name in answers:
            raise Day0Error(str(path), f"question {name[:80]!r} is answered twice", hint="keep one answer of each")
        answers[name] = right
    return answers, named


def _values(path: Path) -> list[Any]:
    text = read_text(path, most=MAX_BYTES, kind="a list of answers", hint=_HINT)
    if text.lstrip().startswith("["):
        found = _parsed(path, text, "the list")
        return found if isinstance(found, list) else [found]
    return [_parsed(path, line, f"line {number}") for number, line in numbered_lines(text)]


def _parsed(path: Path, text: str, where: str) -> Any:
    try:
        return jsonlib.loads(text)
    except (ValueError, RecursionError) as error:
        raise Day0Error(str(path), f"{where} is not JSON: {str(error)[:100]}", hint=_HINT) from None


def _answer(path: Path, number: int, value: Any, *, named: bool) -> tuple[str, bool]:
    if isinstance(value, dict) != named:
        raise Day0Error(str(path), f"answer {number} is of another kind than the first", hint=_HINT)
    name, right = str(number), value
    if named:
        if not isinstance(value.get("id"), (str, int)) or isinstance(value.get("id"), bool) or "correct" not in value:
            raise Day0Error(str(path), f"answer {number} has no id or no 'correct'", hint=_HINT)
        name, right = str(value["id"]), value["correct"]
    if right not in (0, 1) or not isinstance(right, (bool, int)):
        raise Day0Error(str(path), f"answer {number} is {str(right)[:40]!r}, neither right nor wrong", hint=_HINT)
    return name, bool(right)
