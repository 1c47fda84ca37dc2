"""Where calls were made and what fed them: the part of a recorder that blocks and fusions are found by.

A signature is recorded once however many modules make the call; its sites say which classes of modules they were,
how often in each phase, and which other sites made the tensors that it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from day0.records import Site

__all__ = ["SiteBook", "SiteTally"]

_LIFT = torch.ops.aten.lift_fresh.default


@dataclass(kw_only=True, slots=True, eq=False)
class SiteTally:
    """One signature in one chain of module classes, counted."""

    number: int
    classes: str
    source: str
    counts: dict[str, int] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)
    inputs: dict[int, int] = field(default_factory=dict)

    def record(self) -> Site:
        """Return what is kept in the trace."""
        return Site(
            number=self.number,
            classes=self.classes,
            source=self.source,
            counts=dict(sorted(self.counts.items())),
            modules=max(1, len(self.modules)),
            inputs={str(number): count for number, count in sorted(self.inputs.items())},
        )


class SiteBook:
    """Counts sites and follows tensors from the call that made them, through views, to the calls that take them."""

    def __init__(self) -> None:
        self._phase = ""
        self._numbers = 0
        self._chains: dict[str, str] = {}
        self._makers: dict[int, int] = {}
        # While a weak reference is held, no other storage gets the address: a dead one is never taken for another.
        self._held: dict[int, StorageWeakRef] = {}

    def note(
        self,
        sites: dict[str, SiteTally],
        phase: str,
        modules: Sequence[tuple[str, str]],
        call: tuple[Any, Any, Any, Any],
        source: Callable[[], str],
    ) -> None:
        """Count one call `(operator, args, kwargs, result)` in the sites of its signature."""
        if phase != self._phase:  # storages of an earlier phase are gone, and their addresses are used again
            self._phase = phase
            self._makers.clear()
            self._held.clear()
        path = modules[-1][0] if modules else ""
        chain = self._chains.get(path)
        if chain is None:
            chain = self._chains[path] = "/".join(kind for _, kind in modules)
        site = sites.get(chain)
        if site is None:
            site = sites[chain] = SiteTally(number=self._numbers, classes=chain, source=source())
            self._numbers += 1
        site.counts[phase] = site.counts.get(phase, 0) + 1
        site.modules.add(path)
        self._follow(site, *call)

    def _follow(self, site: SiteTally, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        keys = {storage._cdata for storage in _storages(args)}
        if kwargs:
            keys.update(storage._cdata for storage in _storages(kwargs.values()))
        makers = self._makers
        for maker in () if _shape_only(func) else {makers[key] for key in keys if key in makers}:
            site.inputs[maker] = site.inputs.get(maker, 0) + 1
        if func is _LIFT:  # a constant: no call made it, though its storage may stand where a result once was
            for key in keys:
                makers.pop(key, None)
        for storage in _storages((result,)):
            key = storage._cdata
            # A result over the storage of an argument is a view of it, unless the call wrote there.
            if key not in keys or func._schema.is_mutable:
                makers[key] = site.number
                if key not in self._held:
                    self._held[key] = StorageWeakRef(storage)


@cache
def _shape_only(func: Any) -> bool:
    """Say whether an operator looks at the shape of its argument alone: `zeros_like`, `new_ones`."""
    name = func.name().partition("::")[2].partition(".")[0]
    return bool(name.endswith("_like") or name.startswith("new_"))


def _storages(values: Any) -> list[torch.UntypedStorage]:
    found: list[torch.UntypedStorage] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            if not value.numel():
                continue  # nothing was made, and empty storages share addresses with others
            found.append(value.untyped_storage())
        elif isinstance(value, (list, tuple)):
            found += _storages(value)
    return found
