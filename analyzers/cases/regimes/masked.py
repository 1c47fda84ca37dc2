"""Rows that are closed altogether: every flag False, every score minus infinity; and a row that is open altogether."""

from __future__ import annotations

from typing import Any

import torch

from day0.analyzers.cases.kinds import is_aten, says_values
from day0.analyzers.cases.regimes._regime import Regime
from day0.analyzers.judging.kinds import short_name
from day0.records import Signature
from day0.reference_ops._spec import Operator
from day0.reference_ops._write import write
from day0.reference_ops.signatures import resolve, tensor_values, tensors_in

__all__ = ["REGIME"]

_SCORES = frozenset(
    [
        "softmax",
        "_softmax",
        "_safe_softmax",
        "topk",
        "sort",
        "argsort",
        "max",
        "argmax",
        "amax",
        "logsumexp",
        "where",
        "masked_fill",
    ]
)
"""Operators of torch whose first floating argument is a row of scores, where minus infinity means: not this one."""
_MASKS = frozenset({"mask", "attn_mask", "attn_bias"})


def _applies(signature: Signature, contract: Operator | None) -> bool:
    has_flags = any(value.dtype == "bool" and len(value.shape) for value in tensor_values(signature))
    named = any(one.name in _MASKS for one in resolve(signature.op)._schema.arguments)
    return says_values(signature) and (
        has_flags or named or (is_aten(signature) and short_name(signature.op) in _SCORES)
    )


def _arrange(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> str:
    names = [one.name for one in resolve(signature.op)._schema.arguments]
    given = [*zip(names, args, strict=False), *kwargs.items()]
    for name, value in given:
        if isinstance(value, torch.Tensor) and value.numel() and value.dim():
            if value.dtype == torch.bool:
                _close(value, False, True)
            elif name in _MASKS and value.is_floating_point():
                _close(value, float("-inf"), 0.0)
    if short_name(signature.op) == "where" and _fill_mask(args):
        return ""
    if is_aten(signature) and short_name(signature.op) in _SCORES:
        scores = next((one for one in tensors_in(args) if one.is_floating_point() and one.numel() and one.dim()), None)
        if scores is not None:
            _close(scores, float("-inf"), None)
    return ""


def _fill_mask(args: tuple[Any, ...]) -> bool:
    """Let `where` turn flags into numbers to add, as models make masks: 0 where it is open, minus infinity elsewhere."""
    numbers = [one for one in args[1:] if isinstance(one, torch.Tensor) and one.is_floating_point() and not one.dim()]
    if len(numbers) == 2:
        for one, value in zip(numbers, (0.0, float("-inf")), strict=True):
            one.fill_(value)
    return len(numbers) == 2


def _close(tensor: torch.Tensor, closed: Any, opened: Any) -> None:
    """Close the first row and half of the second, and open the last."""
    rows = tensor.unsqueeze(0) if tensor.dim() == 1 else tensor.flatten(0, -2) if tensor.is_contiguous() else tensor[0]
    rows = rows.unsqueeze(0) if rows.dim() == 1 else rows
    write(rows[0], torch.full(rows[0].shape, closed, dtype=tensor.dtype))
    if rows.shape[0] > 2:
        half = rows[1][..., : rows.shape[-1] // 2]
        write(half, torch.full(half.shape, closed, dtype=tensor.dtype))
        if opened is not None:
            write(rows[-1], torch.full(rows[-1].shape, opened, dtype=tensor.dtype))


REGIME = Regime(
    name="masked",
    why="rows without anything to attend to, and masks that are read the other way round",
    applies=_applies,
    arrange=_arrange,
)
