"""Root mean square normalisation of the last dimension.

Shape suffixes: X any leading dimensions, D features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Sample, Tolerance

__all__ = ["OP", "check_norm", "fake", "normalise", "reference", "validate"]

NAME = "day0::rms_norm"


def validate(x_XD: torch.Tensor, weight_D: torch.Tensor, eps: float, round_first: bool = True) -> None:
    """Refuse arguments that break the contract."""
    check_norm(Arguments(NAME), x_XD, weight_D, eps)


def check_norm(check: Arguments, x_XD: torch.Tensor, weight_D: torch.Tensor, eps: float) -> None:
    """Refuse what no normalisation of this family takes."""
    check.floating("x", x_XD)
    check.true("x", x_XD.dim() >= 1 and x_XD.shape[-1] >= 1, "a last dimension of 1 or more", list(x_XD.shape))
    check.shape("weight", weight_D, "D")
    check.true("weight", weight_D.shape[0] == x_XD.shape[-1], f"size {x_XD.shape[-1]}, as x", list(weight_D.shape))
    check.dtype("weight", weight_D, *dict.fromkeys((x_XD.dtype, torch.float32)))
    check.true("eps", math.isfinite(eps) and eps >= 0, "0 or a positive number", eps)


def reference(x_XD: torch.Tensor, weight_D: torch.Tensor, eps: float, round_first: bool = True) -> torch.Tensor:
    """Return [..., D] in the dtype of x, also where the weight is float32.

    The mean and the root are taken in float32 (float64 for float64). With `round_first` the normalised values are
    rounded to the dtype of x before the weight multiplies them; without, the product alone is rounded.
    """
    validate(x_XD, weight_D, eps, round_first)
    return normalise(x_XD, weight_D, eps, round_first)


def normalise(x_XD: torch.Tensor, weight_D: torch.Tensor, eps: float, round_first: bool) -> torch.Tensor:
    """Do the arithmetic of `reference`, for operators that contain it."""
    wide = torch.float64 if x_XD.dtype == torch.float64 else torch.float32
    wide_XD = x_XD.to(wide)
    normed_XD = wide_XD * torch.rsqrt(wide_XD.square().mean(dim=-1, keepdim=True) + eps)
    if round_first:
        normed_XD = normed_XD.to(x_XD.dtype).to(wide)
    return (normed_XD * weight_D.to(wide)).to(x_XD.dtype).contiguous()


def fake(x_XD: torch.Tensor, weight_D: torch.Tensor, eps: float, round_first: bool = True) -> torch.Tensor:
    """Shape and dtype of the result."""
    validate(x_XD, weight_D, eps, round_first)
    return x_XD.new_empty(x_XD.shape)


def flops(x_XD: torch.Tensor, weight_D: torch.Tensor, eps: float, round_first: bool = True) -> int:
    """Square, sum and two products for each element."""
    return 4 * x_XD.numel()


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, both orders on odd sizes, nothing, zeros, huge and tiny values, and the width of Kimi K3."""
    weight_D = 1.0 + 0.2 * torch.randn(8, generator=generator)
    yield Sample(kind="small", args=(torch.randn(3, 8, generator=generator), weight_D, 1e-6), kwargs={})
    for round_first in (True, False):
        x_XD = torch.randn(2, 3, 37, generator=generator).to(torch.bfloat16)
        weight_D = torch.randn(37, generator=generator).to(torch.bfloat16 if round_first else torch.float32)
        yield Sample(kind="odd", args=(x_XD, weight_D, 1e-5, round_first), kwargs={})
    yield Sample(kind="corner", args=(torch.zeros(0, 4), torch.ones(4), 1e-6), kwargs={})
    extreme_XD = torch.tensor([[0.0, 0.0, 0.0], [1e15, -1e15, 1.0], [1e-15, 0.0, -1e-15]])
    yield Sample(kind="corner", args=(extreme_XD, torch.ones(3), 1e-6, False), kwargs={})
    weight_D = 1.0 + 0.2 * torch.randn(7168, generator=generator)
    yield Sample(
        kind="traced",
        args=(torch.randn(1, 4, 7168, generator=generator).to(torch.bfloat16), weight_D.to(torch.bfloat16), 1e-5),
        kwargs={},
    )


OP = Operator(
    name=NAME,
    version=1,
    summary="root mean square normalisation",
    schema="(Tensor x, Tensor weight, float eps, bool round_first=True) -> Tensor",
    mathematics="y = round(x / sqrt(mean(x^2) + eps)) w, rounded to the dtype of x; without round_first the inner round "
    "is left out",
    source="arXiv 1910.07467; transformers' Llama and Kimi Linear (rounds first), DeepSeek-V3's inference code (does not)",
    reference=reference,
    fake=fake,
    flops=flops,
    samples=samples,
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=1e-2,
        ulps=2.0,
        reason="the two orders of rounding are at most one ULP apart; one more for the sum in another order, which moves "
        "a value over the edge between two roundings",
    ),
    attributes=(
        Attribute(name="eps", meaning="added to the mean square, 1e-5 or 1e-6"),
        Attribute(
            name="round_first", meaning="round before the weight multiplies (Kimi, transformers) or not (DeepSeek)"
        ),
    ),
    verified_against="torch's rms_norm; transformers' Llama, Kimi Linear (round first) and Gemma (multiply wide)",
)
