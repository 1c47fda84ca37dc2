"""Parsed arguments against the schema of their operator: what a call means to this torch, or why it has none."""

from __future__ import annotations

from typing import Any

import torch

from day0.analyzers.traced_inputs.dtypes import ITEM_BYTES, TORCH_OF
from day0.analyzers.traced_inputs.grammar import Arguments
from day0.analyzers.traced_inputs.ranges import with_ranges
from day0.analyzers.traced_inputs.writing import qualified_name
from day0.errors import Day0Error
from day0.records import ScalarValue, Signature, Value
from day0.reference_ops.signatures import resolve

__all__ = ["fit"]

RENAMED = {"aten.sum.SymInt": "aten.sum.dim_IntList"}
"""Overloads that older logs name and torch has renamed since."""

NAMESPACES = frozenset({"aten", "prims", "day0", "torchvision"})
"""Operators that compute. Others open files, start processes or talk to other ranks, which no text may ask for."""


def fit(name: str, call: Arguments) -> Signature | str:
    """Return the signature of a call, or the reason why this torch has none."""
    name = RENAMED.get(name, name)
    if call.unfit:
        return f"it has {', '.join(call.unfit)}, which a signature has no place for"
    if name.partition(".")[0] not in NAMESPACES:
        return f"namespace {name.partition('.')[0]} is not imported from a text: {', '.join(sorted(NAMESPACES))} are"
    try:
        operator = resolve(qualified_name(name))
    except Day0Error as error:
        return f"{name}: {error.what}"
    arguments = operator._schema.arguments
    if any(one.name in ("filename", "path") for one in arguments):
        return f"{name} opens a file, which no text may ask for"
    reason = _misfit(call, arguments)
    if reason:
        return f"{name} {reason}"
    args = tuple(_typed(value, one) for value, one in zip(call.args, arguments, strict=False))
    by_name = {one.name: one for one in arguments}
    kwargs = {key: _typed(value, by_name[key]) for key, value in call.kwargs.items()}
    return with_ranges(Signature(op=operator.name(), args=args, kwargs=kwargs))


def _misfit(call: Arguments, arguments: list[Any]) -> str:
    """Say what the schema has against the arguments; empty if nothing."""
    positional = [one for one in arguments if not one.kwarg_only]
    if len(call.args) > len(positional):
        return f"takes {len(positional)} positional arguments, not {len(call.args)}"
    given = {one.name for one in positional[: len(call.args)]}
    for key in call.kwargs:
        if key in given:
            return f"is given '{key}' twice, by position and by name"
        if all(key != one.name for one in arguments):
            return f"has no argument '{key}'"
    lacking = [one.name for one in arguments if not one.has_default_value() and one.name not in (*given, *call.kwargs)]
    return f"lacks the argument '{lacking[0]}'" if lacking else ""


def _typed(value: Value, argument: Any) -> Value:
    """Read a quoted device or dtype as what the schema says it is."""
    if not isinstance(value, ScalarValue) or value.type != "str":
        return value
    kind = str(argument.real_type)
    if "Device" in kind and _is_device(value.value):
        return ScalarValue(type="device", value="device")
    plain = value.value.removeprefix("torch.").removeprefix("th.")
    if "ScalarType" in kind and TORCH_OF.get(plain, plain) in ITEM_BYTES:
        return ScalarValue(type="dtype", value=TORCH_OF.get(plain, plain))
    return value


def _is_device(text: str) -> bool:
    """Say whether a text names a device: `cuda`, `cuda:0`, `torch.device('cpu')`, `device(type='cuda', index=0)`."""
    if text.removeprefix("torch.").startswith("device("):
        return True
    try:
        torch.device(text)
    except RuntimeError:
        return False
    return True
