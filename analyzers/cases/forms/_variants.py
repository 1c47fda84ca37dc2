"""The in-place and the out overload of an operator."""

from __future__ import annotations

from day0.errors import Day0Error
from day0.records import Signature
from day0.reference_ops._spec import Operator
from day0.reference_ops.signatures import resolve

__all__ = ["in_place", "out"]


def in_place(signature: Signature, contract: Operator | None) -> str:
    """Return the name of the in-place overload with the same arguments; empty where there is none."""
    namespace, _, rest = signature.op.partition("::")
    name, dot, overload = rest.partition(".")
    if contract is not None or not _is_public(namespace, name):
        return ""
    return _same(signature.op, f"{namespace}::{name}_{dot}{overload}", 0)


def out(signature: Signature, contract: Operator | None) -> str:
    """Return the name of the overload that writes into arguments it is given; empty where there is none."""
    namespace, _, rest = signature.op.partition("::")
    name, _, overload = rest.partition(".")
    if contract is not None or not _is_public(namespace, name):
        return ""
    # torch has three ways of naming them.
    tried = ([f"{overload}_out"] if overload else []) + ["out"]
    return next((found for one in tried if (found := _same(signature.op, f"{namespace}::{name}.{one}", 1))), "")


def _is_public(namespace: str, name: str) -> bool:
    """Say whether people call it: overloads of torch's inner operators are for torch, which gives them fresh memory."""
    return namespace == "aten" and not name.startswith("_") and not name.endswith("_")


def _same(op: str, variant: str, most: int) -> str:
    """Return the variant if it takes the same arguments and at most so many more, by name."""
    try:
        mine, other = resolve(op)._schema.arguments, resolve(variant)._schema.arguments
    except Day0Error:
        return ""
    names, more = [one.name for one in mine], [one.name for one in other]
    fits = more[: len(names)] == names and len(more) <= len(names) + most
    kinds = all(str(one.type) == str(two.type) for one, two in zip(mine, other, strict=False))
    return variant if fits and kinds else ""
