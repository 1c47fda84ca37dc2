"""Operators' schemas as data, and calls by the names that a schema gives to arguments."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import torch

from day0.devices.profile_parts import layout_of
from day0.errors import Day0Error
from day0.implementation import Argument, Call, DtypeName, Plain, TensorFacts
from day0.records import ListValue, ScalarValue, Signature, TensorValue, Value
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import dtype_name, resolve

__all__ = ["Parameter", "call_now", "call_of", "overloads_of", "parameters_of", "schema_text"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One argument of an operator, as its schema says."""

    name: str
    type: str
    """torch's own name of the type, such as `Tensor`, `Optional[Tensor]`, `List[Tensor]`, `ScalarType`."""
    kwarg_only: bool
    has_default: bool
    default: Plain = None

    @property
    def is_optional(self) -> bool:
        """Whether None is a value of it."""
        return self.type.startswith("Optional[")

    @property
    def is_tensor(self) -> bool:
        """Whether a tensor, or a list of tensors, goes there."""
        return "Tensor" in self.type

    @property
    def is_list(self) -> bool:
        """Whether a list goes there."""
        return "List[" in self.type


def parameters_of(op: str) -> tuple[Parameter, ...]:
    """Return the arguments of one overload, of ours by its file, of others as torch holds it.

    Raises Day0Error for an operator that torch does not know.
    """
    return _parameters(op)


def schema_text(op: str) -> str:
    """Return the schema of one overload for people."""
    return str(_schema(op))


def overloads_of(operator: str) -> tuple[str, ...]:
    """Return the overloads that an implementation's operator names: one, or all of `aten::add`, the default first."""
    namespace, _, name = operator.partition("::")
    if "." in name or (operator in load_operators() and load_operators()[operator].schema):
        return (operator,)
    packet = getattr(getattr(torch.ops, namespace), name, None) if namespace and name else None
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return ()
    found = sorted(packet.overloads(), key=lambda one: (one != "default", one))
    return tuple(operator if one == "default" else f"{operator}.{one}" for one in found)


@cache
def _parameters(op: str) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(
            name=one.name,
            type=str(one.real_type),
            kwarg_only=one.kwarg_only,
            has_default=one.has_default_value(),
            default=_plain(one.default_value),
        )
        for one in _schema(op).arguments
    )


def _schema(op: str) -> Any:
    own = load_operators().get(op)
    return torch._C.parse_schema(op + own.schema) if own is not None and own.schema else resolve(op)._schema


def _plain(value: Any) -> Plain:
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    return value if isinstance(value, (bool, int, float, complex, str)) else None


def call_of(signature: Signature, device: str) -> Call:
    """Return a call by the names of its operator's schema, on a torch device type.

    Arguments of an operator that torch does not know are named by their position.
    """
    args = tuple(_argument(value) for value in signature.args)
    return _call(signature.op, device, args, {name: _argument(value) for name, value in signature.kwargs.items()})


def call_now(op: str, device: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Return a call that is being made, as `call_of` does for one that was recorded; no value of a tensor is read."""
    return _call(op, device, tuple(map(_fact, args)), {name: _fact(value) for name, value in kwargs.items()})


def _call(op: str, device: str, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> Call:
    try:
        parameters = parameters_of(op)
    except Day0Error:
        parameters = ()
    names = [one.name for one in parameters]
    names += [str(position) for position in range(len(names), len(args))]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    arguments: dict[str, Argument] = {}
    for one in parameters:
        if one.name in given:
            arguments[one.name] = given.pop(one.name)
        elif one.has_default:
            arguments[one.name] = one.default
    return Call(op=op, device=device, arguments=MappingProxyType({**arguments, **given}))


def _fact(value: Any) -> Argument:
    if isinstance(value, torch.Tensor):
        shape, stride = tuple(map(int, value.shape)), tuple(map(int, value.stride()))
        dense = layout_of(shape, stride) == "contiguous"
        return TensorFacts(shape=shape, dtype=dtype_name(value.dtype), stride=stride, contiguous=dense)
    if isinstance(value, torch.dtype):
        return DtypeName(dtype_name(value))
    if isinstance(value, (list, tuple)):
        return tuple(map(_fact, value))  # type: ignore[return-value]  # torch nests no lists
    return value if isinstance(value, (bool, int, float, complex, str)) else None


def _argument(value: Value) -> Argument:
    if isinstance(value, TensorValue):
        dense = layout_of(value.shape, value.stride) == "contiguous"
        return TensorFacts(shape=value.shape, dtype=value.dtype, stride=value.stride, contiguous=dense)
    if isinstance(value, ListValue):
        return tuple(_argument(item) for item in value.items)  # type: ignore[return-value]  # torch nests no lists
    return _scalar(value)


def _scalar(value: ScalarValue) -> Plain:
    match value.type:
        case "none":
            return None
        case "bool":
            return value.value == "True"
        case "int":
            return int(value.value)
        case "float":
            return float(value.value)
        case "complex":
            return complex(value.value)
        case "dtype":
            return DtypeName(value.value)
    return value.value
