"""The list of decisions: made from their titles, so that a new page in docs/decisions/ is all there is to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

__all__ = ["on_config", "on_files", "titles"]

FOLDER = "decisions/"
HEAD = """# Decisions

Each page has a question, the choice, what was turned down, and who is affected. A looser tolerance, another reference or
another schema needs one.
"""


def titles(folder: Path) -> dict[str, str]:
    """Return the first heading of every decision, by file name. Raises PluginError for a page that has none."""
    found = {}
    for path in sorted(folder.glob("[0-9]*.md")):
        first, _, _ = path.read_text(encoding="utf-8").partition("\n")
        if not first.startswith("# "):
            raise PluginError(f"{path}: a decision begins with a heading")
        found[path.name] = first.removeprefix("# ")
    return found


def _folder(config: MkDocsConfig) -> Path:
    return Path(config.docs_dir) / FOLDER


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the list and the pages where the navigation names their folder."""
    _fill(config.nav, [f"{FOLDER}index.md", *(f"{FOLDER}{name}" for name in titles(_folder(config)))])
    return config


def _fill(nav: Any, found: list[str]) -> None:
    for entry in nav if isinstance(nav, list) else ():
        for title, below in entry.items() if isinstance(entry, dict) else ():
            if below == FOLDER:
                entry[title] = found
            else:
                _fill(below, found)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the list."""
    rows = [f"- [{title}]({name})" for name, title in titles(_folder(config)).items()]
    files.append(File.generated(config, f"{FOLDER}index.md", content="\n".join([HEAD, *rows, ""])))
    return files
