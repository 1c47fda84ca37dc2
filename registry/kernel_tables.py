"""torch's dispatch tables as text: to prove that they are as they were."""

from __future__ import annotations

from collections.abc import Iterable

import torch

__all__ = ["changed_tables", "dispatch_table", "snapshot"]


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
