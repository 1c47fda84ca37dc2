"""Signatures to the text, spelled as public writers spell them."""

from __future__ import annotations

from day0.analyzers.traced_inputs.dtypes import SHORT_OF
from day0.analyzers.traced_inputs.grammar import contiguous_stride
from day0.records import ScalarValue, Signature, TensorValue, Value

__all__ = ["DEVICE", "call_line", "header_line", "operator_name", "qualified_name"]

DEVICE = "'cuda'"
"""How a device argument is written: signatures mean the device under test, and readers put their own in its place."""


def operator_name(op: str) -> str:
    """Return `aten.add.Tensor` for `aten::add.Tensor`, and `aten.mm.default` for `aten::mm`."""
    namespace, _, rest = op.partition("::")
    return f"{namespace}.{rest}" if "." in rest else f"{namespace}.{rest}.default"


def qualified_name(name: str) -> str:
    """Return `aten::mm` for `aten.mm.default`: the way back."""
    namespace, _, rest = name.partition(".")
    return f"{namespace}::{rest.removesuffix('.default')}"


def header_line(op: str) -> str:
    """Return the line above the calls of an operator."""
    return f"Operator: {operator_name(op)}"


def call_line(signature: Signature, count: int, *, extended: bool = False) -> str:
    """Return the line of one call.

    `extended` also writes what public readers do not know: offsets, shared storage, value ranges, and the strides of
    dimensions of size one. Dtypes without a short name are written by torch's name either way.
    """
    args = [_value(one, extended) for one in signature.args]
    positional = f"({args[0]},)" if len(args) == 1 else f"({', '.join(args)})"
    keywords = ", ".join(f"{name!r}: {_value(one, extended)}" for name, one in signature.kwargs.items())
    return f"cnt: {count}, ({positional}, {{{keywords}}})"


def _value(value: Value, extended: bool) -> str:
    if isinstance(value, TensorValue):
        return _tensor(value, extended)
    if isinstance(value, ScalarValue):
        return _scalar(value)
    return f"[{', '.join(_value(one, extended) for one in value.items)}]"


def _tensor(value: TensorValue, extended: bool) -> str:
    parts = [str(list(value.shape)), SHORT_OF.get(value.dtype, value.dtype)]
    usual = value.stride == contiguous_stride(value.shape) if extended else _is_contiguous(value)
    if not usual:
        parts.append(f"stride={value.stride}")
    if extended and value.offset:
        parts.append(f"offset={value.offset}")
    if extended and value.alias is not None:
        parts.append(f"alias={value.alias}")
    if extended and value.range is not None:
        parts.append(f"range={value.range}")
    return f"T({', '.join(parts)})"


def _is_contiguous(value: TensorValue) -> bool:
    """Say what torch says: strides of dimensions of size one do not count, nor any of an empty tensor."""
    usual = contiguous_stride(value.shape)
    different = (size > 1 and a != b for size, a, b in zip(value.shape, value.stride, usual, strict=True))
    return 0 in value.shape or not any(different)


def _scalar(value: ScalarValue) -> str:
    match value.type:
        case "str":
            return repr(value.value)
        case "dtype":
            return SHORT_OF.get(value.value, f"torch.{value.value}")
        case "device":
            return DEVICE
        case "layout" | "memory_format":
            return f"torch.{value.value}"
    return value.value
