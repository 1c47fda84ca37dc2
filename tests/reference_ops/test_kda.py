"""Kimi Delta Attention and what stands around it: its traps, its attributes, what it refuses."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from day0.errors import Day0Error
from day0.reference_ops import (
    attention_residual,
    hyper_connection_post,
    hyper_connection_pre,
    kda_chunked,
    kda_gate,
    kda_recurrent,
    short_conv,
)
from day0.reference_ops._spec import Operator, Sample
from day0.reference_ops.agreement._comparison import Comparison
from day0.reference_ops.agreement._load import load_comparisons

NAN, INF = float("nan"), float("inf")
MODULES = (
    attention_residual,
    hyper_connection_post,
    hyper_connection_pre,
    kda_chunked,
    kda_gate,
    kda_recurrent,
    short_conv,
)
OPERATORS = [module.OP for module in MODULES]
FORMS = (kda_recurrent.reference, kda_chunked.reference)
CHUNKED: Callable[..., tuple[torch.Tensor, torch.Tensor]] = kda_chunked.reference
RECURRENT: Callable[..., tuple[torch.Tensor, torch.Tensor]] = kda_recurrent.reference
GATE: Callable[..., torch.Tensor] = kda_gate.reference
RESIDUAL: Callable[..., torch.Tensor] = attention_residual.reference
PRE: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = hyper_connection_pre.reference


def named(operator: Operator) -> str:
    return operator.name


def samples(operator: Operator) -> list[Sample]:
    return list(operator.samples(torch.Generator().manual_seed(11)))


def changed(values: tuple[Any, ...], change: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Any, ...]:
    return tuple(
        [change(item) for item in value] if isinstance(value, list) else
        change(value) if isinstance(value, torch.Tensor) else value
        for value in values
    )  # fmt: skip


def results(value: Any) -> tuple[torch.Tensor, ...]:
    return (value,) if isinstance(value, torch.Tensor) else value


def kda_arguments(tokens: int, decay: float | None = None, size: int = 6) -> list[torch.Tensor]:
    """q, k, v, g, beta, state in float64 with K = V, so that a wrong layout is silent."""
    generator = torch.Generator().manual_seed(1)
    q, k, v, g = (torch.randn(2, tokens, 3, size, generator=generator, dtype=torch.float64) for _ in range(4))
    g = -g.abs() if decay is None else torch.full_like(g, decay)
    beta = torch.rand(2, tokens, 3, generator=generator, dtype=torch.float64)
    return [q, k, v, g, beta, torch.randn(2, 3, size, size, generator=generator, dtype=torch.float64)]


# All operators


OURS = [one for one in load_comparisons() if one.operator in {operator.name for operator in OPERATORS}]


@pytest.mark.parametrize("one", OURS, ids=lambda one: f"{one.operator} {one.variant} {one.against}")
def test_independent_code_agrees(one: Comparison) -> None:
    pytest.importorskip(one.distribution.replace("-", "_").removesuffix("_core"))
    assert one.run() <= one.limit


@pytest.mark.parametrize("operator", OPERATORS, ids=named)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes_are_those_of_the_shape_function(operator: Operator, dtype: torch.dtype) -> None:
    assert operator.fake is not None
    for sample in samples(operator):
        args = changed(sample.args, lambda tensor: tensor.to(dtype))
        got = results(operator.reference(*args))
        expected = results(operator.fake(*changed(args, lambda tensor: tensor.to("meta"))))
        for one, other in zip(got, expected, strict=True):
            assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
            assert torch.isfinite(one).all()


@pytest.mark.parametrize("operator", OPERATORS, ids=named)
def test_low_precision_computes_wide(operator: Operator) -> None:
    """What is given in bfloat16 is rounded once, at the end: the result is the wide one rounded."""
    for sample in samples(operator):
        low = changed(sample.args, lambda tensor: tensor.bfloat16())
        wide = operator.reference(*changed(low, lambda tensor: tensor.double()))
        for one, other in zip(results(operator.reference(*low)), results(wide), strict=True):
            unit = 2.0**-8 if one.dtype == torch.bfloat16 else 1e-5
            scale = other.abs().max() if other.numel() else other.sum()
            assert ((one.double() - other).abs() <= unit * other.abs() + 1e-5 * scale + 1e-30).all()


@pytest.mark.parametrize("operator", OPERATORS, ids=named)
def test_results_are_no_arguments_and_arguments_stay(operator: Operator) -> None:
    for dtype in (torch.float32, torch.float64):
        for sample in samples(operator):
            args = changed(sample.args, lambda tensor, dtype=dtype: tensor.to(dtype))  # type: ignore[misc]
            before = changed(args, torch.clone)
            got = results(operator.reference(*args))
            flat = [one for arg in args for one in (arg if isinstance(arg, list) else [arg])]
            kept = [one for arg in before for one in (arg if isinstance(arg, list) else [arg])]
            for one, other in zip(flat, kept, strict=True):
                assert not isinstance(one, torch.Tensor) or torch.equal(one, other)
            storages = {
                one.untyped_storage().data_ptr() for one in flat if isinstance(one, torch.Tensor) and one.numel()
            }
            assert not storages & {one.untyped_storage().data_ptr() for one in got if one.numel()}


@pytest.mark.parametrize("operator", OPERATORS, ids=named)
def test_flops_are_counted_from_shapes(operator: Operator) -> None:
    assert operator.flops is not None
    for sample in samples(operator):
        meta = changed(sample.args, lambda tensor: tensor.to("meta"))
        assert operator.flops(*meta) == operator.flops(*sample.args) >= 0


def test_schemas_name_the_arguments_of_the_references() -> None:
    """A model may call by name: the schema and the reference must have the same order, and defaults."""
    for module in MODULES:
        schema = torch._C.parse_schema(f"day0::x{module.OP.schema}")
        parameters = inspect.signature(module.reference).parameters.values()
        for argument, parameter in zip(schema.arguments, parameters, strict=True):
            assert parameter.name.split("_")[0] == argument.name.split("_")[0]
            assert parameter.default == (argument.default_value if argument.has_default_value() else parameter.empty)


# Kimi Delta Attention, both forms


@pytest.mark.parametrize("chunk", [1, 2, 15, 16, 17, 64, 100])
def test_every_chunk_gives_the_recurrence(chunk: int) -> None:
    args = kda_arguments(33)
    for mine, other in zip(CHUNKED(*args, chunk), RECURRENT(*args), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("decay", [-5.0, -30.0, -1e4, -INF])
@pytest.mark.parametrize("chunk", [16, 32, 64])
def test_chunks_do_not_overflow_in_float32(chunk: int, decay: float) -> None:
    """exp(-sum of g) is infinite after 18 tokens at -5, and a sum of -inf and inf is NaN."""
    args = kda_arguments(130, decay)
    args[3][:, 70:75] = 0.0
    for mine, other in zip(CHUNKED(*(arg.float() for arg in args), chunk), RECURRENT(*args), strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-5, atol=1e-6)


def test_a_large_decay_costs_later_tokens_no_digits() -> None:
    """After a sum of -1e6 a difference of running sums in float32 knows decays to a sixteenth only."""
    args = kda_arguments(40, -0.01)
    args[3][:, 3] = -1e6
    for mine, other in zip(CHUNKED(*(arg.float() for arg in args), 64), RECURRENT(*args), strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decay", [-5.0, -INF])
def test_gradients_of_chunks_are_finite(decay: float) -> None:
    args = [arg.float().requires_grad_() for arg in kda_arguments(70, decay)]
    out, new = CHUNKED(*args, 64)
    (out.square().sum() + new.square().sum()).backward()
    assert all(arg.grad is not None and torch.isfinite(arg.grad).all() for arg in args)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cut", [0, 1, 7, 16, 22, 23])
def test_a_sequence_may_be_cut_anywhere(form: Callable[..., Any], cut: int) -> None:
    args = kda_arguments(23)
    out, new = form(*args)
    first, state = form(*(arg[:, :cut] for arg in args[:5]), args[5])
    second, last = form(*(arg[:, cut:] for arg in args[:5]), state)
    torch.testing.assert_close(torch.cat((first, second), dim=1), out, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(last, new, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
def test_padding_leaves_the_state_and_other_tokens_alone(form: Callable[..., Any]) -> None:
    args = kda_arguments(20)
    args[3][:, 5:9], args[4][:, 5:9] = 0.0, 0.0
    kept = [t for t in range(20) if not 5 <= t < 9]
    out, new = form(*args)
    short_out, short_new = form(*(arg[:, kept] for arg in args[:5]), args[5])
    torch.testing.assert_close(out[:, kept], short_out, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(new, short_new, rtol=1e-12, atol=1e-13)
    only = [arg[:, 5:9] for arg in args[:5]]
    assert torch.equal(form(*only, args[5])[1], args[5])


@pytest.mark.parametrize("form", FORMS)
def test_padding_needs_both_zeros(form: Callable[..., Any]) -> None:
    for position in (3, 4):
        args = kda_arguments(4)
        args[position] = torch.zeros_like(args[position])
        assert not torch.allclose(form(*args)[1], args[5])


@pytest.mark.parametrize("form", FORMS)
def test_state_layouts_are_transposes_and_matter(form: Callable[..., Any]) -> None:
    args = kda_arguments(9)
    out, new = form(*args, state_layout="kv")
    turned = [*args[:5], args[5].transpose(-1, -2).contiguous()]
    turned_out, turned_new = form(*turned, state_layout="vk")
    torch.testing.assert_close(turned_out, out, rtol=0, atol=0)
    torch.testing.assert_close(turned_new.transpose(-1, -2), new, rtol=0, atol=0)
    # Square, so accepted: finite and wrong.
    wrong_out, wrong_new = form(*args, state_layout="vk")
    assert torch.isfinite(wrong_out).all() and not torch.allclose(wrong_out, out, atol=0.1)
    assert not torch.allclose(wrong_new, new, atol=0.1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", ["kv", "vk"])
def test_no_tokens_return_a_copy_of_the_state(form: Callable[..., Any], layout: str) -> None:
    q, state = torch.zeros(1, 0, 2, 3), torch.randn(1, 2, *((3, 4) if layout == "kv" else (4, 3)))
    out, new = form(q, q, torch.zeros(1, 0, 2, 4), q, torch.zeros(1, 0, 2), state, state_layout=layout)
    assert out.shape == (1, 0, 2, 4)
    assert torch.equal(new, state) and new.data_ptr() != state.data_ptr() and new.is_contiguous()


@pytest.mark.parametrize("form", FORMS)
def test_a_state_in_float32_stays_so_under_low_precision(form: Callable[..., Any]) -> None:
    args = [arg.bfloat16() for arg in kda_arguments(5)]
    args[5] = args[5].float()
    out, new = form(*args)
    assert (out.dtype, new.dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("position", range(5))
def test_nan_stays_with_its_sequence_and_head(form: Callable[..., Any], position: int) -> None:
    args = kda_arguments(40)
    args[position][0, 20, 1] = NAN
    out, new = form(*args)
    assert torch.isfinite(out[1]).all() and torch.isfinite(out[0, :, [0, 2]]).all()
    assert torch.isfinite(new[1]).all() and torch.isfinite(new[0, [0, 2]]).all()
    # Whole chunks of 16 before it are clean in both forms; the recurrent one is clean up to the token itself.
    clean = 16 if form is kda_chunked.reference else 20
    assert torch.isfinite(out[0, :clean]).all() and torch.isnan(out[0, 20, 1]).any()


@pytest.mark.parametrize("form", FORMS)
def test_the_query_does_not_touch_the_state(form: Callable[..., Any]) -> None:
    args = kda_arguments(6)
    new = form(*args)[1]
    args[0] = torch.full_like(args[0], NAN)
    assert torch.equal(form(*args)[1], new)


@pytest.mark.parametrize(
    ("position", "name", "value", "expected"),
    [
        (1, "k", torch.zeros(2, 4, 3, 5), r"expected size 6 in dimension K, got shape \[2, 4, 3, 5\]"),
        (2, "v", torch.zeros(2, 4, 6), "expected 4 dimensions"),
        (3, "g", torch.zeros(2, 5, 3, 6), "expected size 4 in dimension S"),
        (4, "beta", torch.zeros(2, 4, 3, dtype=torch.int32), "expected a floating dtype, got torch.int32"),
        (5, "state", torch.zeros(2, 3, 6, 7), "expected size 6 in dimension V"),
    ],
)
@pytest.mark.parametrize("module", [kda_recurrent, kda_chunked])
def test_kda_refuses_shapes(module: Any, position: int, name: str, value: torch.Tensor, expected: str) -> None:
    args = kda_arguments(4)
    args[position] = value
    for call in (module.reference, module.fake):
        with pytest.raises(Day0Error, match=expected) as caught:
            call(*args)
        assert caught.value.where == f"{module.NAME}: {name}"


def test_kda_refuses_settings_by_name() -> None:
    args = kda_arguments(4)
    for module in (kda_recurrent, kda_chunked):
        with pytest.raises(Day0Error, match="state_layout: expected 'kv' or 'vk', got 'KV'"):
            module.reference(*args, state_layout="KV")
    with pytest.raises(Day0Error, match="day0::kda_chunked: chunk: expected 1 token or more, got 0"):
        CHUNKED(*args, 0)
    # K and V apart: a state in the other layout is refused, not read.
    apart = [*args[:2], torch.zeros(2, 4, 3, 5, dtype=torch.float64), *args[3:5], torch.zeros(2, 3, 6, 5)]
    with pytest.raises(Day0Error, match="state: expected size 5 in dimension V"):
        RECURRENT(*apart, "vk")


# The gate


def test_gates_equal_plain_python() -> None:
    raw, a_log, bias = torch.tensor([[[[-3.0, 0.5]]]]), torch.tensor([0.7]), torch.tensor([[0.25, 1.0]])
    plain = [-math.exp(0.7) * math.log(1 + math.exp(x)) for x in (-2.75, 1.5)]
    bounded = [-5 / (1 + math.exp(-math.exp(0.7) * x)) for x in (-2.75, 1.5)]
    assert GATE(raw, a_log, bias).flatten().tolist() == pytest.approx(plain, rel=1e-6)
    assert GATE(raw, a_log, bias, -5.0).flatten().tolist() == pytest.approx(bounded, rel=1e-6)


def test_the_bound_is_no_clamp() -> None:
    raw, a_log, bias = samples(kda_gate.OP)[1].args[:3]
    plain, bounded = GATE(raw, a_log, bias), GATE(raw, a_log, bias, -5.0)
    assert not torch.allclose(plain.clamp_min(-5.0), bounded, atol=0.1)
    assert not torch.allclose(bounded, GATE(raw, a_log, bias, -4.0))
    assert (bounded <= 0).all() and (bounded >= -5).all()


def test_gates_hold_at_both_ends() -> None:
    raw, one = torch.tensor([-INF, -1e30, -90.0, 90.0, 1e30, INF]).reshape(1, 1, 1, 6), torch.zeros(1)
    plain = GATE(raw, one, torch.zeros(1, 6)).flatten()
    assert plain.tolist() == pytest.approx([0.0, 0.0, -math.exp(-90), -90.0, -1e30, -INF], rel=1e-6)
    bounded = GATE(raw, one, torch.zeros(1, 6), -5.0).flatten()
    assert bounded.tolist() == pytest.approx([0.0, 0.0, -5 * math.exp(-90), -5.0, -5.0, -5.0], rel=1e-6)


def test_gate_heads_and_nan_stay_apart() -> None:
    raw, a_log, bias = torch.zeros(1, 2, 3, 4), torch.tensor([0.0, NAN, 1.0]), torch.zeros(3, 4)
    bias[2, 1] = NAN
    for bound in (None, -5.0):
        got = GATE(raw, a_log, bias, bound)
        spoiled = torch.zeros(1, 2, 3, 4, dtype=torch.bool)
        spoiled[:, :, 1], spoiled[:, :, 2, 1] = True, True
        assert torch.equal(torch.isnan(got), spoiled)


def test_the_gate_is_wide_for_the_recurrence() -> None:
    args = samples(kda_gate.OP)[0].args[:3]
    assert GATE(*(arg.bfloat16() for arg in args)).dtype == torch.float32
    assert GATE(*(arg.double() for arg in args)).dtype == torch.float64


@pytest.mark.parametrize("bound", [0.0, 5.0, NAN, -INF])
def test_the_gate_refuses_a_bound_that_is_none(bound: float) -> None:
    args = samples(kda_gate.OP)[0].args[:3]
    with pytest.raises(Day0Error, match="kda_gate: lower_bound: expected None or a negative number"):
        GATE(*args, bound)


def test_the_gate_refuses_rates_of_other_shapes() -> None:
    raw, a_log, bias = samples(kda_gate.OP)[0].args[:3]
    with pytest.raises(Day0Error, match=r"a_log: expected 1 dimensions \[H\], got 4"):
        GATE(raw, a_log.view(1, 1, -1, 1), bias)
    with pytest.raises(Day0Error, match="a_log: expected size 2 in dimension H"):
        GATE(raw, torch.zeros(128), bias)
    with pytest.raises(Day0Error, match="dt_bias: expected 2 dimensions"):
        GATE(raw, a_log, bias.flatten())


# The short convolution


def test_the_last_tap_is_the_newest_token() -> None:
    x, weight = torch.tensor([[[1.0], [10.0]]]), torch.tensor([[3.0, 5.0, 7.0]])
    y, state = short_conv.reference(x, weight, torch.tensor([[[100.0], [1000.0]]]), silu=False)
    assert y.flatten().tolist() == [300.0 + 5000.0 + 7.0, 3000.0 + 5.0 + 70.0]
    assert state.flatten().tolist() == [1.0, 10.0]
    y, _ = short_conv.reference(x, weight, silu=False)
    assert y.flatten().tolist() == [7.0, 5.0 + 70.0]


def test_silu_changes_the_result_but_not_the_state() -> None:
    x, weight = torch.randn(1, 4, 3), torch.randn(3, 4)
    plain, state = short_conv.reference(x, weight, silu=False)
    active, same = short_conv.reference(x, weight)
    torch.testing.assert_close(active, torch.nn.functional.silu(plain))
    assert torch.equal(state, same) and torch.equal(state, x[:, 1:])


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 6, 7])
def test_a_convolution_may_be_cut_anywhere(cut: int) -> None:
    x, weight, state = torch.randn(2, 7, 3), torch.randn(3, 4), torch.randn(2, 3, 3)
    y, last = short_conv.reference(x, weight, state)
    first, between = short_conv.reference(x[:, :cut], weight, state)
    second, end = short_conv.reference(x[:, cut:], weight, between)
    # Vectors of another length may multiply and add in one step: not bit for bit.
    torch.testing.assert_close(torch.cat((first, second), dim=1), y, rtol=1e-5, atol=1e-6)
    assert torch.equal(end, last)


def test_zeros_before_a_sequence_change_nothing_and_other_padding_does() -> None:
    # Without SiLU: torch's sigmoid rounds an element otherwise in the tail of a vector than within one.
    x, weight = torch.randn(1, 5, 3), torch.randn(3, 4)
    y, _ = short_conv.reference(x, weight, silu=False)
    padded = torch.nn.functional.pad(x, (0, 0, 2, 0))
    assert torch.equal(short_conv.reference(padded, weight, silu=False)[0][:, 2:], y)
    assert not torch.allclose(short_conv.reference(padded + 1.0, weight, silu=False)[0][:, 2:], y)


def test_nan_reaches_the_window_of_its_channel_only() -> None:
    x, weight = torch.randn(1, 8, 2), torch.randn(2, 4)
    x[0, 2, 1] = NAN
    spoiled = torch.isnan(short_conv.reference(x, weight)[0])[0]
    assert not spoiled[:, 0].any() and spoiled[:, 1].nonzero().flatten().tolist() == [2, 3, 4, 5]


def test_the_convolution_refuses_a_state_of_another_width() -> None:
    x, weight = torch.zeros(2, 3, 4), torch.zeros(4, 4)
    for shape in ((2, 4, 4), (2, 4, 3), (1, 3, 4)):
        with pytest.raises(Day0Error, match=r"short_conv: state: expected shape \[2, 3, 4\]"):
            short_conv.reference(x, weight, torch.zeros(shape))
    with pytest.raises(Day0Error, match="weight: expected size 4 in dimension C"):
        short_conv.reference(x, torch.zeros(3, 4))
    with pytest.raises(Day0Error, match="weight: expected 1 tap or more, got 0"):
        short_conv.reference(x, torch.zeros(4, 0))
    with pytest.raises(Day0Error, match="state: expected a floating dtype"):
        short_conv.reference(x, weight, torch.zeros(2, 3, 4, dtype=torch.int64))


# The residual by attention


def residual_arguments(snapshots: int = 3) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(2)
    values = torch.randn(snapshots + 1, 2, 4, 6, generator=generator, dtype=torch.float64)
    norm, score = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    return list(values[:-1]), values[-1], norm, score, 1e-5


def test_the_residual_equals_plain_python() -> None:
    bank, prefix, norm, score, eps = residual_arguments()
    got = RESIDUAL(bank, prefix, norm, score, eps)
    for b in range(2):
        for t in range(4):
            rows = [one[b, t].tolist() for one in (*bank, prefix)]
            sizes = [math.sqrt(sum(x * x for x in row) / 6 + eps) for row in rows]
            scores = [
                sum(x / size * n * r for x, n, r in zip(row, norm.tolist(), score.tolist(), strict=True))
                for row, size in zip(rows, sizes, strict=True)
            ]
            weights = [math.exp(one) / sum(map(math.exp, scores)) for one in scores]
            mixed = [sum(w * row[d] for w, row in zip(weights, rows, strict=True)) for d in range(6)]
            assert got[b, t].tolist() == pytest.approx(mixed, rel=1e-12)


def test_an_empty_bank_passes_through_bit_for_bit() -> None:
    _, prefix, norm, score, eps = residual_arguments()
    prefix = prefix.bfloat16()
    prefix[0, 0, 0], prefix[0, 1, 0] = INF, -0.0  # a softmax over one value would make NaN of the first
    got = RESIDUAL([], prefix, norm, score, eps)
    assert torch.equal(got, prefix) and got.dtype == torch.bfloat16 and got.data_ptr() != prefix.data_ptr()


def test_the_order_of_the_bank_does_not_matter_but_its_members_do() -> None:
    bank, prefix, norm, score, eps = residual_arguments()
    got = RESIDUAL(bank, prefix, norm, score, eps)
    torch.testing.assert_close(RESIDUAL(bank[::-1], prefix, norm, score, eps), got)
    assert not torch.allclose(RESIDUAL(bank[1:], prefix, norm, score, eps), got)


def test_norm_score_and_eps_matter_and_size_does_not_score() -> None:
    bank, prefix, norm, score, eps = residual_arguments()
    got = RESIDUAL(bank, prefix, norm, score, eps)
    for changed_args in ((norm * 2, score, eps), (norm, score * 2, eps), (norm, score, 1.0)):
        assert not torch.allclose(RESIDUAL(bank, prefix, *changed_args), got)
    # Scores see directions, the sum sees values: scaling all of them scales the result.
    scaled = RESIDUAL([10 * one for one in bank], 10 * prefix, norm, score, 1e-12)
    torch.testing.assert_close(scaled, 10 * RESIDUAL(bank, prefix, norm, score, 1e-12))


def test_the_residual_survives_zeros_and_sharp_scores_and_contains_nan() -> None:
    bank, prefix, norm, score, eps = residual_arguments()
    assert torch.isfinite(RESIDUAL([torch.zeros_like(prefix)], prefix, norm, score, eps)).all()
    sharp = RESIDUAL(bank, prefix, norm, 1e6 * score, eps)
    assert torch.isfinite(sharp).all()
    bank[1][1, 2] = NAN
    spoiled = torch.isnan(RESIDUAL(bank, prefix, norm, score, eps)).any(dim=-1)
    assert spoiled.nonzero().tolist() == [[1, 2]]


def test_the_residual_names_what_it_refuses() -> None:
    bank, prefix, norm, score, eps = residual_arguments()
    with pytest.raises(Day0Error, match=r"bank\[1\]: expected size 4 in dimension S"):
        RESIDUAL([bank[0], bank[1][:, :3]], prefix, norm, score, eps)
    with pytest.raises(Day0Error, match=r"bank\[0\]: expected a floating dtype"):
        RESIDUAL([bank[0].long()], prefix, norm, score, eps)
    with pytest.raises(Day0Error, match="score: expected 1 dimensions"):
        RESIDUAL(bank, prefix, norm, score[None], eps)
    with pytest.raises(Day0Error, match="eps: expected a positive number, got 0"):
        RESIDUAL(bank, prefix, norm, score, 0.0)


# Hyper-connections


def hyper_arguments() -> list[Any]:
    """Streams, weight, base, scale, norm_eps, eps, iterations in float64."""
    return list(changed(samples(hyper_connection_pre.OP)[0].args, torch.Tensor.double))


def test_hyper_connections_equal_plain_python() -> None:
    streams, weight, base, scale, norm_eps, eps, _ = hyper_arguments()
    x, post, comb = PRE(streams, weight, base, scale, norm_eps, eps, 1)
    n, row = 4, streams[0, 1].flatten().tolist()
    size = math.sqrt(sum(v * v for v in row) / len(row) + norm_eps)
    m = [sum(v / size * w for v, w in zip(row, line, strict=True)) for line in weight.tolist()]
    kind = [0] * n + [1] * n + [2] * n * n
    m = [value * scale[k].item() + b for value, k, b in zip(m, kind, base.tolist(), strict=True)]
    sigmoid = [1 / (1 + math.exp(-value)) for value in m]
    expected = [sum((sigmoid[j] + eps) * streams[0, 1, j, d].item() for j in range(n)) for d in range(6)]
    assert x[0, 1].tolist() == pytest.approx(expected, rel=1e-12)
    assert post[0, 1].tolist() == pytest.approx([2 * value for value in sigmoid[n : 2 * n]], rel=1e-12)
    rows = [m[2 * n + n * j : 2 * n + n * (j + 1)] for j in range(n)]
    soft = [[math.exp(v) / sum(map(math.exp, line)) + eps for v in line] for line in rows]
    total = [sum(line[i] for line in soft) + eps for i in range(n)]
    for j in range(n):
        assert comb[0, 1, j].tolist() == pytest.approx([v / t for v, t in zip(soft[j], total, strict=True)], rel=1e-12)


def test_comb_becomes_doubly_stochastic_with_the_iterations() -> None:
    args = hyper_arguments()
    far = [(PRE(*args[:6], iterations)[2].sum(dim=-1) - 1).abs().max().item() for iterations in (1, 3, 20)]
    assert far[0] > 1e-2 and far[0] > far[1] > far[2] and far[2] < 1e-4
    comb = PRE(*args)[2]
    torch.testing.assert_close(comb.sum(dim=-2), torch.ones_like(comb[..., 0]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("position", range(1, 7))
def test_every_parameter_of_a_hyper_connection_matters(position: int) -> None:
    args = hyper_arguments()
    before = PRE(*args)
    args[position] = 3 if position == 6 else args[position] * 1.5 + 0.01
    after = PRE(*args)
    assert any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_comb_is_used_from_old_to_new() -> None:
    streams, y, post, comb = changed(samples(hyper_connection_post.OP)[0].args, torch.Tensor.double)
    got = hyper_connection_post.reference(streams, y, post, comb)
    for m in range(4):
        expected = post[..., m, None] * y + sum(comb[..., j, m, None] * streams[..., j, :] for j in range(4))
        torch.testing.assert_close(got[..., m, :], expected)
    assert not torch.allclose(hyper_connection_post.reference(streams, y, post, comb.transpose(-1, -2)), got)


def test_columns_that_sum_to_1_keep_equal_streams_equal() -> None:
    args = hyper_arguments()
    args[0] = args[0][:, :, :1].expand(-1, -1, 4, -1)
    x, post, comb = PRE(*args)
    got = hyper_connection_post.reference(args[0], torch.zeros_like(x), post, comb)
    torch.testing.assert_close(got, args[0].contiguous(), rtol=1e-4, atol=1e-5)


def test_hyper_connections_contain_nan() -> None:
    args = hyper_arguments()
    args[0][0, 1, 2, 3] = NAN
    x, post, comb = PRE(*args)
    for one in (x, post, comb, hyper_connection_post.reference(args[0], x, post, comb)):
        assert torch.isfinite(one[:, 0]).all() and torch.isnan(one[:, 1]).any()


def test_hyper_connections_name_what_they_refuse() -> None:
    streams, weight, base, scale, norm_eps, eps, iterations = hyper_arguments()
    with pytest.raises(Day0Error, match=r"weight: expected shape \[24, 24\], got shape \[24, 23\]"):
        PRE(streams, weight[:, :23], base, scale, norm_eps, eps, iterations)
    with pytest.raises(Day0Error, match="base: expected size 24 in dimension M"):
        PRE(streams, weight, base[:20], scale, norm_eps, eps, iterations)
    with pytest.raises(Day0Error, match="scale: expected 3 numbers: pre, post, comb, got 2"):
        PRE(streams, weight, base, scale[:2], norm_eps, eps, iterations)
    with pytest.raises(Day0Error, match="iterations: expected 1 or more, got 0"):
        PRE(streams, weight, base, scale, norm_eps, eps, 0)
    with pytest.raises(Day0Error, match="norm_eps: expected a positive number"):
        PRE(streams, weight, base, scale, 0.0, eps, iterations)
    y, post, comb = torch.zeros(1, 2, 6), torch.zeros(1, 2, 4), torch.zeros(1, 2, 4, 3)
    with pytest.raises(Day0Error, match="hyper_connection_post: comb: expected size 4 in dimension n"):
        hyper_connection_post.reference(streams, y, post, comb)
