"""Versioned namespaces with declared parents: `kimi/k3.1` → `kimi/k3` → `kimi/linear` → `base`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from day0.errors import Day0Error, near_names
from day0.yamlfile import read_yaml, validate_yaml

__all__ = ["ROOT", "load_parents", "search_path"]

ROOT = "base"


class _Namespaces(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_: Literal["day0.namespaces/1"] = Field(alias="schema")
    parents: dict[str, str]


def load_parents(path: Path | None = None) -> dict[str, str]:
    """Return the parent of every namespace but the root."""
    document = read_yaml(path or Path(__file__).parent / "namespaces.yaml")
    return validate_yaml(_Namespaces, document).parents


def search_path(namespace: str, parents: dict[str, str]) -> tuple[str, ...]:
    """Return the namespaces to look in, most specific first.

    Raises Day0Error for a namespace that is not declared, or for parents that go in a circle.
    """
    path: list[str] = []
    name = namespace
    while name != ROOT:
        if name in path:
            raise Day0Error(f"namespace {namespace}", f"its parents go in a circle at '{name}'", hint="end at `base`")
        if name not in parents:
            known = (ROOT, *sorted(parents))
            hint = near_names(name, known) or f"known: {', '.join(known)}"
            raise Day0Error(f"namespace {namespace}", f"'{name}' is not declared", hint=hint)
        path.append(name)
        name = parents[name]
    return (*path, ROOT)
