"""A Python function for a torch schema: parameters, the call of something that takes the same ones, the result."""

from __future__ import annotations

import json
import keyword
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from day0.errors import Day0Error, near_names

if TYPE_CHECKING:
    import torch

__all__ = ["Written", "find_schema", "write_signature"]

WIDTH = 120

_TYPES = {
    "Tensor": "torch.Tensor",
    "SymInt": "int",
    "int": "int",
    "float": "float",
    "number": "float",
    "bool": "bool",
    "str": "str",
    "ScalarType": "torch.dtype",
    "Layout": "torch.layout",
    "Device": "torch.device",
    "MemoryFormat": "torch.memory_format",
    "Generator": "torch.Generator",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """One function, as text that ruff would not change."""

    head: str
    """`def name(...) -> ...:`."""
    body: str
    """The call of another function with the same arguments, and its return."""


def find_schema(operator: str) -> torch.FunctionSchema:
    """Return torch's schema of an operator, ours or its own.

    Raises Day0Error for a name that torch does not have, and for one that is several operators.
    """
    import torch

    from day0.reference_ops.torch_ops import register_operators

    register_operators()
    space, _, rest = operator.partition("::")
    name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, space, None), name, None) if space and name else None
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        known = tuple(sorted({one.partition(".")[0] for one in torch._C._dispatch_get_all_op_names()}))
        hint = near_names(operator, known) or "write it like aten::silu or day0::rms_norm; see `day0 ops list`"
        raise Day0Error("--for", f"there is no operator '{operator}'", hint=hint)
    overloads = sorted(packet.overloads())
    if (overload or "default") not in overloads:
        ways = [f"{space}::{name}{'' if one == 'default' else f'.{one}'}" for one in overloads if "out" not in one]
        what = f"torch has no overload '{overload}' of it" if overload else "torch has several operators of that name"
        raise Day0Error(f"--for {operator}", what, facts=tuple(ways[:12]), hint="name one of these")
    found: torch.FunctionSchema = getattr(packet, overload or "default")._schema
    return found


def write_signature(name: str, schema: torch.FunctionSchema, target: str) -> Written:
    """Write a function with the schema's arguments that returns what `target` does with the same arguments."""
    for argument in schema.arguments:
        if keyword.iskeyword(argument.name):
            raise Day0Error(
                schema.name,
                f"its argument '{argument.name}' cannot be a Python parameter",
                hint="write this one by hand",
            )
    returns = _returns(schema)
    given = [f"{one.name}={one.name}" if one.kwarg_only else one.name for one in schema.arguments]
    call = _fold("    " + ("" if returns == "None" else f"out: {returns} = ") + f"{target}(", given, ")", "    ")
    end = "" if returns == "None" else "\n    return out"
    return Written(head=_fold(f"def {name}(", _parameters(schema), f") -> {returns}:", ""), body=call + end)


def _parameters(schema: torch.FunctionSchema) -> list[str]:
    written: list[str] = []
    for one in schema.arguments:
        if one.kwarg_only and "*" not in written:
            written.append("*")
        default = f" = {_default(one.default_value)}" if one.has_default_value() else ""
        written.append(f"{one.name}: {_type(str(one.real_type))}{default}")
    return written


def _type(text: str) -> str:
    inner = re.fullmatch(r"(Optional|List)\[(.*)\]", text)
    if inner is None:
        return _TYPES.get(text, "object")
    return f"{_type(inner[2])} | None" if inner[1] == "Optional" else f"list[{_type(inner[2])}]"


def _default(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _returns(schema: torch.FunctionSchema) -> str:
    types = [_type(str(one.real_type)) for one in schema.returns]
    return types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]" if types else "None"


def _fold(before: str, items: list[str], after: str, indent: str) -> str:
    """Put a list between brackets as ruff's formatter does: on one line, on an own line, or a line for each."""
    flat = f"{before}{', '.join(items)}{after}"
    if len(flat) <= WIDTH or not items:
        return flat
    own = f"{indent}    {', '.join(items)}"
    if len(own) <= WIDTH:
        return f"{before}\n{own}\n{indent}{after}"
    lines = "".join(f"{indent}    {item},\n" for item in items)
    return f"{before}\n{lines}{indent}{after}"
