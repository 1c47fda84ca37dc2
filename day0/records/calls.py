"""How an operator or a function was called once."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from day0.records._base import Record

__all__ = ["ListValue", "ScalarValue", "Signature", "TensorValue", "Value"]


class TensorValue(Record):
    """A tensor argument: layout and, for integers whose values were seen, their range."""

    kind: Literal["tensor"] = "tensor"
    shape: tuple[Annotated[int, Field(ge=0)], ...]
    dtype: str
    stride: tuple[Annotated[int, Field(ge=0)], ...]
    offset: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    alias: int | None = None
    """Arguments of one call with the same number share storage."""
    range: tuple[int, int] | None = None

    @model_validator(mode="after")
    def _possible(self) -> TensorValue:
        if len(self.shape) != len(self.stride):
            raise ValueError(f"{len(self.shape)} sizes and {len(self.stride)} strides")
        if math.prod(self.shape) >= 1 << 63:
            raise ValueError("it has more elements than 64 bits count")
        return self


class ScalarValue(Record):
    """A non-tensor argument, its value as text so that `True`, `1` and `1.0` stay apart."""

    kind: Literal["scalar"] = "scalar"
    type: Literal["none", "bool", "int", "float", "complex", "str", "dtype", "device", "layout", "memory_format"]
    value: str


class ListValue(Record):
    """A list or tuple argument."""

    kind: Literal["list"] = "list"
    items: tuple[Value, ...]


Value = Annotated[TensorValue | ScalarValue | ListValue, Field(discriminator="kind")]
ListValue.model_rebuild()


class Signature(Record):
    """How an operator was called once."""

    op: str
    """Qualified name with overload, as torch prints it: `aten::topk` or `aten::add.Tensor`."""
    args: tuple[Value, ...]
    kwargs: dict[str, Value] = Field(default_factory=dict)
