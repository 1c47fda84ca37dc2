"""Shape, dtype, device and strides."""

from __future__ import annotations

import torch

from day0.analyzers.judging.judgement import Judgement

__all__ = ["layout"]


def layout(
    got: torch.Tensor,
    expected: torch.Tensor,
    device_type: str,
    *,
    free_dtype: bool = False,
    strides: bool = True,
    is_view: bool = False,
) -> Judgement:
    """Shape, dtype unless it is free, device and, for dimensions that have more than one element, strides.

    A view says besides whether it is conjugated or negated when read: another tensor that reads so would not share its
    memory rightly. Other results may carry these marks or have computed them.
    """
    facts = (
        ("shape", tuple(got.shape), tuple(expected.shape)),
        ("dtype", got.dtype, got.dtype if free_dtype else expected.dtype),
        ("device", got.device.type, device_type),
        ("strides", _strides(got), _strides(expected) if strides else _strides(got)),
        ("conjugate mark", got.is_conj(), expected.is_conj() if is_view else got.is_conj()),
        ("negative mark", got.is_neg(), expected.is_neg() if is_view else got.is_neg()),
    )
    for name, have, want in facts:
        if have != want:
            return Judgement(passed=False, rule="layout", reason=f"{name} is {have}, expected {want}")
    return Judgement(passed=True, rule="layout")


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    if tensor.numel() == 0:
        return ()
    return tuple(step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
