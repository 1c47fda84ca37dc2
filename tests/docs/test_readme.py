"""The documentation is run: every command block, in order, in one working folder."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.docs.pages import GUIDES, PAGES, ROOT, Block, blocks, calls, commands, shell, unknown


def _run(block: Block, cwd: Path) -> None:
    """Run the lines of one shell block; each has to end with the exit code that the note says, else 0."""
    expected = int(block.note.removeprefix("exit code: ")) if block.note.startswith("exit code: ") else 0
    for line in commands(block.text):
        done = shell(line, cwd)
        assert done.returncode == expected, f"{line}\n{done.stdout}\n{done.stderr}"


# Guides are run by test_guides.py: with a planted fault, and without.
RUN = [page for page in PAGES if page not in GUIDES and any(block.kind == "sh" for block in blocks(page))]
LONG = {
    "docs/canary.md",
    "docs/check.md",
    "docs/convert.md",
    "docs/devices.md",
    "docs/diff.md",
    "docs/evidence.md",
    "docs/fit.md",
    "docs/howto/gate_a_release.md",
    "docs/howto/port_a_model.md",
    "docs/howto/prove_a_kernel.md",
    "docs/implementations.md",
    "docs/model_check.md",
    "docs/sources.md",
    "docs/traced_inputs.md",
    "docs/tutorial/device_and_kernel.md",
    "docs/tutorial/first_report.md",
}
"""Pages that walk whole runs: ten seconds of a core to a minute each. Each time their commands are read, and not run."""


@pytest.mark.parametrize("page", [pytest.param(page, marks=[pytest.mark.slow] * (page in LONG)) for page in RUN])
def test_the_commands_run(page: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "playbooks", tmp_path / "playbooks")
    for block in blocks(page):
        if block.note.startswith("file: "):
            (tmp_path / block.note.removeprefix("file: ")).write_text(block.text + "\n")
        elif block.kind == "sh":
            _run(block, tmp_path)


def test_long_pages_are_pages() -> None:
    assert set(RUN) >= LONG


@pytest.mark.parametrize("page", sorted(LONG))
def test_the_command_line_takes_every_call_of_a_long_page(page: str) -> None:
    lines = [line for block in blocks(page) if block.kind == "sh" for line in commands(block.text)]
    found = [words for line in lines for words in calls(line)]
    assert found
    for words in found:
        assert unknown(words) == [], words


def test_the_pages_that_newcomers_read_first_have_commands() -> None:
    assert sum(block.kind == "sh" for block in blocks("README.md")) >= 1
    assert sum(block.kind == "sh" for block in blocks("docs/tutorial/first_report.md")) >= 3
    assert sum(block.kind == "sh" for block in blocks("docs/tutorial/device_and_kernel.md")) >= 4
    assert sum(block.kind == "sh" for block in blocks("CONTRIBUTING.md")) >= 1


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), target


def test_every_block_has_a_kind_that_somebody_knows() -> None:
    kinds = {block.kind for page in PAGES for block in blocks(page)}
    assert kinds <= {"sh", "console", "text", "python", "yaml", "toml"}
