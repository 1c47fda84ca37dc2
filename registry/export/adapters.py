"""Find the adapters by the names of their files."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from pathlib import Path

from day0.errors import Day0Error, near_names
from day0.registry.export import engines
from day0.registry.export.runtime.spec import Adapter

__all__ = ["Found", "adapters", "choose_adapter"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """An adapter and the file it stands in, which the wheel carries."""

    adapter: Adapter
    path: Path

    @property
    def name(self) -> str:
        """Name of the file: `vllm_0_32`."""
        return self.path.stem


def adapters() -> tuple[Found, ...]:
    """Return all adapters by file name; a later release of an engine stands behind an earlier one."""
    found = []
    for info in sorted(pkgutil.iter_modules(engines.__path__), key=lambda one: one.name):
        module = importlib.import_module(f"{engines.__name__}.{info.name}")
        found.append(Found(adapter=module.ADAPTER, path=Path(str(module.__file__))))
    return tuple(found)


def choose_adapter(engine: str, version: str | None = None) -> Found:
    """Return the adapter for an engine, and for its release where one is known; else the newest.

    Raises Day0Error: no adapter of that engine, or none that was tested with that release.
    """
    from packaging.specifiers import SpecifierSet

    known = adapters()
    mine = [one for one in known if one.adapter.engine == engine]
    if not mine:
        names = tuple(sorted({one.adapter.engine for one in known}))
        hint = near_names(engine, names) or f"known: {', '.join(names)}"
        raise Day0Error("--to", f"there is no adapter for an engine '{engine}'", hint=hint)
    if version is None:
        return mine[-1]
    for one in mine:
        if SpecifierSet(one.adapter.tested).contains(version, prereleases=True):
            return one
    raise Day0Error(
        f"{engine} {version}",
        "no adapter was tested with this release",
        facts=tuple(f"{one.name}: {one.adapter.tested}" for one in mine),
        hint="install a tested release, or write an adapter for this one beside the others in registry/export/engines/",
    )
