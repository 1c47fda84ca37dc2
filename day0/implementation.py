"""An implementation: code that computes an operator somewhere. Data and one callable; imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from day0.records import Identity

__all__ = ["Constraints", "Implementation"]

Kind = Literal["kernel", "decomposition", "reference", "cpu_fallback"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Constraints:
    """What a call must satisfy, as data, so that overlap and gaps can be decided when locking.

    Empty means unconstrained.
    """

    dtypes: frozenset[str] = frozenset()
    """Dtypes that any tensor argument may have."""
    first_dtype: frozenset[str] = frozenset()
    """Dtypes that the first tensor argument may have."""
    max_rank: int | None = None
    multiple_of: dict[int, int] = field(default_factory=dict)
    """Last-dimension divisibility by position of the tensor argument."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Implementation:
    """One way to compute one operator.

    `run` takes the arguments of the operator as torch would pass them, on whatever device they are.
    """

    operator: str
    """Qualified name with overload where it has one: `aten::histc`, `day0::lightning_indexer`."""
    contract: int
    id: str
    version: str
    kind: Kind
    run: Callable[..., object]
    why: str
    """One line: what it does and when to prefer it."""
    namespace: str = "base"
    devices: tuple[str, ...] = ("*",)
    """Torch device types it runs on; `*` is any device that has its leaves."""
    constraints: Constraints = Constraints()
    rank: int = 100
    """Lower is preferred within one namespace."""
    origin: str = ""
    """`file:line` or distribution and version; filled in by the loader."""
    distribution: str = ""
    """The installed package that brought it, as `name==version`; filled in by the loader."""
    source_hash: str = ""
    """SHA-256 of the file that holds it; filled in by the loader."""

    @property
    def identity(self) -> Identity:
        """The five fields that name it."""
        return Identity(
            operator=self.operator,
            contract=self.contract,
            namespace=self.namespace,
            id=self.id,
            version=self.version,
        )
