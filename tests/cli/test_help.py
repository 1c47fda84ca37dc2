"""Every command has a page with examples, and every example is a command line that day0 takes."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from day0 import __version__
from day0.cli.app import app
from day0.cli.help_pages import examples_in, with_examples


def _walk(command: Any, words: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    below = [one for name, inner in getattr(command, "commands", {}).items() for one in _walk(inner, (*words, name))]
    return [(words, command), *below]


PAGES = {" ".join(words): command.help or "" for words, command in _walk(typer.main.get_command(app)) if words}
GROUPS = {"device", "ops"}
"""They do nothing alone."""


@pytest.mark.parametrize("words", sorted(PAGES.keys() - GROUPS))
def test_a_command_has_examples_and_they_parse(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[str] = []

    def resolve(path: str) -> Any:
        reached.append(path)
        return lambda **options: 0

    monkeypatch.setattr("day0.cli.options.resolve_name", resolve)
    text, examples = examples_in(PAGES[words])
    assert text, "it says nothing of what it does"
    assert examples, "it has no example"
    for _, line in examples:
        program, *arguments = shlex.split(line.partition(" > ")[0])
        assert program == "day0"
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, f"{line}\n{done.output}"
    assert len(reached) == len(examples)
    assert any(line.startswith(f"day0 {words}") for _, line in examples) or words in (
        "device faults",
        "convert checkpoint",
    )


@pytest.mark.parametrize("words", ["run", "diff", "ops diff", "check bisect"])
def test_examples_stand_at_the_end_on_lines_of_their_own(words: str) -> None:
    output = CliRunner().invoke(app, [*words.split(), "--help"]).output
    behind = output.partition("Options:")[2].partition("Examples:\n")[2]
    for title, line in examples_in(PAGES[words])[1]:
        assert f"\n  {line}\n" in f"\n{behind}".replace("\n    ", "\n  "), output
        assert not title or f"# {title}\n" in behind
    assert "Example: day0" not in output


def test_examples_are_found_in_all_forms() -> None:
    text = """Do it.

    Say more. Example: day0 a b --c "d: e"

    In words: day0 a f
    Example: day0 a g

    Is it there? day0 a h

    It is like this: no command."""
    kept, found = examples_in(text)
    assert [one.strip() for one in kept.split("\n\n")] == ["Do it.", "Say more.", "It is like this: no command."]
    assert found == [
        ("", 'day0 a b --c "d: e"'), ("In words", "day0 a f"), ("", "day0 a g"), ("Is it there?", "day0 a h"),
    ]  # fmt: skip


def test_a_page_is_put_in_order_once() -> None:
    command = typer.main.get_command(app).commands["status"]  # type: ignore[attr-defined]  # a group
    first = with_examples(command).epilog
    assert with_examples(command).epilog == first
    assert "day0 status --run runs/toy-on-sim" in first


def test_the_version_names_what_results_depend_on() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert done.exit_code == 0
    assert done.output.startswith(f"day0 {__version__} (torch ")
    assert ", Python 3." in done.output
    assert "device" not in done.output
