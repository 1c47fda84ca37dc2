"""Kinds of operators: those that move values, those whose values are not defined."""

from __future__ import annotations

import torch

from day0.reference_ops.signatures import resolve

__all__ = ["is_move", "short_name", "without_values"]

_MOVES = frozenset(
    {
        "_to_copy",
        "_unsafe_view",
        "abs",
        "alias",
        "as_strided",
        "cat",
        "ceil",
        "clone",
        "constant_pad_nd",
        "copy",
        "detach",
        "embedding",
        "expand",
        "fill",
        "flip",
        "floor",
        "full",
        "full_like",
        "gather",
        "index",
        "index_copy",
        "index_put",
        "index_select",
        "masked_fill",
        "maximum",
        "minimum",
        "neg",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones",
        "ones_like",
        "permute",
        "relu",
        "repeat",
        "reshape",
        "roll",
        "round",
        "scatter",
        "select",
        "sign",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "stack",
        "t",
        "transpose",
        "tril",
        "triu",
        "unbind",
        "unsqueeze",
        "view",
        "where",
        "zero",
        "zeros",
        "zeros_like",
    }
)
"""Operators that move, choose or round values by a rule, without trailing `_`: the only right answer is the same bits."""

_NO_VALUES = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"})
"""Their results are fresh memory: only the layout is defined."""


def short_name(op: str) -> str:
    """Return `add` for `aten::add_.Tensor`."""
    return op.removeprefix("aten::").partition(".")[0].removesuffix("_")


def is_move(op: str) -> bool:
    """Say whether an operator's results are copies, so that values of every size test the same thing."""
    return short_name(op) in _MOVES


def without_values(op: str) -> bool:
    """Say whether only the layout of the results is defined: fresh memory, and random numbers of another stream."""
    return short_name(op) in _NO_VALUES or torch.Tag.nondeterministic_seeded in resolve(op).tags
