"""What a plugin does in every engine: check what it carries, define its operators, choose, count. No torch when loaded.

Inside a wheel these files stand in the plugin's own package. Everything that can fail is in functions: engines log
and ignore what goes wrong while a plugin is imported.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from day0.registry.export.runtime.receipts import ReceiptBook

__all__ = ["Bundle", "BundleError", "open_bundle", "site_of_caller"]


class BundleError(Exception):
    """What the plugin carries cannot be used: damaged, changed, or not for this environment."""


@dataclass(kw_only=True, slots=True)
class Bundle:
    """A verified lock with its implementations, in this process."""

    manifest: dict[str, Any]
    folder: Path
    book: ReceiptBook
    entries: dict[str, dict[tuple[Any, ...], Any]]
    """By operator and torch dtypes of its tensors: what to run."""
    sites: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Name and version of the wheel, for messages."""
        return f"{self.manifest['distribution']} {self.manifest['version']}"

    @property
    def namespace(self) -> str:
        """Namespace of the plugin's torch operators; the lock's hash is part of it."""
        return str(self.manifest["namespace"])

    def target_names(self) -> tuple[str, ...]:
        """Return the targets that the export routed something through."""
        return tuple(one["name"] for one in self.manifest["targets"])

    def serves(self, model_type: str, architectures: tuple[str, ...]) -> bool:
        """Say whether a model is one that the lock was made for; a lock without models serves all."""
        models = self.manifest["models"]
        return not models or model_type in models or any(one in models for one in architectures)

    def bind(self, target: str, site: str) -> str:
        """Write down that an instance will call us; return what `call` takes as its place: target and a unique site."""
        raise NotImplementedError

    def refuse(self, operator: str, *tensors: Any) -> str:
        """Return why no locked implementation takes these tensors, or nothing: not locked, dtypes, device, sizes.

        It is traced under torch.compile: it reads dtypes, devices and static sizes only.
        """
        raise NotImplementedError

    def call(self, operator: str, place: str, *args: Any) -> Any:
        """Call the operator in the plugin's torch namespace; it is counted there, also in compiled graphs.

        Arguments are positional, as in the operator's schema, all of them. Results are as the contract says.
        """
        raise NotImplementedError

    def own(self, layer: Any, reason: str, *args: Any) -> Any:
        """Run the engine's own method, kept in `layer._day0_own`, and write down why (once, where it is compiled)."""
        raise NotImplementedError

    def override_aten(self) -> None:
        """Put the locked implementations of aten operators before torch's kernels, for the whole process."""
        raise NotImplementedError


def open_bundle(folder: Path, *, engine_version: str, role: str) -> Bundle:
    """Read manifest and lock, check every hash, load the implementations and define the torch operators.

    Raises BundleError: a file is missing or has another hash, an implementation is not there or its source has
    changed, the engine's release was not tested, the environment lacks a distribution.
    """
    raise NotImplementedError


def site_of_caller(name: str) -> str:
    """Return the nearest local variable of that name up the stack: engines hand the path of a layer down as one."""
    frame = sys._getframe(1)
    while frame is not None:
        value = frame.f_locals.get(name)
        if isinstance(value, str) and value:
            return value
        frame = frame.f_back  # type: ignore[assignment]
    return ""
