"""Codes with their scales, and draws at an edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.nearby import exact_or_nearby
from day0.analyzers.judging.quantised import quantised, spacing
from day0.reference_ops.load import load_operators

NORM, TOKEN = load_operators()["day0::rms_norm_quantise"], load_operators()["day0::sample_token"]
FP8 = torch.float8_e4m3fn
Pair = tuple[torch.Tensor, torch.Tensor]


def args(dtype: torch.dtype, two: bool, group: int = 16, seed: int = 0) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 64, generator=generator) * 10.0 ** torch.arange(-3, 9, 1.0)[:, None]
    weight = 1.0 + 0.2 * torch.randn(64, generator=generator)
    return x.to(dtype), weight.to(dtype), 1e-6, group, two


def judge(got: Pair, given: tuple[Any, ...]) -> list[Judgement]:
    assert NORM.quantisation is not None
    same = NORM.reference(*given)
    inputs = CaseInputs(args=given, kwargs={})
    return [quantised(got, same, inputs, NORM, NORM.quantisation, number) for number in range(2)]


def otherwise(given: tuple[Any, ...], change: Callable[[torch.Tensor], torch.Tensor] = lambda y: y) -> Pair:
    """Normalise as kernels do, in float32 without rounding in between, and quantise."""
    x, weight, eps, group, two = given
    wide = x.float()
    normed = change(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float())
    blocks = normed.unflatten(-1, (-1, group))
    scale = blocks.abs().amax(-1) / 448.0
    scale = torch.exp2(scale.log2().ceil()) if two else scale
    return (blocks / scale[..., None]).flatten(-2).clamp(-448, 448).to(FP8), scale


@pytest.mark.parametrize("two", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_reference_and_kernels_that_round_once_pass(dtype: torch.dtype, two: bool) -> None:
    for seed in range(5):
        given = args(dtype, two, seed=seed)
        if dtype == torch.float16:
            given = (given[0].nan_to_num(posinf=6e4, neginf=-6e4).clamp(-6e4, 6e4), *given[1:])
        assert all(one.passed for one in judge(NORM.reference(*given), given))
        found = judge(otherwise(given), given)
        assert all(one.passed for one in found), found


def _next(codes: torch.Tensor, steps: int) -> torch.Tensor:
    return (codes.view(torch.uint8) + steps).view(FP8)


def _cut_off(pair: Pair, given: tuple[Any, ...]) -> Pair:
    """Round towards zero in place of to the nearest."""
    codes, scales = pair
    assert NORM.quantisation is not None
    values = NORM.quantisation.values(*given)
    exact = values / NORM.quantisation.spread(scales, *given)
    beyond = (codes.double().abs() > exact.abs()) & (codes.double() != 0)
    return torch.where(beyond, _next(codes, -1).float(), codes.float()).to(FP8), scales


FAULTS: dict[str, tuple[Callable[[Pair, tuple[Any, ...]], Pair], str]] = {
    "rounded towards zero": (_cut_off, "codes"),
    "two codes further": (lambda pair, _: (_next(pair[0], 2), pair[1]), "codes"),
    "scale doubled": (lambda pair, _: (pair[0], 2.0 * pair[1]), "scales"),
    "scale and codes of neighbours": (
        lambda pair, _: (pair[0].float().roll(1, 1).to(FP8), pair[1].roll(1, 1)),
        "codes",
    ),
    "scale a tenth off, codes with it": (
        lambda pair, _: ((pair[0].float() / 1.1).to(FP8), pair[1] * 1.1),
        "scales",
    ),
    "signs lost": (lambda pair, _: (pair[0].float().abs().to(FP8), pair[1]), "codes"),
    "NaN": (
        lambda pair, _: (pair[0].float().masked_fill(pair[0].float() > 400, float("nan")).to(FP8), pair[1]),
        "codes",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("two", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_wrong_codes_and_scales_fail(fault: str, two: bool, dtype: torch.dtype) -> None:
    given = args(dtype, two)
    change, _rule = FAULTS[fault]
    assert not all(one.passed for one in judge(change(NORM.reference(*given), given), given))


def test_a_scale_that_has_to_be_a_power_of_two_is_one() -> None:
    given = args(torch.float32, True)
    plain = NORM.reference(*given[:4], False)
    assert [one.rule for one in judge(plain, given) if not one.passed] == ["scales"]


def test_twice_the_least_power_of_two_passes_only_at_the_edge() -> None:
    x = torch.full((1, 4), 1.0)
    weight = torch.tensor([448.0, 1.0, 1.0, 1.0])
    given = (x, weight, 1e-12, 4, True)
    codes, scales = NORM.reference(*given)
    larger = ((codes.float() / 2).to(FP8), scales * 2)
    assert all(one.passed for one in judge(larger, given)), "448 falls on either side"
    given = (x, weight * 0.9, 1e-12, 4, True)
    codes, scales = NORM.reference(*given)
    larger = ((codes.float() / 2).to(FP8), scales * 2)
    assert not all(one.passed for one in judge(larger, given))


def test_spacing_is_the_distance_to_the_next_code() -> None:
    codes = torch.arange(0, 126, dtype=torch.uint8).view(FP8)
    here, there = codes.double(), _next(codes, 1).double()
    assert torch.equal(spacing(here, FP8), there - here)


# --- draws


def draw(change: Callable[[torch.Tensor], torch.Tensor], *given: Any) -> Judgement:
    expected = TOKEN.reference(*given)
    return exact_or_nearby(change(expected), expected, CaseInputs(args=given, kwargs={}), TOKEN, 0)


LOGITS = torch.zeros(3, 4)


def test_a_draw_at_the_edge_between_two_tokens_may_take_either() -> None:
    edge = torch.tensor([0.25, 0.5, 0.6], dtype=torch.float64)
    given = (LOGITS, edge, 1.0, 0, 1.0)
    found = draw(lambda tokens: tokens - torch.tensor([1, 1, 0]), *given)
    assert found.passed
    assert found.notes
    assert not draw(lambda tokens: tokens - torch.tensor([0, 0, 1]), *given).passed, "0.6 is at no edge"
    assert not draw(lambda tokens: tokens - torch.tensor([2, 0, 0]), *given).passed


def test_a_cut_at_the_edge_may_keep_one_token_more_or_less() -> None:
    given = (LOGITS, torch.full((3,), 0.999, dtype=torch.float64), 1.0, 0, 0.5)
    assert draw(lambda tokens: tokens, *given).passed
    assert draw(lambda tokens: tokens + 1, *given).passed
    assert not draw(lambda tokens: tokens + 2, *given).passed


def test_a_draw_from_float32_sums_fails_where_it_takes_another_token() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 5000, generator=generator)
    uniform = torch.rand(400, generator=generator, dtype=torch.float64)

    def narrow(_: torch.Tensor) -> torch.Tensor:
        order = logits.sort(dim=-1, descending=True, stable=True)
        weights = (order.values - order.values[:, :1]).exp().to(torch.bfloat16).float()
        running = weights.cumsum(-1)
        place = (running <= uniform.float()[:, None] * running[:, -1:]).sum(-1, keepdim=True).clamp(max=4999)
        return order.indices.gather(-1, place)[:, 0]

    assert not draw(narrow, logits, uniform, 1.0, 0, 1.0).passed
