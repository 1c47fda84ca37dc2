"""Implementations of installed packages, by the entry point group `day0.implementations`.

The value of an entry point is a module with `IMPLEMENTATIONS` and, where it has namespaces of its own, `NAMESPACES`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import ModuleType

from packaging.utils import canonicalize_name

from day0.errors import Day0Error, near_names
from day0.hashing import hash_file, hash_json
from day0.implementation import Implementation
from day0.kernels.load import implementations_in, parents_in
from day0.records import LockEntry

__all__ = ["GROUP", "Brought", "load_entry_points", "package_files", "refuse_missing_distribution"]

GROUP = "day0.implementations"
_NOT_SOURCE = frozenset({"__pycache__"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Brought:
    """What one entry point of one installed distribution brings."""

    distribution: str
    """`name==version`."""
    name: str
    module: str
    origin: str
    """`name version, entry point`, for messages."""
    implementations: tuple[Implementation, ...]
    parents: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class _Found:
    distribution: str
    version: str
    name: str
    module: str

    @property
    def where(self) -> str:
        return f"{self.distribution} {self.version}, entry point {self.name} = {self.module}"


def load_entry_points(*, without: Iterable[str] = ()) -> tuple[Brought, ...]:
    """Load what installed packages bring, in the order of (distribution, entry point).

    `without` names distributions to leave out. The order of sys.path does not matter, but for two installations of one
    distribution, of which Python itself sees the first.
    Raises Day0Error, naming distribution and entry point, for one that does not load or brings something else, and for
    a name in `without` that brings nothing.
    """
    found = _find()
    names = {canonicalize_name(one.distribution) for one in found}
    left_out = {canonicalize_name(name): name for name in without}
    for canonical, name in sorted(left_out.items()):
        if canonical not in names:
            hint = near_names(canonical, tuple(sorted(names))) or f"known: {', '.join(sorted(names)) or 'none'}"
            raise Day0Error("--without", f"no installed package '{name}' brings implementations", hint=hint)
    return tuple(_load(one) for one in found if canonicalize_name(one.distribution) not in left_out)


def _find() -> tuple[_Found, ...]:
    found = set()
    for one in metadata.entry_points(group=GROUP):
        owner = one.dist
        name = owner.name if owner is not None else "a package without a name"
        version = owner.version if owner is not None else ""
        found.add(_Found(distribution=str(name), version=str(version), name=one.name, module=one.value))
    return tuple(sorted(found))


def _load(one: _Found) -> Brought:
    module = _import(one)
    digest = _digest(module, one)
    distribution = f"{one.distribution}=={one.version}"
    origin = f"{one.distribution} {one.version}, {_file_of(module)}"
    try:
        implementations = implementations_in(module, digest, origin, distribution)
        parents = parents_in(module, origin)
    except Day0Error as error:
        raise Day0Error(one.where, error.what, facts=error.facts, hint=_go_on(one)) from None
    return Brought(
        distribution=distribution,
        name=one.name,
        module=one.module,
        origin=one.where,
        implementations=tuple(implementations),
        parents=parents,
    )


def _import(one: _Found) -> ModuleType:
    if not all(part.isidentifier() for part in one.module.split(".")):
        what = f"'{one.module}' is not the name of a module"
        raise Day0Error(one.where, what, hint=f"a module with IMPLEMENTATIONS belongs there; {_go_on(one)}")
    try:
        return importlib.import_module(one.module)
    except Day0Error as error:
        raise Day0Error(one.where, f"it does not load: {error.what}", facts=error.facts, hint=_go_on(one)) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a package raises errors of its own too
        text = f"{type(error).__name__}: {str(error).strip()[:300]}"
        raise Day0Error(one.where, f"it does not load: {text}", hint=_go_on(one)) from None


def _go_on(one: _Found) -> str:
    return f"go on without it: --without {one.distribution}, or `pip uninstall {one.distribution}`"


def _file_of(module: ModuleType) -> str:
    """Return a module's file from its package on, so that it reads the same on every machine."""
    path = Path(str(module.__file__))
    return "/".join(path.parts[-1 - module.__name__.count(".") - (path.name == "__init__.py") :])


def _digest(module: ModuleType, one: _Found) -> str:
    """Hash the sorted names and contents of all files of the module's package: sources, and what was built from them."""
    files = package_files(module)
    try:
        return hash_json([[name, hash_file(path)] for name, path in files])
    except OSError as error:
        raise Day0Error(one.where, f"its files cannot be read: {error}", hint=_go_on(one)) from None


def package_files(module: ModuleType) -> tuple[tuple[str, Path], ...]:
    """Return the files of a module's topmost package with their names in it, sorted; of a lone module its file."""
    top = sys.modules.get(module.__name__.partition(".")[0], module)
    folders = [Path(folder) for folder in getattr(top, "__path__", ())]
    if not folders:
        path = Path(str(module.__file__))
        return ((path.name, path),)
    found = {(str(path.relative_to(folder)), path) for folder in folders for path in folder.rglob("*")}
    return tuple(sorted((name, path) for name, path in found if _counts(Path(name), path)))


def _counts(name: Path, path: Path) -> bool:
    hidden = any(part in _NOT_SOURCE or part.startswith(".") for part in name.parts)
    return not hidden and path.suffix != ".pyc" and path.is_file()


def refuse_missing_distribution(entry: LockEntry) -> None:
    """Raise Day0Error where the package that brought a locked implementation is not installed, or in another version."""
    if not entry.distribution:
        return
    name, _, version = entry.distribution.partition("==")
    installed = _installed(name)
    if installed == version:
        return
    what = f"the package {entry.distribution}, which brought it, is not installed"
    if installed:
        what = f"it was locked with {entry.distribution}, and {name} {installed} is installed"
    raise Day0Error(
        f"lock: {entry.operator}",
        what,
        facts=(f"{entry.identity} came from {entry.origin}",),
        hint=f"`pip install {entry.distribution}`, or lock again with `day0 register`",
    )


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError):
        return ""
