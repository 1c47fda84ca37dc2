"""Add to the residual stream and normalise the sum.

Shape suffixes: X any leading dimensions, D features.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance
from day0.reference_ops.rms_norm import check_norm, normalise

__all__ = ["OP", "fake", "reference", "validate"]

NAME = "day0::fused_add_rms_norm"


def validate(
    x_XD: torch.Tensor, residual_XD: torch.Tensor, weight_D: torch.Tensor, eps: float, round_first: bool = True
) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check_norm(check, x_XD, weight_D, eps)
    # No broadcasting: a residual of another shape is a mistake.
    check.true("residual", residual_XD.shape == x_XD.shape, f"shape {list(x_XD.shape)}", list(residual_XD.shape))
    check.dtype("residual", residual_XD, x_XD.dtype)


def reference(
    x_XD: torch.Tensor, residual_XD: torch.Tensor, weight_D: torch.Tensor, eps: float, round_first: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the normalised sum and the sum, both [..., D] in the dtype of x.

    What is normalised is the sum as it is returned, rounded to the dtype of x: the same as an addition and then
    `day0::rms_norm`. Neither argument changes.
    """
    validate(x_XD, residual_XD, weight_D, eps, round_first)
    sum_XD = (x_XD + residual_XD).contiguous()
    return normalise(sum_XD, weight_D, eps, round_first), sum_XD


def fake(
    x_XD: torch.Tensor, residual_XD: torch.Tensor, weight_D: torch.Tensor, eps: float, round_first: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes and dtypes of the results."""
    validate(x_XD, residual_XD, weight_D, eps, round_first)
    return x_XD.new_empty(x_XD.shape), x_XD.new_empty(x_XD.shape)


def flops(
    x_XD: torch.Tensor, residual_XD: torch.Tensor, weight_D: torch.Tensor, eps: float, round_first: bool = True
) -> int:
    """One sum more than the normalisation alone."""
    return 5 * x_XD.numel()


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, both orders with a sum that has to be rounded, nothing, a sum of zero, and the width of Kimi K3."""
    x_XD, residual_XD = torch.randn(3, 8, generator=generator), torch.randn(3, 8, generator=generator)
    yield Sample(kind="small", args=(x_XD, residual_XD, torch.ones(8), 1e-6), kwargs={})
    for round_first in (True, False):
        x_XD = torch.randn(2, 3, 37, generator=generator).to(torch.bfloat16)
        residual_XD = (30.0 * torch.randn(2, 3, 37, generator=generator)).to(torch.bfloat16)
        weight_D = torch.randn(37, generator=generator).to(torch.bfloat16)
        yield Sample(kind="odd", args=(x_XD, residual_XD, weight_D, 1e-5, round_first), kwargs={})
    yield Sample(kind="corner", args=(torch.zeros(0, 4), torch.zeros(0, 4), torch.ones(4), 1e-6), kwargs={})
    opposite_XD = torch.randn(1, 5, generator=generator)
    yield Sample(kind="corner", args=(opposite_XD, -opposite_XD, torch.ones(5), 1e-6), kwargs={})
    x_XD, residual_XD = (torch.randn(4, 7168, generator=generator).to(torch.bfloat16) for _ in range(2))
    weight_D = (1.0 + 0.2 * torch.randn(7168, generator=generator)).to(torch.bfloat16)
    yield Sample(kind="traced", args=(x_XD, residual_XD, weight_D, 1e-5), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="residual addition and root mean square normalisation in one",
    schema="(Tensor x, Tensor residual, Tensor weight, float eps, bool round_first=True) -> (Tensor, Tensor)",
    mathematics="s = round(x + residual); y = rms_norm(s, weight, eps, round_first); the results are y and s",
    source="the operator of the same name in vLLM, whose kernels normalise the rounded sum and write s over the residual",
    reference=reference,
    fake=fake,
    flops=flops,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-2,
        ulps=2.0,
        reason="as day0::rms_norm; a kernel that normalises the sum before it is rounded is within this as well, and the "
        "sum itself has one right answer in its dtype",
    ),
    attributes=(
        Attribute(name="eps", meaning="added to the mean square, 1e-5 or 1e-6"),
        Attribute(
            name="round_first", meaning="round before the weight multiplies (Kimi, transformers) or not (DeepSeek)"
        ),
    ),
    verified_against="torch's addition and rms_norm; transformers' Llama",
)
