"""Find the files of one folder of regimes, forms, ways or refusals: each defines one record of its kind."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Protocol, TypeVar

from day0.errors import Day0Error

__all__ = ["Named", "find_all"]


class Named(Protocol):
    """What each of these records has."""

    @property
    def name(self) -> str:
        """Its name, which is its file's."""


N = TypeVar("N", bound=Named)


def find_all(package: ModuleType, attribute: str, kind: type[N]) -> dict[str, N]:
    """Return the records of a folder by name; `run` and files that begin with an underscore hold none.

    Raises Day0Error for a file without one, or one of another name.
    """
    found: dict[str, N] = {}
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda one: one.name):
        if info.name.startswith("_") or info.name == "run":
            continue
        one = getattr(importlib.import_module(f"{package.__name__}.{info.name}"), attribute, None)
        where = f"{package.__name__.removeprefix('day0.').replace('.', '/')}/{info.name}.py"
        if not isinstance(one, kind):
            what = f"it does not define {attribute}, a {kind.__name__}"
            raise Day0Error(where, what, hint="begin the names of helper files with an underscore")
        if one.name != info.name:
            raise Day0Error(where, f"it defines '{one.name}'", hint="name the file as what it defines")
        found[one.name] = one
    return found
