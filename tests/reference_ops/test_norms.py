"""Normalisation, MoonViT's operators and sampling: the traps of each contract."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from day0.errors import Day0Error
from day0.reference_ops import (
    fp8_block_quantise,
    fused_add_rms_norm,
    merge_patches,
    resize_positions,
    rms_norm,
    rms_norm_quantise,
    rope_2d,
    sample_token,
    vision_attention,
)
from day0.reference_ops.load import load_operator
from day0.reference_ops.rope_2d import grid_positions
from day0.reference_ops.torch_ops import register_operators

NAN, INF = float("nan"), float("inf")
BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
MODULES = (
    fused_add_rms_norm,
    merge_patches,
    resize_positions,
    rms_norm,
    rms_norm_quantise,
    rope_2d,
    sample_token,
    vision_attention,
)
NAMES = [module.NAME for module in MODULES]


def normal(*shape: int, seed: int = 5) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tensors(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("name", NAMES)
def test_samples_of_each_kind_run_in_every_dtype_and_match_their_fake(name: str) -> None:
    operator = load_operator(name)
    found = list(operator.samples(torch.Generator().manual_seed(3)))
    assert {sample.kind for sample in found} == {"small", "odd", "corner", "traced"}
    for sample in found:
        for dtype in (torch.float64, torch.float32, BF16, torch.float16):
            args = tuple(cast(one, dtype, sampling=name == sample_token.NAME) for one in sample.args)
            before = [one.clone() if isinstance(one, torch.Tensor) else one for one in args]
            results = tensors(operator.reference(*args))
            assert operator.fake is not None
            meta = tuple(one.to("meta") if isinstance(one, torch.Tensor) else one for one in args)
            for result, shape in zip(results, tensors(operator.fake(*meta)), strict=True):
                assert shape.is_meta and result.is_contiguous()
                assert (result.shape, result.dtype) == (shape.shape, shape.dtype) and shape.is_contiguous()
            for one, kept in zip(args, before, strict=True):
                if isinstance(one, torch.Tensor):
                    torch.testing.assert_close(one, kept, rtol=0, atol=0, equal_nan=True)
                    assert all(result.data_ptr() != one.data_ptr() or result.numel() == 0 for result in results)


def cast(value: Any, dtype: torch.dtype, *, sampling: bool) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return value.to(dtype) if not sampling or value.dim() == 2 else value


@pytest.mark.parametrize("name", NAMES)
def test_strided_arguments_give_the_same_in_contiguous_results(name: str) -> None:
    operator = load_operator(name)
    for sample in operator.samples(torch.Generator().manual_seed(3)):
        turned = tuple(
            one.transpose(0, 1).contiguous().transpose(0, 1) if isinstance(one, torch.Tensor) and one.dim() > 1 else one
            for one in sample.args
        )
        for one, other in zip(
            tensors(operator.reference(*turned)), tensors(operator.reference(*sample.args)), strict=True
        ):
            assert one.is_contiguous()
            torch.testing.assert_close(one.float(), other.float(), rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", NAMES)
def test_flops_grow_with_the_arguments(name: str) -> None:
    flops = load_operator(name).flops
    assert flops is not None
    counts = [flops(*sample.args) for sample in load_operator(name).samples(torch.Generator().manual_seed(3))]
    assert all(isinstance(count, int) and count >= 0 for count in counts) and max(counts) > 0


# Normalisation


def ordinal(x: torch.Tensor) -> torch.Tensor:
    """Number bfloat16 values in their order, so that neighbours differ by 1."""
    bits = x.view(torch.int16).to(torch.int32)
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def test_the_two_orders_of_rounding_differ_by_at_most_one_ulp_and_do_differ() -> None:
    x, weight = normal(64, 512).to(BF16), (1 + 0.3 * normal(512, seed=6)).to(BF16)
    first, wide = (rms_norm.reference(x, weight, 1e-6, order) for order in (True, False))
    apart = (ordinal(first) - ordinal(wide)).abs()
    assert apart.max() == 1 and 0.05 < (apart > 0).float().mean() < 0.5


def test_rms_norm_keeps_the_dtype_of_x_under_a_wide_weight() -> None:
    x, weight = normal(3, 8).to(BF16), 1 + 0.3 * normal(8, seed=6)
    out = rms_norm.reference(x, weight, 1e-6, round_first=False)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    assert out.dtype == BF16 and torch.equal(out, exact.to(BF16))


def test_rms_norm_of_zeros_is_zero_and_a_spoiled_row_spoils_no_other() -> None:
    x = normal(3, 4)
    x[0], x[1, 2] = 0.0, NAN
    out = rms_norm.reference(x, torch.ones(4), 1e-6)
    assert not out[0].any() and torch.isnan(out[1]).all() and torch.isfinite(out[2]).all()


def test_rms_norm_does_not_overflow_in_float16() -> None:
    x = torch.full((1, 4), 6e4, dtype=torch.float16)
    assert torch.equal(rms_norm.reference(x, torch.ones(4), 1e-6), torch.ones(1, 4, dtype=torch.float16))


def test_eps_counts_inside_the_root() -> None:
    out = rms_norm.reference(torch.zeros(1, 2, dtype=torch.float64) + 0.1, torch.ones(2), 0.03)
    assert out[0, 0].item() == pytest.approx(0.1 / math.sqrt(0.01 + 0.03))


@pytest.mark.parametrize("round_first", [True, False])
def test_fused_addition_normalises_the_rounded_sum(round_first: bool) -> None:
    x, residual, weight = normal(9, 64).to(BF16), (40 * normal(9, 64, seed=6)).to(BF16), torch.ones(64, dtype=BF16)
    normed, total = fused_add_rms_norm.reference(x, residual, weight, 1e-6, round_first)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, rms_norm.reference(x + residual, weight, 1e-6, round_first))
    unrounded = rms_norm.reference(x.float() + residual.float(), weight.float(), 1e-6).to(BF16)
    assert not torch.equal(normed, unrounded)


# Quantisation


@pytest.mark.parametrize("power_of_two", [True, False])
@pytest.mark.parametrize("group", [0, 5, 16, 99])
def test_quantised_norm_is_the_norm_and_then_the_quantisation(group: int, power_of_two: bool) -> None:
    x, weight = normal(7, 37).to(BF16), (1 + 0.3 * normal(37, seed=6)).to(BF16)
    codes, scales = rms_norm_quantise.reference(x, weight, 1e-6, group, power_of_two)
    normed = rms_norm.reference(x, weight, 1e-6).float()
    again, factors = fp8_block_quantise.reference(normed, 1, group or 37, power_of_two, 1e-10)
    assert torch.equal(codes.float(), again.float()) and torch.equal(scales, factors)
    size = group or 37
    assert codes.dtype == E4M3 and scales.shape == (7, -(-37 // size))
    decoded = codes.float() * scales.repeat_interleave(size, dim=1)[:, :37]
    # Three bits of mantissa: half a step is 1/16; below that the smallest step of the group counts.
    assert ((decoded - normed).abs() <= normed.abs() / 16 + scales.max() * 2**-10).all()


def test_each_attribute_of_the_quantised_norm_changes_the_result() -> None:
    x, weight = normal(3, 8).to(BF16), torch.ones(8, dtype=BF16)
    plain = rms_norm_quantise.reference(x, weight, 1e-6, 4, False)
    for eps, group, power_of_two in ((1.0, 4, False), (1e-6, 2, False), (1e-6, 4, True)):
        other = rms_norm_quantise.reference(x, weight, eps, group, power_of_two)
        assert other[1].shape != plain[1].shape or not torch.equal(other[1], plain[1])


def test_the_quantised_norm_has_a_scale_for_zeros_and_saturates() -> None:
    x = torch.tensor([[0.0, 0.0, 5.0, -7.0]])
    codes, scales = rms_norm_quantise.reference(x, torch.ones(4), 1e-6, 2, False)
    assert scales[0, 0].item() == pytest.approx(1e-10 / 448)
    assert codes.float()[0, :2].tolist() == [0.0, 0.0] and codes.float()[0, 3] == -448


@pytest.mark.parametrize("power_of_two", [True, False])
def test_nan_spoils_its_token_alone_in_the_quantised_norm(power_of_two: bool) -> None:
    x = torch.tensor([[1.0, NAN, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]])
    codes, scales = rms_norm_quantise.reference(x, torch.ones(4), 1e-6, 2, power_of_two)
    assert torch.isnan(scales).all(dim=1).tolist() == [True, False] and torch.isfinite(scales[1]).all()
    assert torch.isnan(codes.float()).all(dim=1).tolist() == [True, False] and torch.isfinite(codes.float()[1]).all()


# MoonViT


def test_rope_turns_even_pairs_by_the_column_and_odd_ones_by_the_row() -> None:
    x = torch.tensor([1.0, 0.0] * 4, dtype=torch.float64).expand(1, 1, 8)
    out = rope_2d.reference(x, torch.tensor([[3, 5]]), 1e4)[0, 0]
    # theta^(-4i/8): 1 and 1/100, the first for pairs 0 and 1, the second for pairs 2 and 3.
    angles = [5.0, 3.0, 0.05, 0.03]
    expected = [part for angle in angles for part in (math.cos(angle), math.sin(angle))]
    assert out.tolist() == pytest.approx(expected, abs=1e-14)


def test_rope_at_the_origin_changes_nothing_and_keeps_lengths_elsewhere() -> None:
    x, where = normal(4, 2, 12).double(), grid_positions(2, 2)
    out = rope_2d.reference(x, where, 1e4)
    assert torch.equal(out[0], x[0]) and not torch.equal(out[1], x[1])
    torch.testing.assert_close(out.norm(dim=-1), x.norm(dim=-1))
    assert not torch.equal(out, rope_2d.reference(x, where, 1e3))


def test_rope_scores_depend_on_differences_of_places_alone() -> None:
    q, k = normal(1, 1, 16).double(), normal(1, 1, 16, seed=6).double()

    def score(*places: int) -> torch.Tensor:
        where = torch.tensor(places).reshape(2, 1, 2)
        return (rope_2d.reference(q, where[0], 1e4) * rope_2d.reference(k, where[1], 1e4)).sum()

    torch.testing.assert_close(score(3, 9, 5, 2), score(13, 109, 15, 102))
    assert not torch.isclose(score(3, 9, 5, 2), score(9, 3, 2, 5))


def attention(patches: int, *, heads: int = 2, width: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = normal(3, patches, heads, width).double().unbind(0)
    return q, k, v


def test_images_do_not_see_each_other_whatever_they_hold() -> None:
    q, k, v = attention(10)
    image = vision_attention.images_from_lengths(torch.tensor([0, 4, 4, 10]))
    assert image.dtype == torch.int32 and image.tolist() == [0] * 4 + [2] * 6
    where = torch.cat((grid_positions(2, 2), grid_positions(2, 3)))
    out = vision_attention.reference(q, k, v, image, where, 0.5)
    part = vision_attention.reference(q[:4], k[:4], v[:4], image[:4], where[:4], 0.5)
    torch.testing.assert_close(out[:4], part)
    spoiled_k, spoiled_v = k.clone(), v.clone()
    spoiled_k[5], spoiled_v[6], spoiled_v[7] = NAN, INF, NAN
    again = vision_attention.reference(q, spoiled_k, spoiled_v, image, where, 0.5)
    assert torch.equal(again[:4], out[:4]) and torch.isnan(again[4:]).all()


def test_a_window_hides_what_is_further_away_in_rows_or_columns() -> None:
    seen = vision_attention.visible_patches(torch.zeros(12, dtype=torch.int32), grid_positions(3, 4), 1)
    assert seen[5].nonzero().flatten().tolist() == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    assert seen[3].nonzero().flatten().tolist() == [2, 3, 6, 7] and torch.equal(seen, seen.T)
    alone = vision_attention.visible_patches(torch.zeros(12, dtype=torch.int32), grid_positions(3, 4), 0)
    assert torch.equal(alone, torch.eye(12, dtype=torch.bool))


def test_global_patches_are_the_first_of_each_image_and_work_both_ways() -> None:
    image = torch.tensor([0, 0, 0, 1, 1, 1, 1], dtype=torch.int32)
    where = torch.cat((grid_positions(1, 3), grid_positions(1, 4)))
    seen = vision_attention.visible_patches(image, where, 0, 1)
    assert seen[0].tolist() == [True] * 3 + [False] * 4 and seen[3].tolist() == [False] * 3 + [True] * 4
    assert seen[2].nonzero().flatten().tolist() == [0, 2] and seen[6].nonzero().flatten().tolist() == [3, 6]


def test_padding_is_zero_and_changes_nobody() -> None:
    q, k, v = attention(6)
    image, where = torch.tensor([0] * 4 + [-1, -1], dtype=torch.int32), grid_positions(2, 3)
    v[4] = NAN
    out = vision_attention.reference(q, k, v, image, where, 0.5)
    assert not out[4:].any()
    torch.testing.assert_close(out[:4], vision_attention.reference(q[:4], k[:4], v[:4], image[:4], where[:4], 0.5))


def test_each_attribute_of_vision_attention_changes_the_result() -> None:
    q, k, v = attention(12)
    image, where = torch.zeros(12, dtype=torch.int32), grid_positions(3, 4)
    results = [
        vision_attention.reference(q, k, v, image, where, scale, window, first)
        for scale, window, first in ((0.5, -1, 0), (0.7, -1, 0), (0.5, 1, 0), (0.5, 1, 1), (0.5, 2, 0))
    ]
    for number, one in enumerate(results):
        assert all(not torch.allclose(one, other) for other in results[:number])
    # A window as large as the image is the whole image, and so are patches that are all global.
    for window, first in ((3, 0), (0, 12)):
        torch.testing.assert_close(
            results[0], vision_attention.reference(q, k, v, image, where, 0.5, window, first), rtol=0, atol=0
        )


@pytest.mark.parametrize("window", [-1, 1])
def test_vision_operators_are_differentiable(window: int) -> None:
    q, k, v = (one.requires_grad_() for one in attention(6))
    image, where = torch.tensor([0, 0, 0, 0, 1, -1], dtype=torch.int32), grid_positions(2, 3)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        turned = rope_2d.reference(q, where, 1e4), rope_2d.reference(k, where, 1e4)
        return vision_attention.reference(*turned, v, image, where, 0.5, window)

    assert torch.autograd.gradcheck(attend, (q, k, v))


def test_resizing_to_the_same_size_copies_and_modes_differ() -> None:
    table = normal(4, 6, 3)
    for mode in resize_positions.MODES:
        out = resize_positions.reference(table, 4, 6, mode)
        assert torch.equal(out, table) and out.data_ptr() != table.data_ptr()
    bilinear, bicubic = (resize_positions.reference(table, 6, 4, mode) for mode in resize_positions.MODES)
    assert bilinear.shape == (6, 4, 3) and not torch.allclose(bilinear, bicubic)


def test_resizing_aligns_centres_and_does_not_smooth() -> None:
    row = torch.arange(4, dtype=torch.float64).reshape(1, 4, 1)
    # Twice as wide: centres at -1/4, 1/4, 3/4, ...; corners aligned would end at 3.
    assert resize_positions.reference(row, 1, 8, "bilinear").flatten().tolist() == pytest.approx(
        [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3]
    )
    # A quarter as wide: halfway between the middle two; smoothing would count all four.
    peak = torch.tensor([100.0, 1.0, 3.0, 100.0]).reshape(1, 4, 1)
    assert resize_positions.reference(peak, 1, 1, "bilinear").item() == pytest.approx(2.0)


def test_merging_keeps_the_order_of_rows_within_a_token() -> None:
    x = torch.arange(24.0).reshape(24, 1)  # 4 rows of 6
    out = merge_patches.reference(x, 4, 6, 2)
    assert out.tolist()[:3] == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]] and out[3].tolist() == [12, 13, 18, 19]
    video = torch.cat((x, x + 2))
    assert torch.equal(merge_patches.reference(video, 4, 6, 2), out + 1)
    assert not torch.equal(out, merge_patches.reference(x, 6, 4, 2))


def test_merging_takes_the_mean_in_float32() -> None:
    x = torch.full((3, 1), 256.0, dtype=BF16)
    x[1:] = 1.0
    # In bfloat16 256 + 1 + 1 is 256 still.
    assert merge_patches.reference(x, 1, 1, 1).item() == 86.0
    half = torch.full((4, 1), 6e4, dtype=torch.float16)
    assert torch.isfinite(merge_patches.reference(half, 1, 1, 1)).all()


# Sampling


def draw(logits: list[float], uniform: float, temperature: float = 1.0, topk: int = 0, topp: float = 1.0) -> int:
    out = sample_token.reference(
        torch.tensor([logits]), torch.tensor([uniform], dtype=torch.float64), temperature, topk, topp
    )
    assert out.dtype == torch.int64 and out.shape == (1,)
    return int(out)


def test_greedy_takes_the_lowest_of_equal_tokens_and_ignores_the_draw() -> None:
    for uniform in (0.0, 0.5, 0.999):
        assert draw([1.0, 3.0, NAN, 3.0, -INF], uniform, 0.0, 3, 0.9) == 1
        assert draw([1.0, INF, INF], uniform, 0.0) == 1


def test_nan_and_minus_infinity_are_never_drawn() -> None:
    drawn = {draw([NAN, 0.0, -INF, 0.0, NAN], uniform) for uniform in (0.0, 0.49, 0.51, 1 - 2**-53)}
    assert drawn == {1, 3}
    for temperature in (0.0, 1.0):
        assert draw([NAN, -INF], 0.3, temperature, 1, 0.5) == -1


def test_infinite_logits_share_everything() -> None:
    assert [draw([0.0, INF, 5.0, INF], uniform) for uniform in (0.0, 0.49, 0.5, 0.99)] == [1, 1, 3, 3]


def test_the_inverse_runs_by_falling_probability_and_rising_number() -> None:
    logits = [math.log(weight) for weight in (1.0, 4.0, 1.0, 2.0)]
    edges = (0.0, 0.49, 0.51, 0.74, 0.76, 0.87, 0.88, 0.99)
    assert [draw(logits, uniform) for uniform in edges] == [1, 1, 3, 3, 0, 0, 2, 2]


def test_topk_keeps_exactly_that_many_among_equal_tokens() -> None:
    assert {draw([0.0] * 5, uniform / 50, topk=3) for uniform in range(50)} == {0, 1, 2}
    assert {draw([0.0] * 5, uniform / 50, topk=9) for uniform in range(50)} == set(range(5))


def test_topp_keeps_the_token_that_reaches_it_and_at_least_one() -> None:
    logits = [math.log(weight) for weight in (5.0, 3.0, 1.0, 1.0)]
    kept = {
        topp: {draw(logits, uniform / 100, topp=topp) for uniform in range(100)}
        for topp in (1e-9, 0.49, 0.51, 0.79, 0.81, 1.0)
    }
    assert [len(kept[topp]) for topp in sorted(kept)] == [1, 1, 2, 2, 3, 4]


def test_topk_comes_before_topp() -> None:
    logits = [math.log(weight) for weight in (4.0, 3.0, 3.0)]
    # Of the first two 4/7 reach 0.5; of all three 4/10 do not.
    assert {draw(logits, uniform / 50, topk=2, topp=0.5) for uniform in range(50)} == {0}
    assert {draw(logits, uniform / 50, topp=0.5) for uniform in range(50)} == {0, 1}


def test_temperature_comes_before_topp() -> None:
    logits = [math.log(weight) for weight in (4.0, 3.0, 3.0)]
    # To the twentieth power the first is 0.994 of the whole.
    assert {draw(logits, uniform / 50, 0.05, topp=0.9) for uniform in range(50)} == {0}
    assert {draw(logits, uniform / 50, 1.0, topp=0.9) for uniform in range(50)} == {0, 1, 2}


def test_the_smallest_temperature_overflows_nothing() -> None:
    assert draw([1e30, -1e30, 1e30], 0.75, 1e-300) == 2


def test_a_draw_at_the_end_of_the_range_stays_inside() -> None:
    assert draw([0.0, -1e4, -1e4], 1 - 2**-53) == 0
    assert draw([0.0, 0.0, -INF], 1.0) == 1  # not in [0, 1), and yet a token


def test_a_rare_token_is_reached_as_sums_are_in_float64() -> None:
    assert draw([0.0, -40 * math.log(2)], 1 - 2**-53) == 1


def test_the_dtype_of_the_logits_decides_nothing() -> None:
    logits, uniform = normal(400, 30).to(BF16), torch.rand(400, generator=torch.Generator().manual_seed(9))
    drawn = [
        sample_token.reference(logits.to(dtype), wide, 0.7, 20, 0.9)
        for dtype, wide in ((BF16, uniform), (torch.float32, uniform), (torch.float64, uniform.double()))
    ]
    assert torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[0], drawn[2])


def test_a_generator_gives_the_same_tokens_twice() -> None:
    register_operators()
    logits = normal(6, 50)
    first, again = (
        sample_token.sample(logits, torch.Generator().manual_seed(2), temperature=0.8, topk=9) for _ in range(2)
    )
    other = sample_token.sample(logits, torch.Generator().manual_seed(3), temperature=0.8, topk=9)
    assert torch.equal(first, again) and not torch.equal(first, other)


# What is refused


X, W = torch.zeros(2, 4), torch.ones(4)
HEADS, PLACES = torch.zeros(6, 1, 4), torch.zeros(6, 2, dtype=torch.int64)
IMAGE = torch.zeros(6, dtype=torch.int32)
LOGITS, UNIFORM = torch.zeros(2, 5), torch.zeros(2)
BAD: list[tuple[Callable[..., Any], tuple[Any, ...], str, str]] = [
    (rms_norm.reference, (X.long(), W, 1e-6), "rms_norm: x", "a floating dtype, got torch.int64"),
    (rms_norm.reference, (torch.zeros(2, 0), torch.ones(0), 1e-6), "rms_norm: x", "1 or more"),
    (rms_norm.reference, (X, torch.ones(3), 1e-6), "rms_norm: weight", r"size 4, as x, got \[3\]"),
    (rms_norm.reference, (X.to(BF16), W.half(), 1e-6), "rms_norm: weight", "torch.bfloat16 or torch.float32"),
    (rms_norm.reference, (X, W, -1e-6), "rms_norm: eps", "0 or a positive number, got -1e-06"),
    (rms_norm.reference, (X, W, NAN), "rms_norm: eps", "got nan"),
    (fused_add_rms_norm.reference, (X, X[:1], W, 1e-6), "residual", r"shape \[2, 4\], got \[1, 4\]"),
    (fused_add_rms_norm.reference, (X, X.double(), W, 1e-6), "residual", "torch.float32, got torch.float64"),
    (rms_norm_quantise.reference, (X[None], W, 1e-6, 2, False), "rms_norm_quantise: x", "2 dimensions"),
    (rms_norm_quantise.reference, (X, W, 1e-6, -1, False), "group", "0 for one scale a token, .*got -1"),
    (rope_2d.reference, (HEADS[..., :2], PLACES, 1e4), "rope_2d: x", "multiple of 4, got 2"),
    (rope_2d.reference, (HEADS, PLACES[:5], 1e4), "positions", "size 6 in dimension N"),
    (rope_2d.reference, (HEADS, PLACES[:, :1], 1e4), "positions", "row and column"),
    (rope_2d.reference, (HEADS, PLACES.float(), 1e4), "positions", "torch.int32 or torch.int64, got torch.float32"),
    (rope_2d.reference, (HEADS, PLACES, 0.0), "theta", "a positive number, got 0.0"),
    (vision_attention.reference, (HEADS, HEADS[:3], HEADS, IMAGE, PLACES, 1.0), "k", "size 6 in dimension N"),
    (vision_attention.reference, (HEADS, HEADS, HEADS.half(), IMAGE, PLACES, 1.0), "v", "got torch.float16"),
    (vision_attention.reference, (HEADS, HEADS, HEADS, IMAGE.long(), PLACES, 1.0), "image", "torch.int32"),
    (vision_attention.reference, (HEADS, HEADS, HEADS, IMAGE, PLACES, 0.0), "scale", "a positive number"),
    (vision_attention.reference, (HEADS, HEADS, HEADS, IMAGE, PLACES, 1.0, -2), "window", "-1 for the whole image"),
    (vision_attention.reference, (HEADS, HEADS, HEADS, IMAGE, PLACES, 1.0, 1, -1), "global_tokens", "0 or more"),
    (resize_positions.reference, (torch.zeros(2, 2, 3), 0, 1, "bilinear"), "rows", "at least 1, got 0"),
    (resize_positions.reference, (torch.zeros(2, 2, 3), 1, -1, "bilinear"), "columns", "at least 1, got -1"),
    (resize_positions.reference, (torch.zeros(2, 2, 3), 1, 1, "nearest"), "mode", "bilinear or bicubic, got nearest"),
    (resize_positions.reference, (torch.zeros(2, 0, 3), 1, 1, "bilinear"), "table", "not empty"),
    (merge_patches.reference, (torch.zeros(6, 2), 2, 3, 2), "columns", "a multiple of merge = 2, .*got 3"),
    (merge_patches.reference, (torch.zeros(6, 2), 2, 2, 2), "x", "whole frames of 2 x 2 patches.*got 6 patches"),
    (merge_patches.reference, (torch.zeros(0, 2), 2, 2, 2), "x", "at least one, got 0 patches"),
    (merge_patches.reference, (torch.zeros(4, 2), 2, 2, 0), "merge", "at least 1"),
    (sample_token.reference, (LOGITS, UNIFORM, -1.0, 0, 1.0), "temperature", "0 or a positive number"),
    (sample_token.reference, (LOGITS, UNIFORM, INF, 0, 1.0), "temperature", "got inf"),
    (sample_token.reference, (LOGITS, UNIFORM, 1.0, -1, 1.0), "topk", "0 for all"),
    (sample_token.reference, (LOGITS, UNIFORM, 1.0, 0, 0.0), "topp", "more than 0 and at most 1, got 0.0"),
    (sample_token.reference, (LOGITS, UNIFORM, 1.0, 0, 1.1), "topp", "more than 0 and at most 1, got 1.1"),
    (sample_token.reference, (LOGITS, UNIFORM, 1.0, 0, NAN), "topp", "got nan"),
    (sample_token.reference, (LOGITS, UNIFORM[:1], 1.0, 0, 1.0), "uniform", "size 2 in dimension B"),
    (sample_token.reference, (LOGITS[:, :0], UNIFORM, 1.0, 0, 1.0), "logits", "a vocabulary of 1 or more"),
]


@pytest.mark.parametrize(("function", "args", "where", "what"), BAD)
def test_bad_arguments_are_refused_by_name(
    function: Callable[..., Any], args: tuple[Any, ...], where: str, what: str
) -> None:
    # On meta nothing can be computed or read: the refusal comes from shapes, dtypes and attributes alone.
    meta = tuple(one.to("meta") if isinstance(one, torch.Tensor) else one for one in args)
    for given in (args, meta):
        with pytest.raises(Day0Error, match=rf"day0::.*{where}: expected .*{what}") as caught:
            function(*given)
        assert "day0 ops show day0::" in caught.value.hint
