"""Routing, experts, their activations and the formats of their weights: what goes wrong with them in practice."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from day0.errors import Day0Error
from day0.reference_ops import (
    fp8_block_dequantise,
    fp8_block_quantise,
    fused_experts,
    gated_activation,
    moe_router,
    mxfp4_decode,
)
from day0.reference_ops._spec import Operator
from day0.reference_ops.signatures import tensors_in

NAN, INF = float("nan"), float("inf")
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
OPERATORS = (
    gated_activation.OP,
    fused_experts.OP,
    moe_router.OP,
    mxfp4_decode.OP,
    fp8_block_quantise.OP,
    fp8_block_dequantise.OP,
)


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cast(value: Any, dtype: torch.dtype) -> Any:
    narrow = (torch.float8_e4m3fn,)
    floating = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype not in narrow
    return value.to(dtype) if floating else value


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda one: one.name)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_runs_in_every_dtype_and_the_fake_knows_the_result(operator: Operator, dtype: torch.dtype) -> None:
    assert operator.fake is not None and operator.flops is not None
    for sample in operator.samples(seeded()):
        wants_float32 = operator.name == fp8_block_dequantise.NAME
        args = sample.args if wants_float32 else tuple(cast(value, dtype) for value in sample.args)
        results = list(tensors_in(operator.reference(*args)))
        meta = tuple(value.to("meta") if isinstance(value, torch.Tensor) else value for value in args)
        for mine, shape in zip(results, tensors_in(operator.fake(*meta)), strict=True):
            assert (mine.shape, mine.dtype, mine.stride()) == (shape.shape, shape.dtype, shape.stride())
        arguments = {tensor.untyped_storage()._cdata for tensor in tensors_in(args)}
        assert not arguments & {one.untyped_storage()._cdata for one in results}
        assert operator.flops(*meta) >= 0


# --- the activation


def test_gate_is_the_first_half_or_the_even_columns() -> None:
    halves = torch.randn(3, 8, dtype=torch.float64, generator=seeded())
    mixed = halves.unflatten(-1, (2, 4)).transpose(-1, -2).flatten(-2)
    for kind in gated_activation.KINDS:
        apart = gated_activation.reference(halves, kind, False, 0.7, 2.0, 3.0)
        assert torch.equal(gated_activation.reference(mixed, kind, True, 0.7, 2.0, 3.0), apart)
        assert not torch.allclose(gated_activation.reference(halves, kind, True, 0.7, 2.0, 3.0), apart)


def test_activation_is_the_formula_of_each_kind() -> None:
    def call(gate: float, up: float, kind: str, *attributes: float) -> float:
        both = torch.tensor([gate, up], dtype=torch.float64)
        return gated_activation.reference(both, kind, False, *attributes).item()

    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    assert call(2.0, -3.0, "swiglu") == pytest.approx(2 * sigmoid(2) * -3)
    # The gate is clamped from above only, before its sigmoid; up from both sides.
    assert call(2.0, -3.0, "swiglu_clamped", 1.0) == pytest.approx(sigmoid(1) * -1)
    assert call(-2.0, 3.0, "swiglu_clamped", 1.0) == pytest.approx(-2 * sigmoid(-2) * 1)
    assert call(2.0, -3.0, "swiglu_oai", 1.5) == pytest.approx(1.5 * sigmoid(1.702 * 1.5) * -0.5)
    tanh = 4 * math.tanh(2 / 4) * sigmoid(2)
    assert call(2.0, 30.0, "situ", 0.0, 4.0, 25.0) == pytest.approx(tanh * 25 * math.tanh(30 / 25))
    assert call(2.0, 30.0, "situ", 0.0, 4.0, 0.0) == pytest.approx(tanh * 30)


def test_activation_attributes_of_another_kind_change_nothing() -> None:
    both = 5.0 * torch.randn(4, 6, generator=seeded())
    for kind, attributes in (
        ("swiglu", (0.5, 3.0, 2.0)),
        ("swiglu_clamped", (1.0, 3.0, 2.0)),
        ("situ", (0.5, 1.0, 1.0)),
    ):
        plain = tuple(
            value if name in gated_activation.KINDS[kind] else 0.0
            for name, value in zip(("limit", "beta", "linear_beta"), attributes, strict=True)
        )
        mine = gated_activation.reference(both, kind, False, *attributes)
        assert torch.equal(mine, gated_activation.reference(both, kind, False, *plain))


def test_activation_is_computed_wide_and_rounded_once() -> None:
    both = torch.tensor([300.0, 250.0, 300.0, 0.003], dtype=torch.float16)
    got = gated_activation.reference(both, "situ", False, 0.0, 1e5, 0.0)
    # 300 * 300 is beyond float16; the product with the small one is not.
    assert torch.isinf(got[0]) and got[1].item() == pytest.approx(0.75, rel=1e-3)
    narrow = torch.randn(64, 32, generator=seeded()).bfloat16()
    expected = gated_activation.reference(narrow.float(), "swiglu").bfloat16()
    assert torch.equal(gated_activation.reference(narrow, "swiglu"), expected)


@pytest.mark.parametrize("kind", sorted(gated_activation.KINDS))
def test_activation_keeps_nan_and_lets_it_go_nowhere_else(kind: str) -> None:
    both = torch.ones(2, 6)
    both[0, 1] = both[1, 5] = NAN
    got = gated_activation.reference(both, kind, False, 1.0, 1.0, 1.0)
    assert torch.isnan(got).tolist() == [[False, True, False], [False, False, True]]


@pytest.mark.parametrize(
    ("both", "attributes", "where", "what"),
    [
        (torch.ones(2, 5), ("swiglu",), "gate_up", "expected an even number of columns, got 5"),
        (torch.ones(2, 4, dtype=torch.int32), ("swiglu",), "gate_up", "expected a floating dtype, got torch.int32"),
        (torch.ones(()), ("swiglu",), "gate_up", "expected at least one dimension, got 0"),
        (torch.ones(2, 4), ("gelu",), "kind", "expected swiglu or .*, got 'gelu'"),
        (torch.ones(2, 4), ("swiglu_clamped",), "limit", "expected a positive number for swiglu_clamped, got 0.0"),
        (torch.ones(2, 4), ("swiglu_oai", True, -7.0), "limit", "expected a positive number for swiglu_oai, got -7.0"),
        (torch.ones(2, 4), ("swiglu_oai", True, NAN), "limit", "got nan"),
        (torch.ones(2, 4), ("situ",), "beta", "expected a positive number for situ, got 0.0"),
        (torch.ones(2, 4), ("situ", False, 0.0, 1.0, -1.0), "linear_beta", "expected a bound, or 0 .*, got -1.0"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_activation_refuses(
    both: torch.Tensor, attributes: tuple[Any, ...], where: str, what: str, device: str
) -> None:
    with pytest.raises(Day0Error, match=what) as caught:
        gated_activation.reference(both.to(device), *attributes)
    assert caught.value.where == f"day0::gated_activation: {where}"


# --- the experts


def mixture(tokens: int, experts: int, choices: int, dtype: torch.dtype = torch.float64) -> tuple[Any, ...]:
    """Return x [N, 6], gate_up [E, 8, 6], down [E, 6, 4], weights [N, K] and chosen [N, K]."""
    generator = seeded(4)
    x, gate_up, down, weights = (
        torch.randn(size, dtype=torch.float64, generator=generator).to(dtype)
        for size in ((tokens, 6), (experts, 8, 6), (experts, 6, 4), (tokens, choices))
    )
    return x, gate_up, down, weights, torch.randint(0, experts, (tokens, choices), generator=generator)


def test_experts_equal_plain_loops() -> None:
    x, gate_up, down, weights, chosen = mixture(5, 3, 2)
    got = fused_experts.reference(x, gate_up, down, weights, chosen, "swiglu")
    for n in range(5):
        for d in range(6):
            total = 0.0
            for k in range(2):
                e = int(chosen[n, k])
                hidden = [sum(float(gate_up[e, h, i] * x[n, i]) for i in range(6)) for h in range(8)]
                active = [hidden[f] / (1 + math.exp(-hidden[f])) * hidden[4 + f] for f in range(4)]
                total += float(weights[n, k]) * sum(float(down[e, d, f]) * active[f] for f in range(4))
            assert got[n, d].item() == pytest.approx(total, rel=1e-12, abs=1e-13)


def constant_experts(outputs: list[float], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Return experts that answer with a constant, whatever comes: the bias of the second projection."""
    number = len(outputs)
    bias = torch.tensor(outputs, dtype=torch.float32)[:, None]
    named = {"gate_up_bias_EH": torch.zeros(number, 2), "down_bias_ED": bias}
    return torch.zeros(number, 2, 1, dtype=dtype), torch.zeros(number, 1, 1, dtype=dtype), named


def test_each_output_is_rounded_before_its_weight_and_the_sum_is_wide() -> None:
    gate_up, down, named = constant_experts([257.0, 1.0, 1.0], torch.bfloat16)
    x, chosen = torch.ones(1, 1, dtype=torch.bfloat16), torch.tensor([[0, 1, 2]])
    ones = torch.ones(1, 3)
    # 257 becomes 256 in bfloat16. A sum in bfloat16 would stay at 256; without the first rounding it is 259, so 260.
    assert fused_experts.reference(x, gate_up, down, ones, chosen, "swiglu", **named).item() == 258.0
    # The weight meets the rounded output: 256 * 1.5 = 384; 257 * 1.5 = 385.5 would become 386.
    late = torch.tensor([[1.5, 0.0, 0.0]])
    assert fused_experts.reference(x, gate_up, down, late, chosen, "swiglu", **named).item() == 384.0
    # Early, the weight never meets the output of a constant.
    early = fused_experts.reference(x, gate_up, down, late, chosen, "swiglu", weight_early=True, **named)
    assert early.item() == 258.0


def test_an_early_weight_multiplies_the_input() -> None:
    x, gate_up, down, weights, chosen = mixture(4, 3, 1)
    early = fused_experts.reference(x, gate_up, down, weights, chosen, "swiglu", weight_early=True)
    ones = torch.ones_like(weights)
    torch.testing.assert_close(early, fused_experts.reference(x * weights, gate_up, down, ones, chosen, "swiglu"))
    assert not torch.allclose(early, fused_experts.reference(x, gate_up, down, weights, chosen, "swiglu"))


def test_an_early_weighted_input_is_rounded() -> None:
    # The gate is the constant 32 and up is the input less 1, which shows the input's last places.
    gate_up = torch.tensor([[[0.0], [1.0]]]).bfloat16()
    bias = torch.tensor([[32.0, -1.0]])
    x, weights = torch.tensor([[1.0234375]]).bfloat16(), torch.tensor([[1.0234375]])
    chosen, down = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1, 1).bfloat16()
    got = fused_experts.reference(x, gate_up, down, weights, chosen, "swiglu", weight_early=True, gate_up_bias_EH=bias)
    # 1.0234375^2 = 1.0474, in bfloat16 1.046875.
    assert got.item() == 32 * 0.046875


@pytest.mark.parametrize("nobody", [-1, -7, 3, 99])
def test_a_choice_that_is_no_expert_here_contributes_nothing(nobody: int) -> None:
    x, gate_up, down, weights, chosen = mixture(4, 3, 2)
    chosen[1] = nobody
    chosen[2, 0] = nobody
    x[1] = NAN  # a padded row
    weights[2, 0] = NAN
    got = fused_experts.reference(x, gate_up, down, weights, chosen, "swiglu")
    assert got[1].tolist() == [0.0] * 6
    alone = fused_experts.reference(x[2:3], gate_up, down, weights[2:3, 1:], chosen[2:3, 1:], "swiglu")
    assert torch.equal(got[2:3], alone)


def test_a_bias_of_a_dropped_choice_is_dropped_too() -> None:
    gate_up, down, named = constant_experts([5.0], torch.float32)
    nobody = torch.full((2, 1), -1)
    got = fused_experts.reference(torch.ones(2, 1), gate_up, down, torch.ones(2, 1), nobody, "swiglu", **named)
    assert got.tolist() == [[0.0], [0.0]]


def test_nan_stays_with_its_token_and_its_expert() -> None:
    x, gate_up, down, weights, chosen = mixture(4, 3, 2)
    chosen = torch.tensor([[0, 2], [0, 2], [1, 2], [2, 0]])
    gate_up[1] = NAN
    x[3] = NAN
    got = fused_experts.reference(x, gate_up, down, weights, chosen, "swiglu")
    assert torch.isnan(got).all(dim=1).tolist() == [False, False, True, True]
    assert torch.isfinite(got[:2]).all()


def test_an_expert_chosen_twice_counts_twice_and_ids_may_be_int32() -> None:
    x, gate_up, down, weights, _ = mixture(3, 3, 2)
    twice = torch.full((3, 2), 1, dtype=torch.int32)
    once = fused_experts.reference(x, gate_up, down, weights.sum(-1, keepdim=True), twice[:, :1].long(), "swiglu")
    torch.testing.assert_close(fused_experts.reference(x, gate_up, down, weights, twice, "swiglu"), once)


def test_up_rows_before_gate_rows_fit_and_are_wrong() -> None:
    x, gate_up, down, weights, chosen = mixture(3, 3, 2)
    swapped = gate_up.unflatten(1, (2, 4)).flip(1).flatten(1, 2)
    right = fused_experts.reference(x, gate_up, down, weights, chosen, "swiglu")
    assert not torch.allclose(fused_experts.reference(x, swapped, down, weights, chosen, "swiglu"), right)


@pytest.mark.parametrize(
    "named",
    [
        {"kind": "swiglu"},
        {"interleaved": True},
        {"weight_early": True},
        {"beta": 1.0},
        {"linear_beta": 1.0},
        {"kind": "swiglu_clamped", "limit": 0.1},
        {"gate_up_bias_EH": torch.ones(3, 8)},
        {"down_bias_ED": torch.ones(3, 6)},
    ],
    ids=lambda named: ",".join(named),
)
def test_every_attribute_of_the_experts_counts(named: dict[str, Any]) -> None:
    args = mixture(3, 3, 2)
    usual: dict[str, Any] = {"kind": "situ", "beta": 4.0, "linear_beta": 25.0}
    assert not torch.allclose(fused_experts.reference(*args, **usual | named), fused_experts.reference(*args, **usual))


def test_experts_are_differentiable_in_tokens_and_weights() -> None:
    x, gate_up, down, weights, chosen = mixture(3, 3, 2)
    chosen[0, 1] = -1
    for early in (False, True):
        assert torch.autograd.gradcheck(
            lambda x, w, early=early: fused_experts.reference(x, gate_up, down, w, chosen, "swiglu", False, early),
            (x.requires_grad_(), weights.requires_grad_()),
        )


def test_sizes_of_the_experts_depend_on_no_value() -> None:
    x, gate_up, down, weights, chosen = (tensor.to("meta") for tensor in mixture(3, 3, 2, torch.bfloat16))
    # Anything that had to read a value would raise here.
    assert fused_experts.reference(x, gate_up, down, weights, chosen, "swiglu").shape == (3, 6)


def test_experts_move_only_what_was_chosen() -> None:
    x, gate_up, down, weights, chosen = mixture(1, 50, 2, torch.bfloat16)
    one = (8 * 6 + 6 * 4) * 2
    assert fused_experts.OP.bytes is not None
    rows = 2 * (2 * 6) + 2 * 2 + 2 * 8
    assert fused_experts.OP.bytes(x, gate_up, down, weights, chosen, "swiglu") == 2 * one + rows
    many = mixture(40, 3, 2, torch.bfloat16)
    assert fused_experts.OP.bytes(*many, kind="swiglu") < 4 * one + 40 * 2 * (12 + 2 + 8)


def test_fp8_storage_costs_what_fp8_costs() -> None:
    generator = seeded(9)
    x = torch.randn(4, 300, generator=generator)
    gate_up = torch.randn(2, 300, 300, generator=generator) * 0.06
    down = torch.randn(2, 300, 150, generator=generator) * 0.08
    args = (x, gate_up, down, torch.rand(4, 2, generator=generator), torch.tensor([[0, 1]] * 3 + [[1, -1]]), "swiglu")
    assert fused_experts.OP.quantised is not None
    got, plain = fused_experts.quantised(*args), fused_experts.reference(*args)
    assert (got.shape, got.dtype) == (plain.shape, plain.dtype)
    # Rounding to 3 bits of mantissa is 2^-4 at worst, and about a third of it as a root mean square, five times over.
    size = float(torch.linalg.vector_norm(got - plain) / torch.linalg.vector_norm(plain))
    assert 0.01 < size < 0.1
    # Storing what was stored already changes nothing, expert by expert and ragged as they are.
    rows, columns = (torch.stack([through_fp8(matrix, 128) for matrix in weights]) for weights in (gate_up, down))
    again = fused_experts.quantised(x, rows, columns, *args[3:])
    torch.testing.assert_close(again, got, rtol=1e-4, atol=1e-5)
    # The last token has one expert: each projection reads FP8 on both sides.
    hidden = through_fp8(x[3:], 1) @ rows[1].T
    active = through_fp8(gated_activation.reference(hidden, "swiglu"), 1)
    torch.testing.assert_close(active @ columns[1].T * args[3][3, 0], got[3:], rtol=1e-4, atol=1e-5)
    for sample in fused_experts.OP.samples(seeded()):
        assert fused_experts.quantised(*sample.args).shape == sample.args[0].shape


def through_fp8(matrix: torch.Tensor, rows: int) -> torch.Tensor:
    values, scales = fp8_block_quantise.reference(matrix, rows, 128, False, 0.0)
    return fp8_block_dequantise.reference(values, scales, rows, 128, torch.float32)


@pytest.mark.parametrize(
    ("position", "wrong", "where", "what"),
    [
        (1, torch.ones(3, 7, 6), "gate_up", "expected 8 rows, twice the columns of down, got 7"),
        (1, torch.ones(3, 8, 5), "gate_up", "expected size 6 in dimension D"),
        (1, torch.ones(3, 8, 6).bfloat16(), "gate_up", "expected torch.float32, got torch.bfloat16"),
        (2, torch.ones(2, 6, 4), "down", "expected size 3 in dimension E"),
        (2, torch.ones(3, 6, 4).half(), "down", "expected torch.float32, got torch.float16"),
        (3, torch.ones(4, 2), "weights", "expected size 5 in dimension N"),
        (3, torch.ones(5, 2, dtype=torch.int64), "weights", "expected a floating dtype, got torch.int64"),
        (4, torch.ones(5, 3, dtype=torch.int64), "chosen", "expected size 2 in dimension K"),
        (4, torch.ones(5, 2), "chosen", "expected torch.int32 or torch.int64, got torch.float32"),
        (5, "relu", "kind", "got 'relu'"),
        (5, "situ", "beta", "expected a positive number for situ, got 0.0"),
        (11, torch.ones(3, 4), "gate_up_bias", "expected size 8 in dimension H"),
        (12, torch.ones(3, 6, dtype=torch.int8), "down_bias", "expected a floating dtype, got torch.int8"),
    ],
)
def test_experts_refuse(position: int, wrong: Any, where: str, what: str) -> None:
    args: list[Any] = [*mixture(5, 3, 2, torch.float32), "swiglu", False, False, 0.0, 0.0, 0.0, None, None]
    args[position] = wrong
    for device in ("cpu", "meta"):
        moved: list[Any] = [value.to(device) if isinstance(value, torch.Tensor) else value for value in args]
        with pytest.raises(Day0Error, match=what) as caught:
            fused_experts.reference(*moved)
        assert caught.value.where == f"day0::fused_experts: {where}"


def test_no_expert_at_all_is_refused() -> None:
    x, gate_up, down, weights, chosen = mixture(2, 3, 1)
    with pytest.raises(Day0Error, match="expected at least one expert, got 0"):
        fused_experts.reference(x, gate_up[:0], down[:0], weights, chosen, "swiglu")


# --- the router


def test_a_masked_group_is_not_zero() -> None:
    # Every choice is negative; a mask of 0 would put the closed group first.
    logits, bias = torch.tensor([[2.0, 1.0, 0.0, -1.0]]), torch.tensor([-5.0, -5.0, -5.0, -5.0])
    assert moe_router.reference(logits, bias, 2, 1.0, 2, 1)[1].tolist() == [[0, 1]]


def test_a_group_counts_with_its_two_best() -> None:
    logits = torch.tensor([[3.0, -9.0, -9.0, 1.0, 1.0, -9.0]])
    # The largest score stands in the first group, the largest sum of two in the second.
    weights, chosen = moe_router.reference(logits, torch.zeros(6), 2, 1.0, 2, 1)
    assert chosen.tolist() == [[3, 4]]
    torch.testing.assert_close(weights, torch.full((1, 2), 0.5))
    # The third expert of a group does not count: 3 x 0.5 is more than 0.7 + 0.7 only with it.
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.85, 0.85, -90.0]])
    assert moe_router.reference(logits, torch.zeros(6), 1, 1.0, 2, 1)[1].tolist() == [[3]]


def test_the_bias_chooses_groups_and_does_not_weigh() -> None:
    logits, bias = torch.zeros(1, 4), torch.tensor([0.0, 0.0, 0.5, 0.5])
    weights, chosen = moe_router.reference(logits, bias, 2, 3.0, 2, 1, "sigmoid", False)
    assert chosen.tolist() == [[2, 3]]
    assert weights.tolist() == [[1.5, 1.5]]


@pytest.mark.parametrize("score", moe_router.SCORES)
def test_ties_go_to_the_lower_expert(score: str) -> None:
    chosen = moe_router.reference(torch.zeros(1, 70), torch.zeros(70), 5, 1.0, score=score)[1]
    assert chosen.tolist() == [[0, 1, 2, 3, 4]]


def test_ties_go_to_the_lower_group() -> None:
    assert moe_router.reference(torch.zeros(1, 96), torch.zeros(96), 4, 1.0, 48, 2)[1].tolist() == [[0, 1, 2, 3]]


def test_all_groups_kept_is_no_group_at_all() -> None:
    logits, bias = torch.randn(6, 12, generator=seeded()), torch.randn(12, generator=seeded(2))
    free, grouped = (moe_router.reference(logits, bias, 4, 1.0, *groups) for groups in ((1, 1), (4, 4)))
    assert torch.equal(free[1], grouped[1]) and torch.equal(free[0], grouped[0])
    assert not torch.equal(free[1], moe_router.reference(logits, bias, 4, 1.0, 4, 2)[1])


def test_half_precision_logits_are_scored_wide() -> None:
    # Both sigmoids are 1 in bfloat16, where the lower expert would win.
    logits = torch.tensor([[8.0, 8.0625, -1.0]], dtype=torch.bfloat16)
    weights, chosen = moe_router.reference(logits, torch.zeros(3), 1, 1.0)
    assert chosen.tolist() == [[1]] and weights.dtype == torch.float32


def test_softmax_over_the_chosen_reads_no_bias() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, -INF]])
    weights, chosen = moe_router.reference(logits, torch.tensor([9.0, NAN, 0.0, 0.0]), 2, 2.0, score="softmax_topk")
    assert chosen.tolist() == [[1, 2]]
    torch.testing.assert_close(weights, 2.0 * torch.softmax(torch.tensor([[3.0, 2.0]]), dim=-1))


def test_root_of_softplus() -> None:
    logits = torch.tensor([[-50.0, 0.0, 25.0, 900.0]], dtype=torch.float64)
    weights, chosen = moe_router.reference(logits, torch.zeros(4), 4, 1.0, 1, 1, "sqrtsoftplus", False)
    assert chosen.tolist() == [[3, 2, 1, 0]]
    expected = [30.0, math.sqrt(25 + math.log1p(math.exp(-25))), math.sqrt(math.log(2)), math.exp(-25.0)]
    assert weights[0].tolist() == pytest.approx(expected, rel=1e-14)


def test_scores_of_nothing_give_weights_of_nothing() -> None:
    weights, _ = moe_router.reference(torch.full((1, 4), -INF), torch.zeros(4), 2, 1.0)
    assert weights.tolist() == [[0.0, 0.0]]


def test_a_padded_row_reaches_no_other_token() -> None:
    logits, bias = torch.randn(5, 12, generator=seeded()), torch.randn(12, generator=seeded(2))
    alone = moe_router.reference(logits[1:2], bias, 3, 1.0, 4, 2)
    logits[0], logits[2], logits[3, 4] = NAN, INF, NAN
    weights, chosen = moe_router.reference(logits, bias, 3, 1.0, 4, 2)
    assert torch.equal(weights[1:2], alone[0]) and torch.equal(chosen[1:2], alone[1])
    assert torch.isnan(weights[3]).all() and torch.isfinite(weights[4]).all()
    assert bool(((chosen >= 0) & (chosen < 12)).all())


def test_every_attribute_of_the_router_counts() -> None:
    logits, bias = 2.0 * torch.randn(8, 12, generator=seeded()), torch.randn(12, generator=seeded(2))
    weights, chosen = moe_router.reference(logits, bias, 3, 1.0)
    for attributes in (
        (3, 2.0, 1, 1, "sigmoid", True),
        (3, 1.0, 1, 1, "sigmoid", False),
        (3, 1.0, 1, 1, "sqrtsoftplus", True),
        (3, 1.0, 1, 1, "softmax_topk", True),
        (3, 1.0, 6, 2, "sigmoid", True),
    ):
        other = moe_router.reference(logits, bias, *attributes)
        assert not torch.equal(other[0], weights) or not torch.equal(other[1], chosen)


@pytest.mark.parametrize(
    ("attributes", "where", "what"),
    [
        ((0, 1.0), "topk", "expected 1 to 12 experts to choose from, got 0"),
        ((7, 1.0, 4, 2), "topk", "expected 1 to 6 experts to choose from, got 7"),
        ((2, 0.0), "scale", "expected a positive number, got 0.0"),
        ((2, 1.0, 5, 1), "groups", "expected a divisor of the 12 experts, got 5"),
        ((2, 1.0, 12, 3), "groups", "expected two experts or more in a group, got 12, of 1 each"),
        ((2, 1.0, 4, 5), "topk_groups", "expected 1 to the 4 groups, got 5"),
        ((2, 1.0, 0, 1), "groups", "expected a divisor of the 12 experts, got 0"),
        ((2, 1.0, 1, 1, "softmax"), "score", "expected sigmoid or sqrtsoftplus or softmax_topk, got 'softmax'"),
        ((2, 1.0, 4, 2, "softmax_topk"), "groups", "expected 1 for softmax_topk, got 4"),
        ((2, 1.0, 1, 1, "softmax_topk", False), "normalise", "expected True for softmax_topk, .*, got False"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_router_refuses(attributes: tuple[Any, ...], where: str, what: str, device: str) -> None:
    with pytest.raises(Day0Error, match=what) as caught:
        moe_router.reference(torch.zeros(3, 12, device=device), torch.zeros(12, device=device), *attributes)
    assert caught.value.where == f"day0::moe_router: {where}"


@pytest.mark.parametrize(("experts", "groups"), [(896, 1), (256, 8), (24, 6)])
def test_filled_logits_decide_in_every_dtype(experts: int, groups: int) -> None:
    args = (torch.zeros(6, experts, dtype=torch.bfloat16), torch.zeros(experts), 4, 1.0, groups, max(1, groups // 2))
    moe_router.fill(args, {}, seeded())
    wide = moe_router.reference(args[0].double(), args[1].double(), *args[2:])[1]
    assert torch.equal(moe_router.reference(*args)[1], wide)
    moe_router.fill(args[:4], {"groups": groups}, seeded())
    assert torch.equal(moe_router.reference(*args)[1], wide)


# --- MXFP4


def test_the_orders_of_nibbles() -> None:
    codes = torch.zeros(1, 16, dtype=torch.uint8)
    codes[0, 1] = 0x72
    scales = torch.tensor([[127]], dtype=torch.uint8)
    split, first = (mxfp4_decode.reference(codes, scales, torch.float32, order)[0] for order in ("split", "low_first"))
    assert split.nonzero().flatten().tolist() == [1, 17] and split[[1, 17]].tolist() == [1.0, 6.0]
    assert first.nonzero().flatten().tolist() == [2, 3] and first[[2, 3]].tolist() == [1.0, 6.0]


def test_repacking_from_one_order_to_the_other_keeps_every_byte() -> None:
    codes = torch.arange(256, dtype=torch.uint8).repeat(2, 1)
    elements = mxfp4_decode.nibbles(codes, "split")
    linear = elements[..., 0::2] | (elements[..., 1::2] << 4)
    assert torch.equal(mxfp4_decode.nibbles(linear, "low_first"), elements)
    halves = mxfp4_decode.nibbles(linear, "low_first").unflatten(-1, (-1, 2, 16))
    assert torch.equal((halves[..., 0, :] | (halves[..., 1, :] << 4)).flatten(-2), codes)


def test_scale_bytes_at_the_ends() -> None:
    codes = torch.full((6, 16), 0x70, dtype=torch.uint8)  # 0 and 6
    scales = torch.tensor([[0], [1], [252], [253], [254], [255]], dtype=torch.uint8)
    got = mxfp4_decode.reference(codes, scales, torch.float32)
    assert got[:, 1].tolist()[:5] == [6 * 2.0**-127, 6 * 2.0**-126, 6 * 2.0**125, INF, INF]
    assert got[:5, 0].tolist() == [0.0] * 5
    assert torch.isnan(got[5]).all()  # a zero under 255 too


def test_an_unknown_order_is_refused() -> None:
    codes, scales = torch.zeros(1, 16, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.uint8)
    with pytest.raises(Day0Error, match="expected low_first or split, got 'high_first'") as caught:
        mxfp4_decode.reference(codes, scales, torch.float32, "high_first")
    assert caught.value.where == "day0::mxfp4_decode: order"


# --- FP8 blocks


def numbers(values: torch.Tensor) -> list[float]:
    return list(values.float().flatten().tolist())


def test_halves_go_to_the_even_neighbour_and_zero_keeps_its_sign() -> None:
    x = torch.tensor([[448.0, 17.0, 19.0, 2.0**-10, 3 * 2.0**-10, -0.0]])
    values, scales = fp8_block_quantise.reference(x, 1, 6, False, 0.0)
    assert scales.item() == 1.0
    assert numbers(values) == [448.0, 16.0, 20.0, 0.0, 2.0**-8, 0.0]
    assert values.view(torch.uint8)[0, -1].item() == 0x80


def test_a_power_of_two_scale_never_clips_and_is_the_least() -> None:
    up = torch.nextafter(torch.tensor(448.0), torch.tensor(INF)).item()
    down = torch.nextafter(torch.tensor(448.0), torch.tensor(0.0)).item()
    for power in (-100, -1, 0, 1, 60):
        x = torch.tensor([[448.0], [up], [down]]) * 2.0**power
        _, scales = fp8_block_quantise.reference(x, 1, 1, True, 0.0)
        # A logarithm in float32 gives the neighbour of 448 the same scale as 448.
        assert scales[:, 0].tolist() == [2.0**power, 2.0 ** (power + 1), 2.0**power]


@pytest.mark.parametrize("power_of_two", [False, True])
def test_zeros_the_floor_and_tiny_blocks(power_of_two: bool) -> None:
    x = torch.tensor([[0.0, 1e-45, 1e-40, 1.0]])
    values, scales = fp8_block_quantise.reference(x, 1, 1, power_of_two, 0.0)
    assert torch.isfinite(values.float()).all() and scales[0, 0].item() == 1.0
    assert bool((scales > 0).all()) and bool((values.float().abs() <= 448).all())
    if power_of_two:
        assert scales[0, 1].item() == 2.0**-127  # the least that E8M0 holds
    floored = fp8_block_quantise.reference(x, 1, 1, power_of_two, 448.0)
    assert floored[1].tolist() == [[1.0] * 4] and numbers(floored[0]) == [0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_what_is_not_finite_spoils_its_block_alone(bad: float, power_of_two: bool) -> None:
    x = torch.ones(3, 5)
    x[1, 3] = bad
    values, scales = fp8_block_quantise.reference(x, 2, 2, power_of_two, 1e-4)
    assert torch.isnan(scales).tolist() == [[False, True, False], [False, False, False]]
    spoiled = torch.zeros(3, 5, dtype=torch.bool)
    spoiled[:2, 2:4] = True
    assert torch.equal(torch.isnan(values.float()), spoiled)


def test_ragged_edges_have_scales_of_their_own() -> None:
    x = torch.ones(3, 5)
    x[2, 4] = 7.0
    values, scales = fp8_block_quantise.reference(x, 2, 4, False, 0.0)
    assert scales.shape == (2, 2)
    assert scales.tolist() == (torch.tensor([[1.0, 1.0], [1.0, 7.0]]) / 448).tolist()
    back = fp8_block_dequantise.reference(values, scales, 2, 4, torch.float32)
    torch.testing.assert_close(back, x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("power_of_two", [False, True])
def test_there_and_back_loses_at_most_half_a_step(dtype: torch.dtype, power_of_two: bool) -> None:
    x = torch.randn(70, 200, generator=seeded()).to(dtype)
    values, scales = fp8_block_quantise.reference(x, 32, 48, power_of_two, 0.0)
    back = fp8_block_dequantise.reference(values, scales, 32, 48, torch.float64)
    step = fp8_block_quantise.expand(scales, 70, 200, 32, 48).double() * 2.0**-10
    assert bool(((back - x.double()).abs() <= 2.0**-4 * x.double().abs() * 1.0001 + step).all())


def test_every_attribute_of_the_quantiser_counts() -> None:
    x = torch.randn(8, 8, generator=seeded()) * 3e-5
    base = fp8_block_quantise.reference(x, 4, 4, False, 0.0)
    for attributes in ((2, 4, False, 0.0), (4, 2, False, 0.0), (4, 4, True, 0.0), (4, 4, False, 1e-4)):
        other = fp8_block_quantise.reference(x, *attributes)
        assert other[1].shape != base[1].shape or not torch.equal(other[1], base[1])


def test_the_scale_is_multiplied_and_rounded_in_float32() -> None:
    values, scales = torch.tensor([[3.0, -0.0]]).to(torch.float8_e4m3fn), torch.tensor([[0.1]])
    got = fp8_block_dequantise.reference(values, scales, 1, 2, torch.bfloat16)
    assert got[0, 0].item() == (torch.tensor(3.0) * torch.tensor(0.1)).bfloat16().item()
    assert torch.signbit(got[0, 1])
    wide = fp8_block_dequantise.reference(values.double(), scales.double(), 1, 2, torch.float64)
    assert wide[0, 0].item() == 3.0 * scales.double().item()


FP8 = torch.ones(3, 5).to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("operator", "args", "where", "what"),
    [
        (fp8_block_quantise, (torch.ones(3), 1, 1, False, 0.0), "x", "expected 2 dimensions"),
        (fp8_block_quantise, (FP8, 1, 1, False, 0.0), "x", "got torch.float8_e4m3fn"),
        (fp8_block_quantise, (torch.ones(3, 5), 0, 1, False, 0.0), "block_rows", "expected at least 1, got 0"),
        (fp8_block_quantise, (torch.ones(3, 5), 1, -1, False, 0.0), "block_columns", "expected at least 1, got -1"),
        (fp8_block_quantise, (torch.ones(3, 5), 1, 1, False, -1.0), "floor", "expected 0 or a positive number"),
        (fp8_block_quantise, (torch.ones(3, 5), 1, 1, False, NAN), "floor", "got nan"),
        (fp8_block_dequantise, (FP8, torch.ones(1, 2), 2, 4, torch.float32), "scales", r"expected shape \[2, 2\]"),
        (fp8_block_dequantise, (FP8, torch.ones(2, 2).half(), 2, 4, torch.float32), "scales", "got torch.float16"),
        (fp8_block_dequantise, (FP8.float(), torch.ones(2, 2), 2, 4, torch.float32), "values", "got torch.float32"),
        (
            fp8_block_dequantise,
            (FP8, torch.ones(2, 2), 0, 4, torch.float32),
            "block_rows",
            "expected at least 1, got 0",
        ),
        (fp8_block_dequantise, (FP8, torch.ones(2, 2), 2, 4, torch.int8), "dtype", "got torch.int8"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_fp8_refuses(operator: Any, args: tuple[Any, ...], where: str, what: str, device: str) -> None:
    moved = [value.to(device) if isinstance(value, torch.Tensor) else value for value in args]
    with pytest.raises(Day0Error, match=what) as caught:
        operator.reference(*moved)
    assert caught.value.where == f"{operator.NAME}: {where}"


def test_filled_codes_are_numbers() -> None:
    args = (torch.zeros(64, 64, dtype=torch.float8_e4m3fn), torch.zeros(2, 2), 32, 32, torch.float32)
    fp8_block_dequantise.fill(args, {}, seeded())
    assert torch.isfinite(args[0].float()).all() and bool((args[1] > 0).all())
    assert len(args[0].view(torch.uint8).unique()) == 254
