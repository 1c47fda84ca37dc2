"""The files for pipelines: they parse, and every command in them is one that the command line takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from day0.cli.app import app
from tests.docs.pages import ROOT, blocks

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


def _calls(text: str) -> Iterator[list[str]]:
    """Name the words of every call of day0 in a line of shell."""
    for part in re.split(r"[;&|]+|\bthen\b", text):
        words = shlex.split(part, comments=True)
        if words[:1] == ["day0"] and words[1:]:
            yield words[1:]


def unknown(words: list[str]) -> list[str]:
    """Name the command, or the flags of it, that the command line does not have."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    if len(rest) == len(words):
        return words[:1]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return [word for word in rest if word.startswith("-") and word.partition("=")[0] not in known]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_call_is_one_that_the_command_line_takes(path: Path) -> None:
    for line in _lines(_read(path)):
        for words in _calls(line):
            assert unknown(words) == [], line


def test_both_templates_run_a_playbook_and_compare_it() -> None:
    for path in (FOLDER / "day0-action" / "action.yaml", FOLDER / "gitlab.yaml"):
        calls = [words for line in _lines(_read(path)) for words in _calls(line)]
        assert [words[0] for words in calls] == ["run", "diff"], path


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
    assert [unknown(words) for words in _calls(text)] != [[]]
