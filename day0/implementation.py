"""An implementation: code that computes an operator somewhere, and what it takes. Data and callables; no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from day0.records import Identity

__all__ = [
    "Accepted",
    "Argument",
    "Call",
    "Constraints",
    "DtypeName",
    "Implementation",
    "Limit",
    "Plain",
    "Predicate",
    "Rejected",
    "TensorFacts",
    "TensorLimit",
]

Kind = Literal["kernel", "decomposition", "reference", "cpu_fallback"]
Plain = bool | int | float | complex | str | tuple["Plain", ...] | None
"""The value of an argument that is no tensor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """What one size, or one argument that is no tensor, must be. Empty means anything."""

    one_of: tuple[Plain, ...] = ()
    """The values it may have; `None` for an argument that is not given, and `(None,)` forbids a tensor."""
    at_least: float | None = None
    at_most: float | None = None
    multiple_of: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorLimit:
    """What one tensor argument must be, where the call has it. For a list of tensors: each of them."""

    dtypes: frozenset[str] = frozenset()
    min_rank: int = 0
    max_rank: int | None = None
    sizes: Mapping[int, Limit] = field(default_factory=dict)
    """By dimension, also from the end (-1). A tensor without that dimension is refused."""
    contiguous: bool | None = None
    required: bool = False
    """Refuse a call without it, where the operator's schema leaves it out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Constraints:
    """What a call must satisfy, as data, so that overlap and gaps can be decided when locking.

    Empty means unconstrained; everything that stands here has to hold at once.
    """

    dtypes: frozenset[str] = frozenset()
    """Dtypes that any tensor argument, and any dtype that is asked for, may have."""
    first_dtype: frozenset[str] = frozenset()
    """Dtypes that the first tensor argument may have."""
    min_rank: int = 0
    max_rank: int | None = None
    """Dimensions that any tensor argument may have."""
    contiguous: bool | None = None
    """Whether every tensor argument must be contiguous, or none may be."""
    multiple_of: Mapping[int, int] = field(default_factory=dict)
    """Last-dimension divisibility by position of the tensor argument."""
    arguments: Mapping[str | int, Limit | TensorLimit] = field(default_factory=dict)
    """By the name that the operator's schema gives the argument, or by its position there."""
    equal: tuple[tuple[tuple[str, int], tuple[str, int]], ...] = ()
    """Pairs of (argument, dimension) that have one size, such as `(("q", -1), ("k", -1))`."""
    any_of: tuple[Constraints, ...] = ()
    """Combinations, of which at least one must hold: sizes that only work together stand together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorFacts:
    """What is known of a tensor argument before there are values."""

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]
    contiguous: bool


class DtypeName(str):
    """An argument that asks for a dtype, by its name, so that it stays apart from other text."""

    __slots__ = ()


Argument = TensorFacts | tuple["TensorFacts | None", ...] | Plain


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call as data: what a predicate is asked about. It holds no values of tensors, so nothing can depend on them."""

    op: str
    """Qualified name with overload."""
    device: str
    """Torch device type."""
    arguments: Mapping[str, Argument]
    """By the schema's names, in its order, with its defaults where the call gives nothing. A dtype is a `DtypeName`."""

    @property
    def tensors(self) -> tuple[TensorFacts, ...]:
        """The tensor arguments in the schema's order, those in lists too."""
        found: list[TensorFacts] = []
        for value in self.arguments.values():
            parts = value if isinstance(value, tuple) else (value,)
            found.extend(part for part in parts if isinstance(part, TensorFacts))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Accepted:
    """A predicate takes the call."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A predicate does not take the call, and says why."""

    reason: str


Predicate = Callable[[Call], "Accepted | Rejected"]


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
    predicate: Predicate | None = None
    """For what constraints cannot say. It is opaque: whether it overlaps with another cannot be decided."""
    rank: int = 100
    """Lower is preferred within one namespace."""
    origin: str = ""
    """`file:line`, or distribution with version and `module file:line`; filled in by the loader."""
    source_hash: str = ""
    """SHA-256 of the files that hold it; filled in by the loader."""
    distribution: str = ""
    """The installed package that brought it, as `name==version`; filled in by the loader."""

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
