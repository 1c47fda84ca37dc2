"""The page on sources is run: its files are written, then its commands, in one working folder."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.test_readme import ROOT, _blocks, _run

PAGE = "docs/sources.md"


def test_the_page_runs(tmp_path: Path) -> None:
    ran = 0
    for block in _blocks(PAGE):
        if block.note.startswith("file: "):
            (tmp_path / block.note.removeprefix("file: ")).write_text(block.text + "\n")
        elif block.kind == "sh":
            _run(block, tmp_path)
            ran += 1
    assert ran == 2


def test_its_links_lead_somewhere() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert all((ROOT / "docs" / target).exists() for target in re.findall(r"\]\(([^)#:]+)\)", text))
