"""Which files a meaning or a kernel stands in: its own, and those of ours that it imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

__all__ = ["sources"]

_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
"""Where statements stand in statements."""


def sources(path: Path, packages: Sequence[ModuleType]) -> tuple[Path, ...]:
    """Return a file, and what it imports from some packages, and so on, sorted by name.

    A changed helper is another reference or another kernel.
    """
    folders = tuple((package.__name__, tuple(package.__path__)) for package in packages)
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting.extend(_imported(one, folders))
    return tuple(sorted(found, key=lambda one: (one.name, str(one))))


@cache
def _imported(path: Path, folders: tuple[tuple[str, tuple[str, ...]], ...]) -> tuple[Path, ...]:
    """Return the files that a file imports anywhere, also inside a function."""
    found: list[Path] = []
    for node in _statements(ast.parse(path.read_bytes())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
        for name in names:
            parent, _, stem = name.rpartition(".")
            for package, places in folders:
                if parent == package:
                    files = (Path(folder) / f"{stem}.py" for folder in places)
                    found.extend(file for file in files if file.is_file())
    return tuple(found)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every statement at any depth. An import is one, and most of a tree is expressions, which hold none."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in _BODIES:
            waiting.extend(getattr(node, name, ()))
