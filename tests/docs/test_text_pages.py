"""The pages on traced inputs and on diffs: their commands run, their links lead somewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.test_readme import ROOT, _blocks, _run


@pytest.mark.parametrize("page", ["docs/traced_inputs.md", "docs/diff.md"])
def test_the_commands_of_a_page_run_in_order(page: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "playbooks", tmp_path / "playbooks")
    ran = 0
    for block in _blocks(page):
        if block.note.startswith("file: "):
            (tmp_path / block.note.removeprefix("file: ")).write_text(block.text + "\n")
        elif block.kind == "sh":
            _run(block, tmp_path)
            ran += 1
    assert ran >= 2
