"""Operators around sparse attention's choice of tokens: scores, selection, pools, rope, Hadamard, block bitmaps."""

from __future__ import annotations

import cmath
import math
from typing import Any

import pytest
import torch

from day0.errors import Day0Error
from day0.reference_ops import (
    block_bitmap,
    expand_pools,
    hadamard,
    lightning_indexer,
    pool_index_keys,
    rope,
    topk_from_masked,
    topk_tokens,
)
from day0.reference_ops._spec import Operator
from day0.reference_ops.agreement._comparison import Comparison
from day0.reference_ops.agreement._load import load_comparisons

NAN, INF = float("nan"), float("inf")
MODULES = (
    block_bitmap,
    expand_pools,
    hadamard,
    lightning_indexer,
    pool_index_keys,
    rope,
    topk_from_masked,
    topk_tokens,
)
OPERATORS = {module.NAME: module.OP for module in MODULES}
COMPARISONS = tuple(one for one in load_comparisons() if one.operator in OPERATORS)


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def ints(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def tensors(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def case_name(one: Comparison) -> str:
    return f"{one.operator} {one.against} {one.variant}"


@pytest.mark.parametrize("one", COMPARISONS, ids=case_name)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_agrees_with_independent_code(one: Comparison) -> None:
    for name in {"numpy": ["numpy"], "ml_dtypes": ["ml_dtypes"], "transformers": ["transformers"]}.get(
        one.distribution, []
    ):
        pytest.importorskip(name)
    if one.distribution == "nemo-automodel":
        pytest.importorskip("nemo_automodel")
    assert one.run() <= one.limit


def test_every_operator_of_the_group_is_compared() -> None:
    assert {one.operator for one in COMPARISONS} == set(OPERATORS)


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_shapes_dtypes_and_strides_are_what_fake_says(operator: Operator, dtype: torch.dtype) -> None:
    assert operator.fake is not None
    kinds = set()
    for sample in operator.samples(generator()):
        kinds.add(sample.kind)
        args = [a.to(dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in sample.args]
        before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        results = tensors(operator.reference(*args))
        meta = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in args]
        shadows = [(x.shape, x.dtype, x.stride()) for x in tensors(operator.fake(*meta))]
        assert [(x.shape, x.dtype, x.stride()) for x in results] == shadows
        if operator.quantised is not None:
            assert [(x.shape, x.dtype, x.stride()) for x in tensors(operator.quantised(*args))] == shadows
        memory = {a.untyped_storage()._cdata for a in args if isinstance(a, torch.Tensor)}
        assert all(x.untyped_storage()._cdata not in memory for x in results)
        for old, new in zip(before, args, strict=True):
            if isinstance(old, torch.Tensor):
                torch.testing.assert_close(new, old, rtol=0, atol=0, equal_nan=True)
        if operator.flops is not None:
            assert operator.flops(*args) >= 0
    assert kinds == {"small", "odd", "corner", "traced"}


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_fill_writes_what_is_valid_whatever_the_strides(operator: Operator) -> None:
    if operator.fill is None:
        return
    for sample in operator.samples(generator()):
        args = [
            a.new_zeros((*a.shape[:-1], 2 * a.shape[-1]))[..., ::2] if isinstance(a, torch.Tensor) else a
            for a in sample.args
        ]
        operator.fill(tuple(args), {}, generator(2))
        once = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        operator.reference(*args)
        operator.fill(tuple(args), {}, generator(2))
        for left, right in zip(once, args, strict=True):
            assert not isinstance(left, torch.Tensor) or torch.equal(left, right)


Q, K, W = torch.ones(1, 2, 3, 4), torch.ones(1, 5, 4), torch.ones(1, 2, 3)
LOGITS, PICKS, FIRST = torch.ones(1, 2, 5), ints([[[0, 1, 2]] * 2]), torch.tensor([0])
X, ANGLES = torch.ones(2, 3, 1, 8), torch.ones(1, 3, 2)
POOL = (torch.ones(1, 8, 4), torch.ones(1, 8, 4), torch.ones(3, 4))
REFUSED: list[tuple[Any, tuple[Any, ...], str, str]] = [
    (
        lightning_indexer,
        (Q[:, :, :0], K, W[:, :, :0], 0),
        "q",
        r"at least one head and one dimension, got \[1, 2, 0, 4\]",
    ),
    (lightning_indexer, (Q, K.double(), W, 0), "k", "torch.float32, got torch.float64"),
    (lightning_indexer, (Q, K, W, -2), "first_position", "a position of 0 or more, got -2"),
    (topk_tokens, (LOGITS, 0), "topk", "at least 1, got 0"),
    (topk_tokens, (LOGITS, 2, torch.zeros(1, 2, dtype=torch.int64)), "lengths", "torch.int32, got torch.int64"),
    (topk_tokens, (LOGITS, 2, ints([[1, 2, 3]])), "lengths", r"size 2 in dimension S, got shape \[1, 3\]"),
    (topk_from_masked, (PICKS.to(torch.uint8), 0, 5), "indices", "torch.int32 or torch.int64, got torch.uint8"),
    (topk_from_masked, (PICKS, -1, 5), "first_position", "a position of 0 or more, got -1"),
    (topk_from_masked, (PICKS, 0, -1), "keys", "0 or more keys that int32 can count, got -1"),
    (topk_from_masked, (PICKS, 0, 2**31), "keys", "0 or more keys that int32 can count, got 2147483648"),
    (pool_index_keys, (*POOL, FIRST, 4), "table", r"size 4 in dimension P, got \[3, 4\]"),
    (pool_index_keys, (*POOL, FIRST, 0), "size", "at least 1, got 0"),
    (pool_index_keys, (*POOL, FIRST.double(), 3), "first_valid", "torch.int32 or torch.int64, got torch.float64"),
    (pool_index_keys, (POOL[0], POOL[1][:, :7], POOL[2], FIRST, 3), "gate", "size 8 in dimension T"),
    (expand_pools, (PICKS.long(), FIRST, 2, 0, 5), "pools", "torch.int32, got torch.int64"),
    (expand_pools, (PICKS, torch.tensor([0, 1]), 2, 0, 5), "first_valid", r"size 1 in dimension B, got shape \[2\]"),
    (expand_pools, (PICKS, FIRST, 0, 0, 5), "size", "at least 1, got 0"),
    (expand_pools, (PICKS, FIRST, 2, -1, 5), "first_position", "a position of 0 or more, got -1"),
    (expand_pools, (PICKS, FIRST, 2, 0, -5), "keys", "0 or more keys that int32 can count, got -5"),
    (hadamard, (torch.ones(2, 12),), "x", "a last dimension that is a power of two, got 12"),
    (hadamard, (torch.ones(2, 0),), "x", "a last dimension that is a power of two, got 0"),
    (hadamard, (torch.tensor(1.0),), "x", "at least one dimension, got 0"),
    (hadamard, (ints([1, 2]),), "x", "a floating dtype, got torch.int32"),
    (rope, (X, ANGLES, ANGLES, "neox", 0), "pairing", "'half' or 'interleaved', got 'neox'"),
    (rope, (X, ANGLES, ANGLES, "half", 5), "start", "0 to 4, where the slice still fits, got 5"),
    (rope, (X, ANGLES, ANGLES, "half", -1), "start", "0 to 4, where the slice still fits, got -1"),
    (rope, (X, ANGLES[:, :2], ANGLES[:, :2], "half", 0), "cos", r"size 3 in dimension S, got shape \[1, 2, 2\]"),
    (rope, (X, ANGLES.repeat(3, 1, 1), ANGLES.repeat(3, 1, 1), "half", 0), "cos", r"size 1 or 2 in dimension B"),
    (rope, (X, ANGLES.repeat(1, 1, 3), ANGLES.repeat(1, 1, 3), "half", 0), "cos", "at most 4 pairs for heads of 8"),
    (rope, (X, ANGLES, ANGLES[..., :1], "half", 0), "sin", "size 2 in dimension P"),
    (block_bitmap, (PICKS.long(), 4, 2), "indices", "torch.int32, got torch.int64"),
    (block_bitmap, (PICKS, 0, 2), "block_size", "at least 1, got 0"),
    (block_bitmap, (PICKS, 4, -1), "blocks", "0 or more, got -1"),
]


@pytest.mark.parametrize(("module", "args", "argument", "text"), REFUSED)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_refuses_with_operator_argument_expected_and_given(
    module: Any, args: tuple[Any, ...], argument: str, text: str, device: str
) -> None:
    moved = [a.to(device) if isinstance(a, torch.Tensor) else a for a in args]
    for call in (module.reference, module.fake):
        with pytest.raises(Day0Error, match=text) as caught:
            call(*moved)
        assert caught.value.where == f"{module.NAME}: {argument}"


# Indexer


def test_indexer_of_a_real_number_of_heads_equals_one_product() -> None:
    sample = next(one for one in lightning_indexer.OP.samples(generator()) if one.kind == "traced")
    q, k, w = (tensor.double() for tensor in sample.args[:3])
    got = lightning_indexer.reference(q, k, w, sample.args[3])
    expected = torch.einsum("bsh,bsht->bst", w, torch.einsum("bshd,btd->bsht", q, k).relu()) / math.sqrt(64 * 128)
    shown = torch.isfinite(got)
    torch.testing.assert_close(got[shown], expected[shown])
    assert shown.sum(dim=-1).tolist() == [[68, 69, 70]]


@pytest.mark.parametrize("run", [lightning_indexer.reference, lightning_indexer.quantised])
def test_indexer_keeps_bad_keys_and_queries_to_themselves(run: Any) -> None:
    q, k, w = normal(1, 3, 2, 4), normal(1, 4, 4, seed=2), normal(1, 3, 2, seed=3)
    k[0, 2], q[0, 0, 1, 0] = NAN, NAN
    got = run(q, k, w, 1)
    assert not torch.isfinite(got[0, 0, :2]).any() and torch.isneginf(got[0, 0, 2:]).all()
    assert torch.isnan(got[0, 1:, 2]).all() and torch.isfinite(got[0, 1:, :2]).all()


def test_indexer_scores_pools_where_no_key_is_hidden() -> None:
    q, k, w = normal(1, 3, 2, 4), normal(1, 4, 4, seed=2), normal(1, 3, 2, seed=3)
    assert torch.isfinite(lightning_indexer.reference(q, k, w, 4)).all()


def test_one_sided_hadamard_chooses_at_random() -> None:
    q, k, w = normal(1, 1, 16, 128), normal(1, 1024, 128, seed=2), normal(1, 1, 16, seed=3).abs()
    turned_q, turned_k = hadamard.reference(q), hadamard.reference(k)

    def chosen(queries: torch.Tensor, keys: torch.Tensor) -> set[int]:
        scores = lightning_indexer.reference(queries, keys, w, 1023)
        return set(topk_tokens.reference(scores, 64)[0].flatten().tolist())

    assert chosen(turned_q, turned_k) == chosen(q, k)
    assert len(chosen(turned_q, k) & chosen(q, k)) < 32


def test_weights_in_bfloat16_change_the_choice() -> None:
    q, k, w = normal(1, 4, 32, 128), normal(1, 2048, 128, seed=2), normal(1, 4, 32, seed=3)
    fine, coarse = (
        topk_tokens.reference(lightning_indexer.reference(q, k, weights, 2047), 256)[0]
        for weights in (w, w.bfloat16().double())
    )
    assert set(fine.flatten().tolist()) != set(coarse.flatten().tolist())


def test_quantised_scores_are_near_and_hadamard_helps_with_outliers() -> None:
    q, k, w = normal(1, 4, 32, 128), normal(1, 256, 128, seed=2), normal(1, 4, 32, seed=3)

    def distance(queries: torch.Tensor, keys: torch.Tensor) -> float:
        exact = lightning_indexer.reference(queries, keys, w, 256)
        return float((exact - lightning_indexer.quantised(queries, keys, w, 256)).norm() / exact.norm())

    assert 0.005 < distance(q, k) < 0.06
    # One channel carries most of every product, so that its own rounding is nearly the whole error.
    q[..., 5] *= 20.0
    k[..., 5] *= 20.0
    assert distance(hadamard.reference(q), hadamard.reference(k)) < 0.3 * distance(q, k)


def test_scales_are_powers_of_two_and_just_large_enough() -> None:
    x = torch.tensor([[448.0, -1.0], [448.1, 0.0], [0.0, 0.0], [1e-9, -1e-9], [896.0, 3.0], [0.4375, 0.0]])
    values, scale = lightning_indexer.to_e4m3(x, lightning_indexer.AMAX_FLOOR)
    floor = 2.0 ** math.ceil(math.log2(1e-4 / 448))
    assert scale.tolist() == [1.0, 2.0, floor, floor, 2.0, 2.0**-10]
    assert values.dtype == torch.float8_e4m3fn and torch.isfinite(values.float()).all()
    assert float(values[0, 0]) == 448.0 and float(values[2].float().abs().max()) == 0.0


def test_a_row_that_is_not_finite_has_no_scale() -> None:
    x = torch.tensor([[1.0, INF], [NAN, 2.0], [3.0, 4.0]])
    values, scale = lightning_indexer.to_e4m3(x, lightning_indexer.AMAX_FLOOR)
    assert torch.isnan(scale).tolist() == [True, True, False]
    assert torch.isnan(values.float()).all(dim=-1).tolist() == [True, True, False]


def test_the_floor_decides_what_small_rows_keep() -> None:
    x = torch.full((1, 4), 1e-10)
    for floor, kept in ((1e-4, False), (1e-10, True)):
        values, scale = lightning_indexer.to_e4m3(x, floor)
        back = float(values.float()[0, 0] * scale[0])
        assert (back == pytest.approx(1e-10, rel=0.07)) is kept


# Selection


def test_lengths_close_what_the_scores_leave_open() -> None:
    logits = torch.tensor([[[1.0, 5.0, 3.0, 9.0]]]).repeat(1, 5, 1)
    chosen, count = topk_tokens.reference(logits, 2, ints([[0, 1, 3, 9, -4]]))
    assert chosen.tolist() == [[[-1, -1], [0, -1], [1, 2], [3, 1], [-1, -1]]]
    assert count.tolist() == [[0, 1, 2, 2, 0]]


@pytest.mark.parametrize("keys", [1, 4, 5, 6])
def test_more_places_than_keys_are_no_tokens(keys: int) -> None:
    chosen, count = topk_tokens.reference(torch.arange(float(keys))[None, None], 5)
    valid = min(5, keys)
    assert chosen[0, 0].tolist() == list(range(keys))[::-1][:valid] + [-1] * (5 - valid)
    assert count.tolist() == [[valid]]


def test_many_ties_are_chosen_by_rising_index_in_every_dtype() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        chosen, _ = topk_tokens.reference(torch.zeros(1, 1, 9000, dtype=dtype), 2048)
        assert torch.equal(chosen[0, 0], torch.arange(2048, dtype=torch.int32))


def test_nan_is_not_chosen_though_torch_ranks_it_first() -> None:
    logits = torch.tensor([[[NAN, 1.0, -INF, INF, NAN]]])
    assert 0 in logits.topk(2).indices.flatten().tolist()
    chosen, count = topk_tokens.reference(logits, 4)
    assert chosen.tolist() == [[[3, 1, -1, -1]]] and count.tolist() == [[2]]


def test_masked_positions_do_not_leak_the_future() -> None:
    logits = lightning_indexer.reference(normal(1, 5, 16, 8), normal(1, 5, 8, seed=2), normal(1, 5, 16, seed=3), 0)
    theirs = logits.topk(4, dim=-1).indices
    assert bool((theirs > torch.arange(5)[:, None]).any()), "torch returns future positions in short rows"
    mine, lengths = topk_from_masked.reference(theirs, 0, 5)
    expected, count = topk_tokens.reference(logits, 4)
    assert torch.equal(mine, expected) and torch.equal(lengths, count)


def test_from_masked_keeps_order_and_duplicates() -> None:
    got, lengths = topk_from_masked.reference(torch.tensor([[[4, 2, 9, 2, -1, 0, 3]]]), 3, 20)
    assert got.tolist() == [[[2, 2, 0, 3, -1, -1, -1]]] and lengths.tolist() == [[4]]
    assert topk_from_masked.reference(torch.tensor([[[4, 2, 0]]]), 9, 3)[0].tolist() == [[[2, 0, -1]]]


# Pools


def test_padding_shifts_the_pools() -> None:
    k, gate, table = normal(1, 6, 2), normal(1, 6, 2, seed=2), normal(3, 2, seed=3)
    padding = torch.full((1, 2, 2), NAN, dtype=torch.float64)
    late_k, late_gate = (torch.cat((padding, x), dim=1) for x in (k, gate))
    alone = pool_index_keys.reference(k, gate, table, FIRST, 3)
    padded = pool_index_keys.reference(late_k, late_gate, table, FIRST + 2, 3)
    assert torch.equal(alone, padded) and torch.isfinite(padded).all()
    unshifted = pool_index_keys.reference(late_k.nan_to_num(), late_gate.nan_to_num(), table, FIRST, 3)
    assert not torch.equal(padded, unshifted)


def test_pool_key_is_a_weighted_mean_for_every_dimension() -> None:
    k, gate, table = normal(1, 7, 3), normal(1, 7, 3, seed=2), normal(2, 3, seed=3)
    got = pool_index_keys.reference(k, gate, table, FIRST + 1, 2)
    for n in range(3):
        for d in range(3):
            weights = [math.exp(float(gate[0, 1 + 2 * n + j, d] + table[j, d])) for j in range(2)]
            mean = sum(weight * float(k[0, 1 + 2 * n + j, d]) for j, weight in enumerate(weights)) / sum(weights)
            assert got[0, n, d].item() == pytest.approx(mean, rel=1e-14)


def test_bad_tokens_stay_in_their_pool_and_the_tail_in_none() -> None:
    k, gate, table = normal(1, 8, 2), normal(1, 8, 2, seed=2), normal(3, 2, seed=3)
    k[0, 1, 0], gate[0, 6], k[0, 7] = NAN, NAN, INF
    got = pool_index_keys.reference(k, gate, table, FIRST, 3)
    assert got.shape == (1, 2, 2)
    assert torch.isnan(got[0, 0]).tolist() == [True, False] and torch.isfinite(got[0, 1]).all()


def test_rows_after_the_last_complete_pool_are_zero() -> None:
    k, gate, table = (normal(3, 6, 2), normal(3, 6, 2, seed=2), normal(2, 2, seed=3))
    got = pool_index_keys.reference(k, gate, table, torch.tensor([0, 1, 6]), 2)
    assert (got == 0).all(dim=-1).tolist() == [[False] * 3, [False, False, True], [True] * 3]


def test_a_pool_of_one_token_is_its_key() -> None:
    k = normal(2, 5, 3)
    torch.testing.assert_close(pool_index_keys.reference(k, k, normal(1, 3), torch.tensor([0, 0]), 1), k)


def test_a_pool_counts_when_its_last_token_is_visible_and_the_tail_always() -> None:
    pools = ints([[[1, 0]] * 6])
    got, lengths = expand_pools.reference(pools, FIRST, 3, 0, 6)
    assert got.shape == (1, 6, 8) and lengths.tolist() == [[1, 2, 3, 4, 5, 6]]
    rows = [row[:n] for row, n in zip(got[0].tolist(), lengths[0].tolist(), strict=True)]
    assert rows == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [3, 4, 5, 0, 1, 2]]
    assert bool((got[lengths[..., None] <= torch.arange(8)] == -1).all())


def test_the_tail_comes_without_any_chosen_pool() -> None:
    got, lengths = expand_pools.reference(ints([[[-1, -1]]]), FIRST + 1, 4, 7, 8)
    assert got[0, 0, :4].tolist() == [5, 6, 7, -1] and lengths.tolist() == [[3]]


def test_expansion_begins_at_the_first_valid_token_and_padding_reads_nothing() -> None:
    got, lengths = expand_pools.reference(ints([[[0]] * 5]), FIRST + 2, 2, 0, 5)
    assert lengths.tolist() == [[0, 0, 1, 2, 3]]
    assert [row[:n] for row, n in zip(got[0].tolist(), lengths[0].tolist(), strict=True)] == [
        [],
        [],
        [2],
        [2, 3],
        [2, 3, 4],
    ]


def test_no_token_beyond_the_keys_is_read() -> None:
    got, lengths = expand_pools.reference(ints([[[0, 1, 2]]]), FIRST, 2, 100, 5)
    assert got[0, 0, :5].tolist() == [0, 1, 2, 3, 4] and lengths.tolist() == [[5]]


def test_the_width_is_more_than_topk() -> None:
    got, lengths = expand_pools.reference(torch.arange(128, dtype=torch.int32)[None, None], FIRST, 16, 2062, 2063)
    assert got.shape[-1] == 2048 + 15 and lengths.item() == 2063


# Hadamard and rope


def test_hadamard_is_its_own_inverse_and_keeps_products() -> None:
    x, y = normal(3, 64), normal(3, 64, seed=2)
    torch.testing.assert_close(hadamard.reference(hadamard.reference(x)), x)
    torch.testing.assert_close((hadamard.reference(x) * hadamard.reference(y)).sum(-1), (x * y).sum(-1))


def test_hadamard_order_is_sylvesters() -> None:
    rows = hadamard.reference(torch.eye(4, dtype=torch.float64)) * 2
    assert rows.tolist() == [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]


def test_hadamard_rounds_once_and_spoils_one_row_only() -> None:
    x = normal(2, 128).bfloat16()
    assert torch.equal(hadamard.reference(x), hadamard.reference(x.float()).bfloat16())
    x[0, 3] = NAN
    got = hadamard.reference(x)
    assert torch.isnan(got[0]).all() and torch.isfinite(got[1]).all()


@pytest.mark.parametrize(("pairing", "partner"), [("half", [(0, 2), (1, 3)]), ("interleaved", [(0, 1), (2, 3)])])
def test_each_pair_turns_by_its_own_angle_in_place(pairing: str, partner: list[tuple[int, int]]) -> None:
    x, angle = normal(1, 2, 1, 7), normal(1, 2, 2, seed=2)
    got = rope.reference(x, angle.cos(), angle.sin(), pairing, 2)
    for s in range(2):
        for p, (i, j) in enumerate(partner):
            turned = complex(x[0, s, 0, 2 + i].item(), x[0, s, 0, 2 + j].item())
            turned *= cmath.exp(1j * angle[0, s, p].item())
            assert got[0, s, 0, 2 + i].item() == pytest.approx(turned.real, rel=1e-13)
            assert got[0, s, 0, 2 + j].item() == pytest.approx(turned.imag, rel=1e-13)
    assert torch.equal(got[..., :2], x[..., :2]) and torch.equal(got[..., 6:], x[..., 6:])


def test_pairing_and_start_change_the_result_and_the_selection() -> None:
    x, angle = normal(1, 4, 2, 16), normal(1, 4, 3, seed=2)
    results = [
        rope.reference(x, angle.cos(), angle.sin(), *rest) for rest in (("half", 0), ("interleaved", 0), ("half", 10))
    ]
    assert len({tuple(one.flatten().tolist()) for one in results}) == 3
    q, k, w = normal(1, 1, 16, 32), normal(1, 512, 1, 32, seed=3), normal(1, 1, 16, seed=4)
    angles = torch.arange(512.0, dtype=torch.float64)[None, :, None] * torch.tensor([1.0, 0.3, 0.1, 0.01] * 3)
    chosen = []
    for pairing in rope.PAIRINGS:
        late = (angles[:, -1:].cos(), angles[:, -1:].sin())
        turned_q = rope.reference(q, *late, pairing, 0)
        turned_k = rope.reference(k, angles.cos(), angles.sin(), pairing, 0)[:, :, 0]
        scores = lightning_indexer.reference(turned_q, turned_k, w, 511)
        chosen.append(set(topk_tokens.reference(scores, 64)[0].flatten().tolist()))
    assert chosen[0] != chosen[1]


def test_rope_depends_on_the_distance_alone() -> None:
    q, k, rate = normal(1, 1, 1, 12), normal(1, 1, 1, 12, seed=2), normal(1, 1, 6, seed=3)
    for pairing in rope.PAIRINGS:
        products = []
        for at in (0, 50):
            turned = [
                rope.reference(x, (p * rate).cos(), (p * rate).sin(), pairing, 0) for x, p in ((q, at + 7), (k, at))
            ]
            products.append((turned[0] * turned[1]).sum())
        torch.testing.assert_close(products[0], products[1])


def test_rope_rounds_once_and_takes_angles_of_any_dtype() -> None:
    x, angle = normal(2, 3, 2, 8).bfloat16(), normal(1, 3, 4, seed=2).float()
    got = rope.reference(x, angle.cos(), angle.sin(), "half", 0)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, rope.reference(x.float(), angle.cos(), angle.sin(), "half", 0).bfloat16())


def test_rope_of_nothing_is_a_copy_and_bad_values_stay_in_their_pair() -> None:
    x = normal(1, 2, 1, 4)
    x[0, 0, 0, 0] = NAN
    none = rope.reference(x, torch.ones(1, 2, 0), torch.ones(1, 2, 0), "half", 4)
    torch.testing.assert_close(none, x, rtol=0, atol=0, equal_nan=True)
    assert none.data_ptr() != x.data_ptr()
    angle = normal(1, 2, 2, seed=2)
    got = rope.reference(x, angle.cos(), angle.sin(), "interleaved", 0)
    assert torch.isnan(got[0, 0, 0]).tolist() == [True, True, False, False] and torch.isfinite(got[0, 1]).all()


# Blocks


def test_blocks_at_their_edges() -> None:
    got = block_bitmap.reference(ints([[[-1, 4], [5, 14]], [[-5, 15], [2**31 - 1, -1]]]), 5, 3)
    assert got.tolist() == [[True, True, True], [False, False, False]]


def test_block_size_and_number_change_the_bits() -> None:
    rows = ints([[[0, 9]]])
    assert block_bitmap.reference(rows, 5, 2).tolist() == [[True, True]]
    assert block_bitmap.reference(rows, 10, 2).tolist() == [[True, False]]
    assert block_bitmap.reference(rows, 5, 1).tolist() == [[True]]


def test_a_skipped_block_holds_no_chosen_row() -> None:
    chosen, _ = topk_tokens.reference(normal(2, 2, 40), 6)
    bits = block_bitmap.reference(chosen, 4, 10)
    for b in range(2):
        assert {n for n in range(10) if bits[b, n]} == {row // 4 for row in chosen[b].flatten().tolist()}
        assert not bits[b].all()
