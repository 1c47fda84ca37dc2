"""Which implementation stands in for what a device lacks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from day0.records._base import Record

__all__ = ["Decision", "Gap", "Identity", "Lock", "LockEntry", "Verification"]


class Identity(Record):
    """What makes an implementation itself; the same identity with another hash is a conflict."""

    operator: str
    contract: int
    namespace: str
    id: str
    version: str

    def __str__(self) -> str:
        return f"{self.operator}@{self.contract} {self.namespace}:{self.id}=={self.version}"


class Decision(Record):
    """One candidate that was looked at, and why it was taken or refused."""

    candidate: str
    accepted: bool
    reason: str


class Verification(Record):
    """Which numerics report verified an entry's source, where. It is no part of the choice, so no part of its hash."""

    report: str
    """Hash of the numerics report's body."""
    source_hash: str
    """The source that was measured."""
    device: str
    """Name of the device profile."""
    environment: dict[str, str] = Field(default_factory=dict)
    """What the result depends on beyond the source: torch, what the device calls itself."""
    cases: int
    """How many of its cases passed."""


class LockEntry(Record):
    """The chosen implementation for the gaps of one operator with one tuple of dtypes."""

    operator: str
    """Qualified name with overload."""
    dtypes: tuple[str, ...]
    signatures: tuple[str, ...]
    identity: Identity
    kind: Literal["kernel", "decomposition", "reference", "cpu_fallback"]
    source_hash: str
    origin: str
    decisions: tuple[Decision, ...]
    distribution: str = ""
    """The installed package that brought it, as `name==version`; empty for day0's own and for files."""
    verified: Verification | None = None
    """None: not verified."""


class Gap(Record):
    """A gap that nothing closes, with every candidate that was refused."""

    operator: str
    dtypes: tuple[str, ...]
    signatures: tuple[str, ...]
    calls: int
    module: str
    reason: str
    decisions: tuple[Decision, ...]


class Lock(Record):
    """The chosen implementation for every signature that needs one."""

    device: str
    namespace: str
    model: str
    entries: tuple[LockEntry, ...]
    gaps: tuple[Gap, ...] = ()
    ambiguities: tuple[str, ...] = ()
    """Calls that were not traced and that two implementations of equal rank would take, each with a witness."""
    holes: tuple[str, ...] = ()
    """Calls next to traced ones that no kernel takes; there a reference or a fallback would run."""
