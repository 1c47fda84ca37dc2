"""Is an implementation written for the operator that it names? Version, Python signature, names in its constraints."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence

import torch

from day0.errors import USER_ERRORS, Day0Error, near_names
from day0.implementation import Constraints, Implementation, Limit, Plain, TensorLimit
from day0.reference_ops.load import contract_of, load_operators, operator_file
from day0.registry.conflicts import Conflict, Owner, refuse
from day0.registry.schemas import Parameter, overloads_of, parameters_of, schema_text

__all__ = [
    "contract_version",
    "find_drift",
    "refuse_drift",
    "refuse_overload",
    "refuse_unknown_operator",
    "signature_fault",
]

EMPTY = inspect.Parameter.empty
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_SHAPE_SUFFIX = re.compile(r"_[A-Z0-9][A-Za-z0-9]*$")
"""Tensor names carry their shape in Python, `q_BSHD` or `streams_BSnD`, and do not in a schema."""


def contract_version(operator: str) -> int:
    """Return the current contract of an operator: of its file, or 1 where torch alone says what it means."""
    own = contract_of(operator)
    return own.version if own is not None else 1


def refuse_overload(one: Implementation, op: str) -> str:
    """Say why an implementation is not for this overload and this contract, or return an empty text."""
    current = contract_version(op)
    if one.contract != current:
        return f"it is written for contract {one.contract} of {op.partition('.')[0]}, and contract {current} is current"
    if _is_strict(op) or "." in one.operator:
        return ""  # looked at when it was loaded
    try:
        fault = signature_fault(one.run, parameters_of(op), strict=False)
    except Day0Error:
        return ""  # not an operator of this torch; who calls it will say so
    return f"its run() does not fit {op}: {fault}" if fault else ""


def refuse_unknown_operator(one: Implementation) -> None:
    """Raise Day0Error for an implementation of an operator that neither torch nor day0 knows."""
    known = set(torch._C._dispatch_get_all_op_names()) | set(load_operators())
    names = known | {name.partition(".")[0] for name in known}
    if one.operator not in names:
        hint = near_names(one.operator, tuple(sorted(names))) or "write it like aten::silu or aten::add.Tensor"
        raise Day0Error(one.origin, f"there is no operator '{one.operator}'", hint=hint)


def find_drift(one: Implementation) -> tuple[Conflict, ...]:
    """Say where an implementation does not fit the contract that it states: its Python signature, names in constraints.

    One that states another contract than the current is left to resolution, which refuses it with that reason.
    """
    if one.contract != contract_version(one.operator):
        return ()
    overloads = overloads_of(one.operator)
    strict = _is_strict(one.operator)
    faults = [signature_fault(one.run, parameters_of(op), strict=strict) for op in overloads]
    if faults and "" not in faults:
        what = f"run() of {one.identity} does not fit contract {one.contract}: {faults[0]}"
        return (_drift(one, overloads, what, f"run():    {_shown(one.run)}"),)
    fault = _constraint_fault(one.constraints, [parameters_of(op) for op in overloads])
    what = f"constraints of {one.identity}: {fault}"
    return (_drift(one, overloads, what, str(one.identity)),) if fault else ()


def refuse_drift(one: Implementation) -> None:
    """Raise Day0Error, with both shown, where an implementation does not fit the contract that it states."""
    refuse(find_drift(one))


def _drift(one: Implementation, overloads: Sequence[str], what: str, mine: str) -> Conflict:
    own = one.operator in load_operators() and load_operators()[one.operator].schema
    source = f"reference_ops/{operator_file(one.operator).name}" if own else f"torch {torch.__version__}"
    contract = Owner(what=f"contract: {schema_text(overloads[0])}", origin=source)
    return Conflict(
        kind="contract_drift",
        where=one.origin,
        what=what,
        owners=(contract, Owner(what=mine, origin=one.origin)),
        hint="take the arguments of the contract, by its names, in its order and with its defaults",
    )


def _is_strict(operator: str) -> bool:
    """Whether names count too. Of aten, torch passes what has no `*` before it by position."""
    return operator.startswith("day0::")


def _shown(run: Callable[..., object]) -> str:
    found = inspect.signature(run)
    bare = [one.replace(annotation=EMPTY) for one in found.parameters.values()]
    signature = found.replace(parameters=bare, return_annotation=inspect.Signature.empty)
    return f"{getattr(run, '__name__', type(run).__name__)}{signature}"


def signature_fault(run: Callable[..., object], schema: Sequence[Parameter], *, strict: bool) -> str:
    """Say how a callable does not fit the arguments of a schema, or return an empty text.

    torch leaves out arguments that equal the schema's default, so another default would be another call. What cannot
    be inspected, such as a builtin of torch, is not judged.
    """
    try:
        python = list(inspect.signature(run).parameters.values())
    except USER_ERRORS:
        return ""
    faults = (*_positional_faults(python, schema, strict), *_keyword_faults(python, schema, strict))
    return next((fault for fault in faults if fault), "")


def _positional_faults(python: list[inspect.Parameter], schema: Sequence[Parameter], strict: bool) -> Iterator[str]:
    wanted = [one for one in schema if not one.kwarg_only]
    mine = [one for one in python if one.kind in POSITIONAL]
    rest = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in python)
    names = {one.name for one in schema}
    for place, one in enumerate(wanted):
        if place >= len(mine):
            yield "" if rest else f"there is no place for '{one.name}'"
        else:
            yield _name_fault(mine[place], one, names, place, strict)
            yield _default_fault(mine[place], one, strict)
            if strict and mine[place].kind is inspect.Parameter.POSITIONAL_ONLY:
                yield f"'{one.name}' cannot be given by name"
    keyworded = {one.name for one in schema if one.kwarg_only}
    for extra in mine[len(wanted) :]:
        if extra.name not in keyworded or strict:
            yield _extra_fault(extra, strict)


def _name_fault(mine: inspect.Parameter, one: Parameter, names: set[str], place: int, strict: bool) -> str:
    bare = mine.name if mine.name in names else _SHAPE_SUFFIX.sub("", mine.name)
    if bare == one.name or (not strict and bare not in names):
        return ""
    return f"argument {place} is '{one.name}', and it has '{mine.name}' there"


def _keyword_faults(python: list[inspect.Parameter], schema: Sequence[Parameter], strict: bool) -> Iterator[str]:
    wanted = {one.name: one for one in schema if one.kwarg_only}
    taken = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    mine = {one.name: one for one in python if one.kind in taken}
    rest = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in python)
    for name, one in wanted.items():
        if name in mine:
            yield _default_fault(mine[name], one, strict)
        else:
            yield "" if rest else f"it cannot take the keyword '{name}'"
    for extra in python:
        if extra.kind is inspect.Parameter.KEYWORD_ONLY and extra.name not in wanted:
            yield _extra_fault(extra, strict)


def _extra_fault(extra: inspect.Parameter, strict: bool) -> str:
    if extra.default is EMPTY:
        return f"it wants '{extra.name}', which nothing gives it"
    return f"it has '{extra.name}' besides" if strict else ""


def _default_fault(mine: inspect.Parameter, one: Parameter, strict: bool) -> str:
    if not one.has_default:
        return (
            f"'{one.name}' has no default, and it gives {mine.default!r}"
            if strict and mine.default is not EMPTY
            else ""
        )
    if mine.default is EMPTY:
        return f"'{one.name}' has the default {one.default!r}, and it has none"
    if _same_default(mine.default, one.default):
        return ""
    return f"'{one.name}' has the default {one.default!r}, and it has {mine.default!r}"


def _same_default(mine: object, schema: Plain) -> bool:
    if isinstance(mine, (torch.dtype, torch.layout, torch.memory_format, torch.device)):
        return schema is not None  # a schema holds them as codes
    if isinstance(mine, (list, tuple)):
        return isinstance(schema, tuple) and len(mine) == len(schema) and all(map(_same_default, mine, schema))
    return type(mine) in (bool, int, float, complex, str, type(None)) and mine == schema


def _constraint_fault(limits: Constraints, schemas: Sequence[Sequence[Parameter]]) -> str:
    """Say which argument that constraints name no overload has, or has otherwise."""
    if not schemas:
        return ""
    known = {one.name: one for schema in reversed(schemas) for one in schema}
    for key, limit in limits.arguments.items():
        fault = _argument_fault(key, limit, known, max(map(len, schemas)))
        if fault:
            return fault
    for name in (name for pair in limits.equal for name, _ in pair):
        if name not in known or not known[name].is_tensor:
            return f"equal: the operator has no tensor '{name}'"
    return next((fault for one in limits.any_of if (fault := _constraint_fault(one, schemas))), "")


def _argument_fault(key: str | int, limit: Limit | TensorLimit, known: dict[str, Parameter], length: int) -> str:
    if isinstance(key, int):
        return "" if 0 <= key < length else f"there is no argument {key}: the operator has {length}"
    if key not in known:
        return f"the operator has no argument '{key}'"
    if isinstance(limit, TensorLimit) and not known[key].is_tensor:
        return f"'{key}' is no tensor, and is limited as one"
    if isinstance(limit, Limit) and known[key].is_tensor and limit != Limit(one_of=(None,)):
        return f"'{key}' is a tensor: limit it by a TensorLimit, or to (None,)"
    return ""
