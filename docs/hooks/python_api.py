"""The pages on the Python interface: made from docstrings and annotations, without importing the code.

A module is shown if it has `__all__`, if its name does not begin with an underscore, and if it lies in a folder itself or in
one of the subfolders that programs of others import from. Other subfolders are the inside of what stands beside them.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

__all__ = ["on_config", "on_files", "pages"]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "reference/python/"
FOLDERS = {
    "day0": "day0",
    "reference_ops": "day0.reference_ops",
    "devices": "day0.devices",
    "converters": "day0.converters",
    "kernels": "day0.kernels",
    "registry": "day0.registry",
    "models": "day0.models",
    "analyzers": "day0.analyzers",
    "reports": "day0.reports",
}
"""In the order in which they may import each other; cli/ is described by the pages on commands."""
SUBFOLDERS = ("converters/online", "day0/records", "devices/faults", "devices/sim", "models/toy", "registry/export")


def _modules(folder: str) -> Iterable[tuple[str, Path]]:
    """Name the modules of a folder that are shown, and their files."""
    below = [ROOT / one for one in SUBFOLDERS if one.startswith(f"{folder}/")]
    for path in (path for place in (ROOT / folder, *below) for path in sorted(place.glob("*.py"))):
        parts = path.relative_to(ROOT / folder).with_suffix("").parts
        inner = parts[:-1] if parts[-1] == "__init__" else parts
        if not any(part.startswith("_") for part in inner):
            yield ".".join((FOLDERS[folder], *inner)), path


def _text(docstring: Any) -> str:
    """Return a docstring as Markdown, with nothing in it that HTML would take for its own."""
    return str(docstring.value).replace("<", "&lt;") if docstring else ""


def _members(one: Any) -> Iterable[Any]:
    """Name the fields and methods of a class that are not private and were written in it."""
    for name, member in one.members.items():
        if not name.startswith("_") and not member.is_alias:
            yield member


def _signature(one: Any) -> str:
    """Return a signature as HTML; hundreds of them are too many for a highlighter."""
    found = str(one.signature(name=one.name))
    if len(found) > 100:
        found = found.replace("(", "(\n    ", 1).replace(", ", ",\n    ")
    return f"\n<pre><code>{html.escape(found, quote=False)}</code></pre>\n"


def _field(one: Any) -> str:
    kind = f": `{one.annotation}`" if one.annotation is not None else ""
    said = " ".join(_text(one.docstring).split())
    return f"- `{one.name}`{kind}" + (f": {said}" if said else "")


def _class(one: Any) -> str:
    fields = [_field(member) for member in _members(one) if member.is_attribute]
    methods = [member for member in _members(one) if member.is_function and member.docstring]
    bases = ", ".join(str(base) for base in one.bases)
    parts = [
        f"### {one.name}\n",
        f"Class, of {bases}.\n" if bases else "Class.\n",
        _text(one.docstring),
        "\n".join(["", *fields]) if fields else "",
        *(f"\n**{method.name}**\n{_signature(method)}\n{_text(method.docstring)}" for method in methods),
    ]
    return "\n".join(parts)


def _member(one: Any) -> str:
    if one.is_class:
        return _class(one)
    if one.is_function:
        return f"### {one.name}\n{_signature(one)}\n{_text(one.docstring)}"
    return f"### {one.name}\n\n{_field(one)}"


def _module(name: str, path: Path) -> str:
    module = griffe.visit(name, filepath=path, code=path.read_text(encoding="utf-8"))
    public = [str(one).strip("'\"") for one in module.exports or ()]
    found = [module.members[one] for one in public if one in module.members and not module.members[one].is_alias]
    if not found:
        return ""
    return "\n".join([f"## {name}\n", _text(module.docstring), "", *(f"{_member(one)}\n" for one in found)])


def pages() -> dict[str, str]:
    """Return the Markdown of every page on a folder, by its place on the site."""
    made = {}
    for folder, package in FOLDERS.items():
        sections = [text for name, path in _modules(folder) if (text := _module(name, path))]
        made[f"{FOLDER}{folder}.md"] = "\n".join([f"# {package}\n", *sections])
    return made


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages where the navigation names their folder."""
    _fill(config.nav, FOLDER, [f"{FOLDER}{folder}.md" for folder in FOLDERS])
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
