"""Help pages: what a command does, then its examples, each on a line of its own that can be copied."""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.core import TyperGroup

__all__ = ["Example", "HelpGroup", "examples_in", "with_examples"]

Example = tuple[str, str]
"""What it is for, which may be empty, and the command line."""

_FIRST = re.compile(r"(?:^|(?<=[.!?)] ))(?P<title>[A-Z][^.`?:]*)(?P<end>[:?]) (?=day0 )")


def examples_in(text: str) -> tuple[str, list[Example]]:
    """Take the examples out of a docstring: `Example: day0 …` or `In words: day0 …`, up to the end of a paragraph."""
    kept: list[str] = []
    found: list[Example] = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        joined = " ".join(paragraph.split())
        first = _FIRST.search(joined)
        if first is None:
            kept.append(paragraph)
            continue
        if before := joined[: first.start()].strip():
            kept.append(before)
        found += _split(joined[first.start() :])
    return "\n\n".join(kept), found


def _split(text: str) -> list[Example]:
    text = text.replace(" Example: day0", ". Example: day0")  # a command line ends without a stop
    starts = list(_FIRST.finditer(text))
    ends = [*(one.start() for one in starts[1:]), len(text)]
    return [(_title(one), text[one.end() : end].strip().rstrip(".")) for one, end in zip(starts, ends, strict=True)]


def _title(found: re.Match[str]) -> str:
    return "" if found["title"] == "Example" else found["title"] + found["end"].rstrip(":")


def with_examples(command: Any) -> Any:
    """Move the examples of a command, and of those below it, to the end of its page. Once done, nothing is left to do."""
    text, found = examples_in(command.help or "")
    if found:
        lines = [line for title, example in found for line in ([f"  # {title}"] if title else []) + [f"  {example}"]]
        command.help = text
        command.epilog = "\n".join(("\b", "Examples:", *lines))
    for below in getattr(command, "commands", {}).values():
        with_examples(below)
    return command


class HelpGroup(TyperGroup):
    """A group whose commands have their examples at the end of their pages."""

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]  # typer's own context
        """Return a command by name, its page in order."""
        command = super().get_command(ctx, cmd_name)
        return None if command is None else with_examples(command)
