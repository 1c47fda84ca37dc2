"""The results of two calls, which have to be the same bits."""

from __future__ import annotations

from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.judging.exact import differs
from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.results import results
from day0.analyzers.judging.words import first_true, readable, text_at
from day0.reference_ops.signatures import tensors_in

__all__ = ["compare_bits", "kept_results", "like", "parts_of"]


def kept_results(operator: Any, output: Any, inputs: CaseInputs) -> tuple[torch.Tensor, ...]:
    """Return what a call gave and wrote, on the CPU, in memory of its own."""
    return tuple(one.detach().cpu().clone() for one in results(operator, output, inputs))


def parts_of(output: Any) -> list[torch.Tensor]:
    """Return what a call gave, on the CPU."""
    return [one.detach().cpu() for one in tensors_in(output)]


def like(made: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Return values with the strides of the whole result, where they have its shape: those are not what is compared."""
    if made.shape != whole.shape:
        return made
    return torch.empty_strided(made.shape, whole.stride(), dtype=made.dtype).copy_(made)


def compare_bits(
    first: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...], name: str, first_name: str
) -> Judgement | None:
    """Return in what the other call differs from the first, or None; `name` and `first_name` say which they are."""
    for one, two in zip(first, other, strict=True):
        if one.shape != two.shape or one.dtype != two.dtype:
            reason = f"{name} gave {two.dtype}{list(two.shape)}, {first_name} {one.dtype}{list(one.shape)}"
            return Judgement(passed=False, rule="repeat", reason=reason)
        wrong = differs(two, one)
        if bool(wrong.any()):
            index = first_true(wrong)[: one.dim()]
            return Judgement(
                passed=False,
                rule="repeat",
                reason=f"{int(wrong.sum())} elements of {name} differ from {first_name}",
                worst_index=index,
                worst_got=text_at(readable(two), index),
                worst_expected=text_at(readable(one), index),
            )
    return None
