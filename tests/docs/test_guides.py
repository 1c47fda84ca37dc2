"""The guides are followed: every command with the planted fault and without it, and each prints what the page says."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from day0.devices.faults.load import load_faults
from tests.analyzers.endpoint.served import Service, serve
from tests.analyzers.endpoint.tiny import perturbed, save_tiny
from tests.docs.pages import GUIDES, ROOT, Block, blocks, commands, shell

FAULT = re.compile(r"\*\*Fault to try it with:\*\* `(\w+)`")
RIGHT, WRONG, BOTH = "Without it", "With the fault", "It prints"
FOLLOWED = [page for page in GUIDES if not page.endswith(("README.md", "endpoint_differs.md"))]
QUICK = {
    "right": ("one_operator_fails",),
    "wrong": ("one_operator_fails", "operator_missing"),
}
"""Guides that are followed each time, without a fault and with it; the others are in the long suite."""
FIRST = "playbooks/guides/README.md"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A command block with what the page says that it prints."""

    block: Block
    said: tuple[Block, ...]

    def code(self, planted: bool) -> int:
        """Return the exit code that the page promises."""
        found = re.search(r"exit code( with the fault)?: (\d+)", self.block.note)
        return int(found[2]) if found and (planted or not found[1]) else 0

    def lines(self, planted: bool) -> Iterator[str]:
        """Name the lines that have to be printed."""
        notes = (BOTH, WRONG if planted else RIGHT)
        return (line for one in self.said if one.note in notes for line in one.text.splitlines() if line.strip())


def steps(page: str, kind: str = "sh") -> list[Step]:
    """Return the command blocks of a guide, each with the blocks of text that follow it."""
    found: list[tuple[Block, list[Block]]] = []
    for block in blocks(page):
        if block.kind == kind:
            found.append((block, []))
        elif block.kind == "text" and found and not block.note.startswith("file: "):
            found[-1][1].append(block)
    return [Step(block=block, said=tuple(said)) for block, said in found]


def fault_of(page: str) -> str:
    found = FAULT.search((ROOT / page).read_text(encoding="utf-8"))
    return found[1] if found else ""


def misses(line: str, printed: str) -> bool:
    """Say whether a line is not in what was printed; `…` stands for anything, and white space does not count."""
    at, flat = 0, " ".join(printed.split())
    for piece in (" ".join(part.split()) for part in line.split("…")):
        at = flat.find(piece, at)
        if at < 0:
            return True
        at += len(piece)
    return False


def follow(step: Step, cwd: Path, plant: str = "") -> None:
    """Run a step's commands, with a fault if one is named, and compare what they print."""
    printed = ""
    for line in commands(step.block.text):
        planted = plant and line.startswith(("day0 check", "day0 canary"))
        done = shell(f"{line} --plant {plant}" if planted else line, cwd, COLUMNS="110", NO_COLOR="1")
        printed += done.stdout + done.stderr
        assert done.returncode == step.code(bool(plant)), f"{line}\n{printed}"
    missing = [line for line in step.lines(bool(plant)) if misses(line, printed)]
    assert not missing, f"{step.block.text}\nprints no {missing}\n{printed}"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder that the first page of the guides makes."""
    cwd = tmp_path_factory.mktemp("guides")
    for block in blocks(FIRST):
        if block.note.startswith("file: "):
            (cwd / block.note.removeprefix("file: ")).write_text(block.text + "\n")
    for step in steps(FIRST):
        follow(step, cwd)
    return cwd


def followed(which: str) -> list[Any]:
    """Return the guides as parameters; those that are not quick are marked."""
    return [one if Path(one).stem in QUICK[which] else pytest.param(one, marks=pytest.mark.slow) for one in FOLLOWED]


def copied(small: Path, to: Path) -> Path:
    shutil.copytree(small, to)
    return to


@pytest.mark.parametrize("page", followed("wrong"))
def test_a_guide_leads_to_its_planted_fault(page: str, small: Path, tmp_path: Path) -> None:
    plant, cwd = fault_of(page), copied(small, tmp_path / "wrong")
    for step in steps(page):
        follow(step, cwd, plant)


@pytest.mark.parametrize("page", followed("right"))
def test_without_the_fault_a_guide_says_so(page: str, small: Path, tmp_path: Path) -> None:
    cwd = copied(small, tmp_path / "right")
    for step in steps(page):
        # What no fault can change was run by the other test.
        changes = step.block.text.startswith(("day0 check", "day0 canary")) and fault_of(page)
        if changes and not step.block.note.startswith("only with the fault"):
            follow(step, cwd)


@pytest.mark.parametrize("page", [page for page in FOLLOWED if fault_of(page)])
def test_the_operator_that_was_made_wrong_is_named(page: str) -> None:
    fault = load_faults()[fault_of(page)]
    said = " ".join(one.text for step in steps(page) for one in step.said if one.note == WRONG)
    names = {name.partition(".")[0] for name in fault.operators} | {
        f"aten::_safe{name[6:]}" for name in fault.operators
    }
    assert any(name in said for name in names), (page, sorted(names))


@pytest.mark.slow
def test_the_guide_to_endpoints_with_a_right_server_and_a_wrong_one(tmp_path: Path) -> None:
    page = "playbooks/guides/endpoint_differs.md"
    right = save_tiny(tmp_path / "checkpoint")
    wrong = perturbed(right, tmp_path / "changed", by=40.0)
    prompts = next(block for block in blocks(page) if block.note.startswith("file: "))
    (tmp_path / "prompts.jsonl").write_text(prompts.text + "\n")
    found = steps(page, "console")
    assert len(found) == 2
    for folder, planted in ((right, False), (wrong, True)):
        with serve(Service(folder=folder)) as asked, serve(Service(folder=right)) as other:
            for step in found:
                line = step.block.text.replace("http://127.0.0.1:8000", asked.url)
                done = shell(line.replace("http://127.0.0.1:8001", other.url), tmp_path, COLUMNS="110", NO_COLOR="1")
                printed = done.stdout + done.stderr
                assert done.returncode == step.code(planted), printed
                assert not [one for one in step.lines(planted) if misses(one, printed)], printed


@pytest.mark.parametrize("page", [page for page in GUIDES if not page.endswith("README.md")])
def test_every_question_has_an_answer_and_a_way_on(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "**You see:**" in text and "**Fault to try it with:**" in text
    sections = text.split("\n## ")[1:]
    assert len(sections) >= 2
    assert all(one.note in (RIGHT, WRONG, BOTH, "file: prompts.jsonl") for one in blocks(page) if one.kind == "text")
    for section in sections:
        assert section.splitlines()[0].endswith("?"), section.splitlines()[0]
        assert "](" in section or "next question" in section, section.splitlines()[0]


def test_a_line_that_is_not_printed_is_missed() -> None:
    assert not misses("a b … d", "a   b\n c d")
    assert misses("d … a", "a b c d")
    assert misses("a c", "a b c d")
