"""Kinds of operators, as far as values and calls for them are concerned."""

from __future__ import annotations

import torch

from day0.analyzers.judging.kinds import is_move, short_name, without_values
from day0.records import Signature
from day0.reference_ops.signatures import dtype_of, resolve, tensor_values

__all__ = [
    "COMPARES",
    "has_floats",
    "is_aten",
    "is_computed",
    "is_repeatable",
    "is_view",
    "keeps_order",
    "mutated",
    "narrow_floats",
    "says_values",
    "takes_mean_off",
    "ties_matter",
]

COMPARES = frozenset(
    [
        "topk",
        "sort",
        "argsort",
        "max",
        "min",
        "argmax",
        "argmin",
        "amax",
        "amin",
        "eq",
        "ne",
        "ge",
        "gt",
        "le",
        "lt",
        "sign",
        "round",
        "floor",
        "ceil",
        "maximum",
        "minimum",
        "relu",
        "clamp",
        "clamp_min",
        "clamp_max",
        "searchsorted",
        "msort",
        "kthvalue",
        "unique2",
        "unique",
        "nonzero",
    ]
)
"""Operators for which equal values, and zeros, are a case of their own."""


def is_aten(signature: Signature) -> bool:
    """Say whether the operator is one of torch's own."""
    return signature.op.startswith("aten::")


def is_view(signature: Signature) -> bool:
    """Say whether the operator only looks at memory in another way."""
    operator = resolve(signature.op)
    return bool(operator.is_view) or short_name(signature.op) in ("_unsafe_view", "view", "alias", "detach")


def has_floats(signature: Signature) -> bool:
    """Say whether an argument holds floating values."""
    return any("float" in value.dtype for value in tensor_values(signature))


def says_values(signature: Signature) -> bool:
    """Say whether the values of the results follow from those of the arguments, and there are some."""
    return not without_values(signature.op) and not is_view(signature) and any(True for _ in tensor_values(signature))


def is_computed(signature: Signature) -> bool:
    """Say whether results are computed from floats rather than copied."""
    return has_floats(signature) and says_values(signature) and not is_move(signature.op)


def ties_matter(signature: Signature) -> bool:
    """Say whether the operator compares values with each other."""
    return not is_aten(signature) or short_name(signature.op).lstrip("_") in COMPARES


_OWN_ORDER = frozenset({"sort", "argsort", "msort"})


def keeps_order(signature: Signature) -> bool:
    """Say whether the memory order of the result follows from that of the arguments; sorts choose it themselves."""
    return not (is_aten(signature) and short_name(signature.op) in _OWN_ORDER)


_NORMALISES = frozenset(
    ["native_layer_norm", "native_group_norm", "native_batch_norm", "var", "std", "var_mean", "std_mean"]
)


def takes_mean_off(signature: Signature) -> bool:
    """Say whether the operator divides by a deviation from the mean: where that is 0, roundings are all that is left."""
    return is_aten(signature) and short_name(signature.op) in _NORMALISES


def is_repeatable(signature: Signature) -> bool:
    """Say whether the same call has the same result by the operator's contract."""
    tags = resolve(signature.op).tags
    return not {torch.Tag.nondeterministic_seeded, torch.Tag.nondeterministic_bitwise} & set(tags)


def mutated(signature: Signature) -> tuple[str, ...]:
    """Return the names of the arguments that the schema says are written to."""
    arguments = resolve(signature.op)._schema.arguments
    return tuple(one.name for one in arguments if one.alias_info is not None and one.alias_info.is_write)


def narrow_floats(signature: Signature) -> bool:
    """Say whether an argument holds floats of eight bits or fewer, whose codes are not values by themselves."""
    return any(
        dtype_of(value.dtype).is_floating_point and dtype_of(value.dtype).itemsize == 1
        for value in tensor_values(signature)
    )
