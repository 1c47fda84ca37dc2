"""Versioned namespaces with declared parents: `kimi/k3.1` → `kimi/k3` → `kimi/linear` → `base`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from day0.errors import Day0Error, near_names
from day0.kernels.load import load_parents_file
from day0.registry.entry_points import Brought, load_entry_points
from day0.yamlfile import read_yaml, validate_yaml

__all__ = ["ROOT", "load_parents", "merge_parents", "search_path"]

ROOT = "base"


class _Namespaces(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_: Literal["day0.namespaces/1"] = Field(alias="schema")
    parents: dict[str, str]


def load_parents(
    files: Iterable[Path] = (), *, without: Iterable[str] = (), brought: Iterable[Brought] | None = None
) -> dict[str, str]:
    """Return the parent of every namespace but the root: day0's, those of installed packages and of users' files.

    `without` names packages to leave out; `brought` is what packages bring, where it is loaded already.
    Raises Day0Error where two of them disagree, and for parents that go in a circle.
    """
    own = Path(__file__).parent / "namespaces.yaml"
    declared = [(f"registry/{own.name}", validate_yaml(_Namespaces, read_yaml(own)).parents)]
    declared += [
        (one.origin, one.parents) for one in (load_entry_points(without=without) if brought is None else brought)
    ]
    declared += [(str(path), load_parents_file(path)) for path in files]
    return merge_parents(declared)


def merge_parents(declared: Iterable[tuple[str, Mapping[str, str]]]) -> dict[str, str]:
    """Join what several sources say of parents; the order of the sources does not matter.

    Raises Day0Error, with every source that has a part in it, for two parents of one child and for a circle.
    """
    said: dict[str, dict[str, set[str]]] = {}
    for source, parents in declared:
        for child, parent in parents.items():
            said.setdefault(child, {}).setdefault(parent, set()).add(source)
    for child, found in sorted(said.items()):
        if len(found) > 1:
            raise Day0Error(
                f"namespace {child}",
                "it has two parents that disagree",
                facts=tuple(f"'{parent}' by {_listed(found[parent])}" for parent in sorted(found)),
                hint="keep one of them; a package of your own can use a namespace of its own instead",
            )
    merged = {child: next(iter(found)) for child, found in sorted(said.items())}
    _refuse_circle(merged, {child: _listed(found[merged[child]]) for child, found in said.items()})
    return merged


def _listed(sources: Iterable[str]) -> str:
    return ", ".join(sorted(sources))


def _refuse_circle(parents: Mapping[str, str], sources: Mapping[str, str]) -> None:
    ended: set[str] = set()  # from these every way ends at the root: long chains are walked once
    for child in parents:
        circle = _circle(child, parents, ended)
        if circle:
            raise Day0Error(
                f"namespace {circle[0]}",
                f"its parents go in a circle: {' → '.join((*circle, circle[0]))}",
                facts=tuple(f"'{name}' is under '{parents[name]}' by {sources[name]}" for name in circle),
                hint="end at `base`",
            )


def _circle(name: str, parents: Mapping[str, str], ended: set[str]) -> tuple[str, ...]:
    """Return the circle that one name leads into, from its smallest name on, or nothing."""
    seen: dict[str, int] = {}
    while name in parents and name not in seen and name not in ended:
        seen[name] = len(seen)
        name = parents[name]
    if name not in seen:
        ended.update(seen)
        return ()
    circle = tuple(seen)[seen[name] :]
    first = circle.index(min(circle))
    return (*circle[first:], *circle[:first])


def search_path(namespace: str, parents: Mapping[str, str]) -> tuple[str, ...]:
    """Return the namespaces to look in, most specific first.

    Raises Day0Error for a namespace that is not declared, or for parents that go in a circle.
    """
    path: dict[str, None] = {}
    name = namespace
    while name != ROOT:
        if name in path:
            raise Day0Error(f"namespace {namespace}", f"its parents go in a circle at '{name}'", hint="end at `base`")
        if name not in parents:
            known = (ROOT, *sorted(parents))
            hint = near_names(name, known) or f"known: {', '.join(known)}"
            raise Day0Error(f"namespace {namespace}", f"'{name}' is not declared", hint=hint)
        path[name] = None
        name = parents[name]
    return (*path, ROOT)
