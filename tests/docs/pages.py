"""Pages of documentation as the tests see them: their code blocks, with the comment that stands above each."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from day0.cli.app import app
from tests.warm import shim

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(
    r"(?:<!-- (?P<note>[^\n]*?) -->\n|^(?P<label>With the fault|Without it|It prints)[^\n]*:\n\n)?"
    r"```(?P<kind>\w+)\n(?P<text>.*?)\n```",
    re.DOTALL | re.MULTILINE,
)


def _found(*patterns: str) -> tuple[str, ...]:
    return tuple(sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)))


GUIDES = _found("playbooks/guides/*.md")
PAGES = ("README.md", "CONTRIBUTING.md", *_found("docs/**/*.md", "playbooks/examples/*/*.md"), *GUIDES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A code block: its language, the comment or (in guides) the first words of the line above it, and its text."""

    kind: str
    note: str
    text: str


def blocks(page: str) -> list[Block]:
    """Return the code blocks of a page in their order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = BLOCK.finditer(text)
    return [Block(kind=one["kind"], note=one["note"] or one["label"] or "", text=one["text"]) for one in found]


def commands(text: str) -> list[str]:
    """Split a block into commands: a line each, but for one whose quotes are still open."""
    found: list[str] = []
    for line in text.splitlines():
        if found and found[-1].count('"') % 2:
            found[-1] += f"\n{line}"
        else:
            found.append(line)
    return found


def shell(line: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one command line, with the program `day0` of the warm server in front of the path."""
    path = os.pathsep.join((str(shim()), str(Path(sys.executable).parent), os.environ["PATH"]))
    merged = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(["bash", "-c", line], cwd=cwd, env=merged, capture_output=True, text=True, check=False)


def calls(text: str) -> Iterator[list[str]]:
    """Name the words of every call of day0 in a line of shell."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in (*lexer, ";"):
        if set(word) <= set(";&|") or word == "then":
            if words[:1] == ["day0"] and words[1:]:
                yield words[1:]
            words = []
        else:
            words.append(word)


def unknown(words: list[str]) -> list[str]:
    """Name the command, or the flags of it, that the command line does not have."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    if len(rest) == len(words):
        return words[:1]
    # `day0 convert A B` is short for `day0 convert checkpoint A B`.
    command = getattr(command, "commands", {}).get("checkpoint", command)
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return [word for word in rest if word.startswith("-") and word.partition("=")[0] not in known]
