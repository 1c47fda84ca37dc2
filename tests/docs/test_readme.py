"""The documentation is run: every command block, in order, in one working folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.warm import shim

ROOT = Path(__file__).resolve().parents[2]
DOCS = tuple(sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
EXAMPLES = tuple(sorted(str(path.relative_to(ROOT)) for path in (ROOT / "playbooks" / "examples").glob("*/*.md")))
PAGES = ("README.md", "CONTRIBUTING.md", *DOCS, *EXAMPLES)
BLOCK = re.compile(r"(?:<!-- (?P<note>[^\n]*?) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)\n```", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    kind: str
    note: str
    text: str


def _blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(kind=one["kind"], note=one["note"] or "", text=one["text"]) for one in BLOCK.finditer(text)]


def _commands(text: str) -> list[str]:
    """Split a block into commands: a line each, but for one whose quotes are still open."""
    found: list[str] = []
    for line in text.splitlines():
        if found and found[-1].count('"') % 2:
            found[-1] += f"\n{line}"
        else:
            found.append(line)
    return found


def _run(block: Block, cwd: Path) -> None:
    """Run the lines of one shell block; each has to end with the exit code that the note says, else 0."""
    expected = int(block.note.removeprefix("exit code: ")) if block.note.startswith("exit code: ") else 0
    path = os.pathsep.join((str(shim()), str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    for line in _commands(block.text):
        done = subprocess.run(
            ["bash", "-c", line], cwd=cwd, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == expected, f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", [page for page in PAGES if any(block.kind == "sh" for block in _blocks(page))])
def test_the_commands_run(page: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "playbooks", tmp_path / "playbooks")
    for block in _blocks(page):
        if block.note.startswith("file: "):
            (tmp_path / block.note.removeprefix("file: ")).write_text(block.text + "\n")
        elif block.kind == "sh":
            _run(block, tmp_path)


def test_the_pages_that_newcomers_read_first_have_commands() -> None:
    assert sum(block.kind == "sh" for block in _blocks("README.md")) >= 6
    assert sum(block.kind == "sh" for block in _blocks("CONTRIBUTING.md")) >= 1


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), target


def test_every_block_has_a_kind_that_somebody_knows() -> None:
    kinds = {block.kind for page in PAGES for block in _blocks(page)}
    assert kinds <= {"sh", "console", "text", "python", "yaml", "toml"}
