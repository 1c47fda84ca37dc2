"""Normalise and quantise to FP8 in one.

Shape suffixes: N tokens, D features, G = ceil(D / group) groups.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from day0.reference_ops import fp8_block_quantise
from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Attribute, Operator, Quantisation, Sample, Tolerance
from day0.reference_ops.rms_norm import check_norm, normalise

__all__ = ["OP", "fake", "reference", "validate"]

NAME = "day0::rms_norm_quantise"
SMALLEST_AMAX = 1e-10
"""A group of zeros needs a scale too."""


def validate(x_ND: torch.Tensor, weight_D: torch.Tensor, eps: float, group: int, power_of_two: bool) -> None:
    """Refuse arguments that break the contract."""
    check = Arguments(NAME)
    check.shape("x", x_ND, "ND")
    check_norm(check, x_ND, weight_D, eps)
    check.true("group", group >= 0, "0 for one scale a token, or the size of a group", group)


def reference(
    x_ND: torch.Tensor, weight_D: torch.Tensor, eps: float, group: int, power_of_two: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes [N, D] float8_e4m3fn and scales [N, G] float32; code times scale is the normalised value.

    The same bits as `day0::rms_norm`, rounded first and in the dtype of x, and then `day0::fp8_block_quantise` with
    blocks of one token; what is not finite makes its token NaN.
    """
    validate(x_ND, weight_D, eps, group, power_of_two)
    wide = torch.float64 if x_ND.dtype == torch.float64 else torch.float32
    normed_ND = normalise(x_ND, weight_D, eps, round_first=True).to(wide)
    codes_ND, scales_NG = fp8_block_quantise.reference(
        normed_ND, 1, group or x_ND.shape[1], power_of_two, SMALLEST_AMAX
    )
    return codes_ND.contiguous(), scales_NG.contiguous()


def normalised(x_ND: torch.Tensor, weight_D: torch.Tensor, eps: float, group: int, power_of_two: bool) -> torch.Tensor:
    """Return what is quantised [N, D], in float64 and rounded nowhere."""
    return normalise(x_ND.to(torch.float64), weight_D.to(torch.float64), eps, round_first=False)


def spread(
    scales_NG: torch.Tensor,
    x_ND: torch.Tensor,
    weight_D: torch.Tensor,
    eps: float,
    group: int,
    power_of_two: bool,
) -> torch.Tensor:
    """Return each scale over its group [N, D]."""
    return fp8_block_quantise.expand(scales_NG, x_ND.shape[0], x_ND.shape[1], 1, group or x_ND.shape[1])


def _power_of_two(x_ND: torch.Tensor, weight_D: torch.Tensor, eps: float, group: int, power_of_two: bool) -> bool:
    return power_of_two


def fake(
    x_ND: torch.Tensor, weight_D: torch.Tensor, eps: float, group: int, power_of_two: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes and dtypes of the results."""
    validate(x_ND, weight_D, eps, group, power_of_two)
    tokens, width = x_ND.shape
    groups = -(-width // group) if group else 1
    codes_ND = x_ND.new_empty((tokens, width), dtype=torch.float8_e4m3fn)
    return codes_ND, x_ND.new_empty((tokens, groups), dtype=torch.float32)


def flops(x_ND: torch.Tensor, weight_D: torch.Tensor, eps: float, group: int, power_of_two: bool) -> int:
    """The normalisation, a comparison and a quotient for each element."""
    return 6 * x_ND.numel()


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Small, a short last group with both scales, one scale a token, nothing, zeros and outliers, Kimi K3's width."""
    x_ND = torch.randn(3, 8, generator=generator)
    yield Sample(kind="small", args=(x_ND, torch.ones(8), 1e-6, 4, False), kwargs={})
    for group, power_of_two in ((16, False), (16, True), (0, True), (64, False)):
        x_ND = torch.randn(5, 37, generator=generator).to(torch.bfloat16)
        weight_D = torch.randn(37, generator=generator).to(torch.bfloat16)
        yield Sample(kind="odd", args=(x_ND, weight_D, 1e-5, group, power_of_two), kwargs={})
    yield Sample(kind="corner", args=(torch.zeros(0, 4), torch.ones(4), 1e-6, 2, False), kwargs={})
    extreme_ND = torch.tensor([[0.0, 0.0, 0.0], [1e15, -1e15, 1.0], [1e-15, 0.0, -1e-15]])
    yield Sample(kind="corner", args=(extreme_ND, torch.ones(3), 1e-6, 2, False), kwargs={})
    weight_D = (1.0 + 0.2 * torch.randn(7168, generator=generator)).to(torch.bfloat16)
    x_ND = torch.randn(4, 7168, generator=generator).to(torch.bfloat16)
    yield Sample(kind="traced", args=(x_ND, weight_D, 1e-5, 128, True), kwargs={})


OP = Operator(
    name=NAME,
    version=1,
    summary="root mean square normalisation quantised to FP8 with scales by group or by token",
    schema="(Tensor x, Tensor weight, float eps, int group, bool power_of_two) -> (Tensor, Tensor)",
    mathematics="y = rms_norm(x, weight, eps); s = max(amax of a group of |y|, 1e-10) / 448, with power_of_two rounded up "
    "to one; code = e4m3(clamp(y / s, -448, 448))",
    source="vLLM's rms_norm_dynamic_per_token_quant and rms_norm_per_block_quant",
    reference=reference,
    fake=fake,
    flops=flops,
    samples=samples,
    comparison="quantised",
    quantisation=Quantisation(values=normalised, spread=spread, power_of_two=_power_of_two),
    tolerance=Tolerance(
        ratio=3.0,
        ceiling=2e-2,
        ulps=1.0,
        reason="a normalised value a rounding away falls on the next code, one ULP of e4m3; 2e-2 and not 1e-2 as a step "
        "is an eighth of the value: half of all codes would have to move by one to reach it",
    ),
    attributes=(
        Attribute(name="eps", meaning="added to the mean square, 1e-5 or 1e-6"),
        Attribute(name="group", meaning="neighbours that share a scale, 128 or 64; 0 is one scale for each token"),
        Attribute(name="power_of_two", meaning="scales that E8M0 can hold, as DeepSeek V3.1 and later use them"),
    ),
    verified_against="day0's own rms_norm and NumPy with ml_dtypes; compressed-tensors on transformers' Llama",
)
