"""The files for pipelines: they parse, and every command in them is one that the command line takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import ROOT, blocks, calls, unknown

FOLDER = ROOT / "playbooks" / "examples" / "ci"
FILES = sorted(FOLDER.rglob("*.yaml"))


def _read(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def _lines(value: Any) -> Iterator[str]:
    """Name every line of text anywhere in a file."""
    if isinstance(value, str):
        yield from value.splitlines()
    for below in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _lines(below)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_call_is_one_that_the_command_line_takes(path: Path) -> None:
    for line in _lines(_read(path)):
        for words in calls(line):
            assert unknown(words) == [], line


def test_both_templates_run_a_playbook_and_compare_it() -> None:
    for path in (FOLDER / "day0-action" / "action.yaml", FOLDER / "gitlab.yaml"):
        found = [words for line in _lines(_read(path)) for words in calls(line)]
        assert [words[0] for words in found] == ["run", "diff"], path


def test_a_value_never_becomes_a_part_of_a_script() -> None:
    for step in _read(FOLDER / "day0-action" / "action.yaml")["runs"]["steps"]:
        assert "${{" not in step.get("run", ""), step


def test_the_page_shows_the_lines_of_the_files() -> None:
    github, gitlab = (yaml.safe_load(one.text) for one in blocks("docs/ci.md") if one.kind == "yaml")
    assert github == _read(FOLDER / "github.yaml")["jobs"]["port"]["steps"]
    assert gitlab == _read(FOLDER / "gitlab_job.yaml")
    assert set(github[1]["with"]) <= set(_read(FOLDER / "day0-action" / "action.yaml")["inputs"])
    assert gitlab["port"]["extends"] in _read(FOLDER / "gitlab.yaml")


@pytest.mark.parametrize("text", ["day0 rum x", "day0 run x --cj", "day0 diff a b --gates"])
def test_a_call_that_it_does_not_take_is_seen(text: str) -> None:
    assert [unknown(words) for words in calls(text)] != [[]]
