"""Whether the arguments that were built are the call that the signature describes."""

from __future__ import annotations

from typing import Any

from day0.records import ListValue, Signature, TensorValue, Value
from day0.reference_ops.signatures import describe

__all__ = ["mismatch"]


def mismatch(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], *, ranges: bool = True) -> str:
    """Return in what built arguments differ from a signature; nothing if they are the call it describes.

    Compared are shapes, dtypes, strides and offsets of tensors with elements, which of them share memory, scalars, and
    that integers lie within the traced range.
    """
    built = describe(signature.op, args, kwargs)
    wanted = [*signature.args, *(signature.kwargs[name] for name in sorted(signature.kwargs))]
    have = [*built.args, *(built.kwargs[name] for name in sorted(built.kwargs))]
    if len(wanted) != len(have) or sorted(signature.kwargs) != sorted(built.kwargs):
        return f"{len(have)} arguments were built for {len(wanted)}"
    shared: dict[int | None, int | None] = {}
    for number, (one, other) in enumerate(zip(wanted, have, strict=True)):
        if found := _differs(one, other, shared, ranges):
            return f"argument {number}: {found}"
    return ""


def _differs(wanted: Value, have: Value, shared: dict[int | None, int | None], ranges: bool) -> str:
    if isinstance(wanted, ListValue) and isinstance(have, ListValue):
        if len(wanted.items) != len(have.items):
            return f"{len(have.items)} items, expected {len(wanted.items)}"
        items = zip(wanted.items, have.items, strict=True)
        return next((found for one, other in items if (found := _differs(one, other, shared, ranges))), "")
    if isinstance(wanted, TensorValue) and isinstance(have, TensorValue):
        return _tensor_differs(wanted, have, shared, ranges)
    return "" if wanted == have else f"{have} was built for {wanted}"


def _tensor_differs(wanted: TensorValue, have: TensorValue, shared: dict[int | None, int | None], ranges: bool) -> str:
    facts = [("shape", wanted.shape, have.shape), ("dtype", wanted.dtype, have.dtype)]
    if 0 not in wanted.shape:
        facts += [("strides", wanted.stride, have.stride)]
        facts += [("offset", (wanted.offset,), (have.offset,))]
    for name, want, got in facts:
        if want != got:
            return f"{name} is {got}, expected {want}"
    apart = (wanted.alias is None) != (have.alias is None)
    if apart or (wanted.alias is not None and shared.setdefault(wanted.alias, have.alias) != have.alias):
        return "it shares memory where the traced call did not, or the other way round"
    if ranges and wanted.range is not None and have.range is not None:
        low, high = wanted.range
        if have.range[0] < low or have.range[1] > high:
            return f"its integers lie within {have.range}, expected {wanted.range}"
    return ""
