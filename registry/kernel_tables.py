"""torch's dispatch tables as text: to prove that they are as they were, and to see who else has written there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import torch

from day0 import devices, reference_ops, registry

__all__ = ["changed_tables", "dispatch_table", "foreign_kernel", "snapshot"]

_REGISTERING = (devices, reference_ops, registry)
"""Folders of day0 that register kernels."""
_PYTHON_KERNEL = re.compile(r"^(?P<key>\w+): registered at (?P<place>.+\.py:\d+)\b")


def dispatch_table(op: str) -> str:
    """Return all kernels that are registered for an operator, shadowed ones too, and what each key leads to."""
    return f"{torch._C._dispatch_dump(op)}\n{torch._C._dispatch_dump_table(op)}"


def snapshot(ops: Iterable[str]) -> dict[str, str]:
    """Return the dispatch tables of operators by name."""
    return {op: dispatch_table(op) for op in sorted(set(ops))}


def changed_tables(before: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the lines that are new in or gone from each table since a snapshot; empty if torch is as it was."""
    changes: dict[str, tuple[str, ...]] = {}
    for op, text in before.items():
        now = dispatch_table(op)
        if now != text:
            old, new = text.splitlines(), now.splitlines()
            gone = [f"- {line}" for line in old if line not in new]
            changes[op] = (*gone, *(f"+ {line}" for line in new if line not in old))
    return changes


def foreign_kernel(op: str, key: str) -> str:
    """Return `file.py:line` of another library's Python kernel that is active for a key, or an empty text.

    Kernels of torch and of day0 are not foreign. One that was registered by a function of torch.library is: then the
    line is torch's, and the owner is unknown.
    """
    for line in torch._C._dispatch_dump(op).splitlines():
        found = _PYTHON_KERNEL.match(line)
        if found and found["key"] == key:
            return "" if _is_known(found["place"]) else found["place"]
    return ""


def _is_known(place: str) -> bool:
    # Resolved, because folders of day0 are links in a checkout.
    path = Path(place.rpartition(":")[0]).resolve()
    torch_folder = Path(torch.__path__[0]).resolve()
    if path == torch_folder / "library.py":
        return False
    own = (Path(folder.__path__[0]).resolve() for folder in _REGISTERING)
    return any(path.is_relative_to(root) for root in (*own, torch_folder))
