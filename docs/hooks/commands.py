"""The pages on the commands: made from the command line itself, so that they cannot say anything else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from day0.cli.app import app

__all__ = ["on_config", "on_files", "pages"]

FOLDER = "reference/commands/"


def _inline(text: str) -> str:
    """Return text for a cell of a table or a heading: one line, nothing that Markdown or HTML would take for its own."""
    flat = " ".join(text.split())
    for sign in ("\\", "|", "<", ">", "*", "_", "[", "]"):
        flat = flat.replace(sign, f"&#{ord(sign)};")
    return flat


def _code(text: str) -> str:
    return f"<code>{_inline(text)}</code>" if text else ""


def _said(text: str) -> str:
    """Return help as Markdown: paragraphs as they are, examples as commands."""
    found: list[str] = []
    for line in (line.strip() for line in text.splitlines()):
        before, mark, command = line.partition(": day0 ")
        if mark:
            found.append(f"\n{_inline(before)}:\n\n```console\n$ day0 {command}\n```\n")
        else:
            found.append(_inline(line))
    return "\n".join(found).strip()


def _rows(command: Any, kind: str) -> Iterable[str]:
    for one in command.params:
        record = one.get_help_record(_context(command)) if one.param_type_name == kind else None
        if record and one.name != "help":
            yield f"| {_code(record[0])} | {_inline(record[1])} |"


def _context(command: Any) -> Any:
    return typer.Context(command, info_name=command.name)


def _table(command: Any, kind: str) -> str:
    rows = list(_rows(command, kind))
    if not rows:
        return ""
    return "\n".join([f"\n| {kind} | what it is |", "| --- | --- |", *rows, ""])


def _examples(command: Any) -> str:
    """Return what a help page ends with, as it stands there."""
    lines = [line for line in (command.epilog or "").splitlines() if line.strip() not in ("", "\b")]
    return "\n".join(["\n```text", *lines, "```\n"]) if lines else ""


def _subcommands(command: Any) -> dict[str, Any]:
    found: dict[str, Any] = getattr(command, "commands", {})
    return {name: one for name, one in found.items() if not one.hidden}


def _section(command: Any, words: str, level: int) -> str:
    usage = " ".join(command.collect_usage_pieces(_context(command)))
    parts = [
        f"{'#' * level} day0 {words}\n",
        f"```text\nday0 {words} {usage}\n```\n",
        _said(command.help or ""),
        _table(command, "argument"),
        _table(command, "option"),
        _examples(command),
    ]
    below = [_section(one, f"{words} {name}", level + 1) for name, one in _subcommands(command).items()]
    return "\n".join([*parts, *below])


def pages() -> dict[str, str]:
    """Return the Markdown of every page on commands, by its place on the site."""
    root: Any = typer.main.get_command(app)
    names = root.list_commands(_context(root))
    rows = [
        f"| [`day0 {name}`]({name}.md) | {_inline(root.commands[name].get_short_help_str(200))} |" for name in names
    ]
    index = "\n".join(["# Commands\n", _said(root.help or ""), "\n| command | what it does |", "| --- | --- |", *rows])
    return {
        f"{FOLDER}index.md": f"{index}\n\n{EXIT_CODES}",
        **{f"{FOLDER}{name}.md": _section(root.commands[name], name, 1) for name in names},
    }


EXIT_CODES = """## Exit codes

| code | meaning |
| --- | --- |
| 0 | fine |
| 1 | a gate or a check failed |
| 2 | you can repair it: bad input, a missing extra, no such device. The message says how |
| 3 | a bug of day0: a log is saved, and its path is printed |
| 125 | cannot tell: too few questions, or a bisection without an answer |
| 130 | interrupted |
"""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages where the navigation names their folder."""
    _fill(config.nav, FOLDER, list(pages()))
    return config


def _fill(nav: Any, folder: str, found: list[str]) -> None:
    for entry in nav if isinstance(nav, list) else ():
        for title, below in entry.items() if isinstance(entry, dict) else ():
            if below == folder:
                entry[title] = list(found)
            else:
                _fill(below, folder, found)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for place, text in pages().items():
        files.append(File.generated(config, place, content=text))
    return files
