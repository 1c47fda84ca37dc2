"""The parts of a device profile: dtypes, what an operator needs, what it lacks, how one knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

from day0.records import Evidence

__all__ = [
    "DTYPES",
    "Basis",
    "Condition",
    "Details",
    "DtypeName",
    "Effect",
    "Grant",
    "Lack",
    "LayoutName",
    "MatmulRule",
    "Part",
    "ProbedWith",
    "layout_of",
]

DTYPES: tuple[str, ...] = (
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
    "bfloat16",
    "float16",
    "float32",
    "float64",
    "complex32",
    "complex64",
    "complex128",
)
"""Dtypes a profile may name; torch's own names."""


def _known_dtype(name: str) -> str:
    if name not in DTYPES:
        raise ValueError(f"not a dtype; dtypes are: {', '.join(DTYPES)}")
    return name


DtypeName = Annotated[str, AfterValidator(_known_dtype), WithJsonSchema({"type": "string", "enum": list(DTYPES)})]
LayoutName = Literal["contiguous", "transposed", "broadcast", "strided"]
Effect = Literal["refuses", "crashes", "hangs", "wrong"]


def layout_of(shape: tuple[int, ...], stride: tuple[int, ...]) -> LayoutName:
    """Name a layout: rows in order, without gaps but in another order, with stride 0, or anything else."""
    sizes = [(size, step) for size, step in zip(shape, stride, strict=True) if size != 1]
    if 0 in shape or _is_dense(sizes):
        return "contiguous"
    if any(step == 0 for _, step in sizes):
        return "broadcast"
    return "transposed" if _is_dense(sorted(sizes, key=lambda pair: -pair[1])) else "strided"


def _is_dense(sizes: list[tuple[int, int]]) -> bool:
    expected = 1
    for size, step in reversed(sizes):
        if step != expected:
            return False
        expected *= size
    return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Details:
    """What a call has beyond dtypes and ranks."""

    layouts: tuple[LayoutName, ...] = ()
    sizes: Mapping[str, tuple[int, ...] | int] = field(default_factory=dict)
    """By name of the argument: the shape of a tensor, the value of a whole number."""


class Part(BaseModel):
    """Base of everything in a profile: frozen, and a misspelt field is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, use_attribute_docstrings=True)


class Condition(Part):
    """One thing that a kernel asks of one argument: of a tensor's size, or of a whole number."""

    argument: str
    """Name of the argument in torch's schema of the operator, such as `self`, `mat2` or `k`."""
    dim: int | None = None
    """Dimension of the tensor whose size is meant, also from the end (-1); none for an argument that is a number."""
    multiple_of: int | None = Field(default=None, ge=1)
    at_least: int | None = None
    at_most: int | None = None
    one_of: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _asks_something(self) -> Condition:
        if self.multiple_of is None and self.at_least is None and self.at_most is None and not self.one_of:
            raise ValueError("a condition needs one of: multiple_of, at_least, at_most, one_of")
        return self

    def broken(self, sizes: Mapping[str, tuple[int, ...] | int]) -> str:
        """Return how a call breaks it, for people; empty if it does not, or has no such argument or dimension."""
        value = sizes.get(self.argument)
        if isinstance(value, tuple):
            if self.dim is None or not -len(value) <= self.dim < len(value):
                return ""
            value = value[self.dim]
        if value is None or self._holds(value):
            return ""
        name = self.argument if self.dim is None else f"{self.argument}.shape[{self.dim}]"
        return f"{name} is {value}, and must be {self.text()}"

    def _holds(self, value: int) -> bool:
        return (
            (self.multiple_of is None or value % self.multiple_of == 0)
            and (self.at_least is None or value >= self.at_least)
            and (self.at_most is None or value <= self.at_most)
            and (not self.one_of or value in self.one_of)
        )

    def text(self) -> str:
        """Return the condition for people."""
        parts = (
            f"divisible by {self.multiple_of}" if self.multiple_of is not None else "",
            f"at least {self.at_least}" if self.at_least is not None else "",
            f"at most {self.at_most}" if self.at_most is not None else "",
            f"one of {', '.join(map(str, self.one_of))}" if self.one_of else "",
        )
        return " and ".join(part for part in parts if part)


class Lack(Part):
    """What is missing of one operator. Without dtypes, ranks, layouts and conditions: all of it."""

    reason: str
    dtypes: tuple[DtypeName, ...] = ()
    """It lacks calls with a tensor of one of these dtypes."""
    ranks: tuple[int, ...] = ()
    """It lacks calls with a tensor of that many dimensions."""
    layouts: tuple[LayoutName, ...] = ()
    """It lacks calls with a tensor in such a layout."""
    unless: tuple[Condition, ...] = ()
    """It lacks calls that break one of these conditions, such as: k divisible by 16."""
    effect: Effect = "refuses"
    """What happens to a call that runs into it."""
    evidence: Evidence | None = None
    source: str = ""

    @property
    def is_whole(self) -> bool:
        """True where nothing of the operator is there."""
        return not (self.dtypes or self.ranks or self.layouts or self.unless)

    def applies(self, dtypes: tuple[str, ...], ranks: tuple[int, ...], details: Details | None = None) -> bool:
        """Say whether a call with these tensors runs into it. Without details, layouts and conditions are not."""
        if self.dtypes and not set(dtypes) & set(self.dtypes):
            return False
        if self.ranks and not any(rank in self.ranks for rank in ranks):
            return False
        if self.layouts and not set(details.layouts if details else ()) & set(self.layouts):
            return False
        return not self.unless or any(one.broken(details.sizes if details else {}) for one in self.unless)


class Grant(Part):
    """What an operator takes, where that is less than everything, and what it was seen to do."""

    dtypes: tuple[DtypeName, ...] = ()
    """Dtypes of tensors that it takes; none named: all."""
    ranks: tuple[int, ...] = ()
    """Numbers of dimensions that it takes; none named: all."""
    layouts: tuple[LayoutName, ...] = ()
    """Layouts that it takes; none named: all."""
    conditions: tuple[Condition, ...] = ()
    """What else it asks for, such as: k divisible by 16."""
    ran: tuple[str, ...] = ()
    """Calls that were run on the device and agreed with the CPU: dtype and rank of each tensor, `float32[2]`."""
    evidence: Evidence | None = None
    source: str = ""

    def refusal(self, dtypes: tuple[str, ...], ranks: tuple[int, ...], details: Details | None) -> Lack | None:
        """Return what a call has that the operator does not take, or None."""
        found = details or Details()
        for dtype in dtypes:
            if self.dtypes and dtype not in self.dtypes:
                return self._lack(f"it takes {', '.join(self.dtypes)} only", dtypes=(dtype,))
        for rank in ranks:
            if self.ranks and rank not in self.ranks:
                known = ", ".join(map(str, self.ranks))
                return self._lack(f"it takes tensors with {known} dimensions only", ranks=(rank,))
        for layout in found.layouts:
            if self.layouts and layout not in self.layouts:
                return self._lack(f"it takes {', '.join(self.layouts)} tensors only", layouts=(layout,))
        for condition in self.conditions:
            if broken := condition.broken(found.sizes):
                return self._lack(broken, unless=(condition,))
        return None

    def _lack(self, reason: str, **what: tuple[object, ...]) -> Lack:
        return Lack.model_validate({"reason": reason, "evidence": self.evidence, "source": self.source, **what})


class MatmulRule(Part):
    """How a device multiplies matrices of one dtype."""

    inputs: Literal["exact", "tfloat32", "bfloat16", "float16"] = "exact"
    """To what both factors are rounded first."""
    accumulate: Literal["float64", "float32", "bfloat16", "float16"] = "float32"
    """In what dtype sums are kept."""
    rounding: Literal["nearest", "toward_zero"] = "nearest"
    """How a sum is rounded to that dtype after each step."""
    step: int = Field(default=16, ge=1)
    """How many products are added exactly before the sum is rounded."""


class Basis(Part):
    """How one knows one field of a profile."""

    evidence: Evidence
    source: str


class ProbedWith(Part):
    """When and with what a profile was probed."""

    date: str
    device: str
    """The name by which the device calls itself."""
    driver: str = ""
    torch: str
    python: str
    platform: str
    day0: str
    calls: int
    """How many signatures were tried."""
    outcomes: dict[str, int] = Field(default={})
    """How many of them ran, were refused, gave wrong results, crashed, hung, or could not be judged."""
