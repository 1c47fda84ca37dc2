"""Implementations and locks for tests: what to put in the place of which operator, in one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from day0.implementation import Implementation
from day0.records import Lock, LockEntry

__all__ = ["implementation", "lock_of"]


def implementation(operator: str, run: Callable[..., Any], *, id: str = "test", namespace: str = "base") -> Any:
    """Return an implementation of an operator; its source hash is its name."""
    return Implementation(
        operator=operator,
        contract=1,
        id=id,
        version="1.0",
        namespace=namespace,
        kind="kernel",
        run=run,
        why="for a test",
        origin=f"tests/{id}.py:1",
        source_hash=f"sha256:{namespace}{id}",
    )


def lock_of(*entries: tuple[Implementation, tuple[str, ...]], device: str = "cpu", op: str = "") -> Lock:
    """Return a lock of implementations with the dtypes for which each is chosen; `op` names an overload."""
    return Lock(
        device=device,
        namespace="base",
        model="sha256:0",
        entries=tuple(
            LockEntry(
                operator=op or one.operator,
                dtypes=dtypes,
                signatures=(),
                identity=one.identity,
                kind=one.kind,
                source_hash=one.source_hash,
                origin=one.origin,
                decisions=(),
            )
            for one, dtypes in entries
        ),
    )
