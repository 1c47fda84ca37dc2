"""Sparse latent attention and its paged cache: the traps of the contracts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from day0.errors import Day0Error
from day0.kernels.torch.sparse_mla_prefill import by_gather
from day0.reference_ops import _cache_layouts as layouts
from day0.reference_ops import paged_kv_gather, paged_kv_write, sparse_mla_decode, sparse_mla_prefill
from day0.reference_ops._checks import Arguments
from day0.reference_ops._spec import Operator
from day0.reference_ops.agreement import paged_kv_gather as gather_agreement
from day0.reference_ops.agreement import paged_kv_write as write_agreement
from day0.reference_ops.agreement import sparse_mla_decode as decode_agreement
from day0.reference_ops.agreement import sparse_mla_prefill as prefill_agreement
from day0.reference_ops.agreement._comparison import Comparison
from day0.reference_ops.signatures import tensors_in
from day0.reference_ops.torch_ops import register_operators

NAN, INF = float("nan"), float("inf")
F64, BF16, I32 = torch.float64, torch.bfloat16, torch.int32
OPERATORS = (sparse_mla_prefill.OP, sparse_mla_decode.OP, paged_kv_write.OP, paged_kv_gather.OP)
COMPARISONS = tuple(
    one
    for module in (prefill_agreement, decode_agreement, write_agreement, gather_agreement)
    for one in module.COMPARISONS
)
LAYOUTS = ("plain", "fp8_656", "fp8_584:4")


def normal(*shape: int, seed: int = 3, dtype: torch.dtype = F64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def ints(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=I32)


def layout_of(name: str, latent: int, width: int) -> layouts.Layout:
    return layouts.read_layout(Arguments("test"), name, latent, width)


def empty_pages(name: str, pages: int, page: int, latent: int, width: int, dtype: torch.dtype = F64) -> torch.Tensor:
    shape = layouts.page_shape(layout_of(name, latent, width), page)
    return torch.zeros(pages, *shape, dtype=dtype if name == "plain" else torch.uint8)


def stored(name: str, rows_NC: torch.Tensor, latent: int) -> torch.Tensor:
    """Return rows after they have been in a cache of that layout."""
    layout = layout_of(name, latent, rows_NC.shape[1])
    return layouts.unpack(layouts.pack(rows_NC, layout, rows_NC.dtype), layout, rows_NC.dtype)


@pytest.mark.parametrize("one", COMPARISONS, ids=lambda one: f"{one.operator}-{one.variant}-{one.distribution}")
def test_agrees_with_independent_code(one: Comparison) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("ml_dtypes")
    assert one.run() <= one.limit


Q, KV = normal(1, 2, 3, 6), normal(1, 5, 6, seed=4)
CHOICE = ints([[[0, 3, 4], [2, 1, -1]]])
ARGS: tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, float] = (Q, KV, CHOICE, 4, 0.5)


def test_each_attribute_of_prefill_changes_the_result() -> None:
    plain = sparse_mla_prefill.reference(*ARGS)
    assert not torch.equal(sparse_mla_prefill.reference(Q, KV, CHOICE, 4, 0.25)[0], plain[0])
    assert sparse_mla_prefill.reference(Q, KV, CHOICE, 3, 0.5)[0].shape[-1] == 3
    shorter = sparse_mla_prefill.reference(*ARGS, ints([[2, 2]]))
    assert not torch.equal(shorter[2][0, 0], plain[2][0, 0]) and torch.equal(shorter[2][0, 1], plain[2][0, 1])
    sunk = sparse_mla_prefill.reference(*ARGS, None, torch.zeros(3))
    assert (sunk[0].abs() < plain[0].abs()).all() and torch.equal(sunk[2], plain[2])


def test_entries_behind_the_length_are_none() -> None:
    got = sparse_mla_prefill.reference(*ARGS, ints([[1, 2]]))
    expected = sparse_mla_prefill.reference(Q, KV, ints([[[0, -1, -1], [2, 1, -1]]]), 4, 0.5)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("run", [sparse_mla_prefill.reference, by_gather])
def test_a_sink_takes_its_share_and_leaves_the_log_sum_exp(run: Any) -> None:
    args = (Q.float(), KV.float(), CHOICE, 4, 0.5)
    out, largest, lse = run(*args)
    sunk = run(*args, None, torch.tensor([INF, -INF, 0.7]))
    assert bool((sunk[0][:, :, 0] == 0).all()) and torch.equal(sunk[0][:, :, 1], out[:, :, 1])
    share = lse[:, :, 2].exp() / (lse[:, :, 2].exp() + math.exp(0.7))
    torch.testing.assert_close(sunk[0][:, :, 2], out[:, :, 2] * share[..., None])
    assert torch.equal(sunk[1], largest) and torch.equal(sunk[2], lse)


@pytest.mark.parametrize("run", [sparse_mla_prefill.reference, by_gather])
@pytest.mark.parametrize("rows", [0, 5])
@pytest.mark.parametrize("chosen", [0, 3])
@pytest.mark.parametrize("sink", [None, 0.5, INF, -INF])
def test_nothing_chosen_gives_zero_and_infinities(run: Any, rows: int, chosen: int, sink: float | None) -> None:
    indices = torch.full((1, 2, chosen), -1, dtype=I32)
    sinks = None if sink is None else torch.full((3,), sink)
    out, largest, lse = run(Q.float(), KV[:, :rows].float(), indices, 4, 0.5, None, sinks)
    assert out.shape == (1, 2, 3, 4) and bool((out == 0).all())
    assert bool((largest == -INF).all()) and bool((lse == INF).all())


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("queries", [0, 1])
def test_no_requests_or_no_queries(batch: int, queries: int) -> None:
    q, kv, indices = torch.zeros(batch, queries, 3, 6), torch.zeros(batch, 5, 6), ints([]).reshape(0)
    indices = torch.zeros(batch, queries, 2, dtype=I32)
    out, largest, lse = sparse_mla_prefill.reference(q, kv, indices, 4, 1.0)
    assert out.shape == (batch, queries, 3, 4) and largest.shape == lse.shape == (batch, queries, 3)
    out, lse = sparse_mla_decode.reference(q, torch.zeros(2, 3, 6), indices, 4, 1.0)
    assert out.shape == (batch, queries, 3, 4) and lse.shape == (batch, 3, queries)


def test_a_row_named_twice_counts_once() -> None:
    twice, once = ints([[[1, 1, 2], [0, 0, 0]]]), ints([[[1, 2, -1], [0, -1, -1]]])
    got, expected = (sparse_mla_prefill.reference(Q, KV, one, 4, 0.5) for one in (twice, once))
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    pages = KV.reshape(5, 1, 6)
    got2, expected2 = (sparse_mla_decode.reference(Q, pages, one, 4, 0.5) for one in (twice, once))
    torch.testing.assert_close(got2, expected2, rtol=0, atol=0)


def test_the_logarithm_is_natural_so_that_two_halves_merge_to_the_whole() -> None:
    whole, _, lse = sparse_mla_prefill.reference(*ARGS)
    (left, _, a), (right, _, b) = (
        sparse_mla_prefill.reference(Q, KV, ints(one), 4, 0.5) for one in ([[[0], [2]]], [[[3, 4], [1, -1]]])
    )
    share = torch.sigmoid(a - b)[..., None]
    torch.testing.assert_close(share * left + (1 - share) * right, whole)
    torch.testing.assert_close(torch.logaddexp(a, b), lse)
    zero = sparse_mla_prefill.reference(torch.zeros_like(Q), KV, CHOICE, 4, 0.5)[2]
    torch.testing.assert_close(zero[0, :, 0], torch.tensor([3.0, 2.0], dtype=F64).log())


@pytest.mark.parametrize("run", [sparse_mla_prefill.reference, by_gather])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("place", [0, 5])
def test_what_is_not_finite_stays_with_the_queries_that_chose_it(run: Any, value: float, place: int) -> None:
    q, kv = Q.float().abs(), KV.float()
    clean = run(q, kv, CHOICE, 4, 0.5)
    kv[0, 4, place] = value
    for mine, other in zip(run(q, kv, CHOICE, 4, 0.5), clean, strict=True):
        assert torch.equal(mine[0, 1], other[0, 1])
        assert not torch.equal(mine[0, 0], other[0, 0])
    # Also where the score is -inf, so that the row weighs nothing.
    assert place > 0 or bool(torch.isnan(run(q, kv, CHOICE, 4, 0.5)[0][0, 0, :, 0]).all())


def test_heads_that_only_fill_up_touch_no_other_head() -> None:
    q = Q.clone()
    q[:, :, 2] = NAN
    for got, clean in zip(sparse_mla_prefill.reference(q, *ARGS[1:]), sparse_mla_prefill.reference(*ARGS), strict=True):
        assert torch.equal(got[:, :, :2], clean[:, :, :2]) and bool(torch.isnan(got[:, :, 2]).all())


@pytest.mark.parametrize("run", [sparse_mla_prefill.reference, by_gather])
def test_scores_of_minus_infinity_are_nothing(run: Any) -> None:
    """The part of a row that is no value is infinite: every score is -inf, the values are finite."""
    kv = KV.float()
    kv[..., 5] = -INF
    out, largest, lse = run(Q.float().abs(), kv, CHOICE, 4, 0.5)
    assert bool((out == 0).all()) and bool((largest == -INF).all()) and bool((lse == INF).all())


@pytest.mark.parametrize("dtype", [F64, torch.float32, BF16, torch.float16])
def test_dtypes_of_the_results(dtype: torch.dtype) -> None:
    wide = F64 if dtype == F64 else torch.float32
    sink = torch.zeros(3)
    q, kv = Q.to(dtype), KV.to(dtype)
    out = sparse_mla_prefill.reference(q, kv, CHOICE, 4, 0.5, None, sink)
    assert [one.dtype for one in out] == [dtype, wide, wide]
    decoded = sparse_mla_decode.reference(q, kv.reshape(5, 1, 6), CHOICE, 4, 0.5, "plain", None, sink)
    assert [one.dtype for one in decoded] == [dtype, wide]
    torch.testing.assert_close(decoded[0], out[0])


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda one: one.name)
def test_results_are_new_memory_and_arguments_stay(operator: Operator) -> None:
    for sample in operator.samples(torch.Generator().manual_seed(1)):
        given = list(tensors_in(sample.args))
        before = [one.clone() for one in given]
        results = list(tensors_in(operator.reference(*sample.args)))
        written = 1 if operator is paged_kv_write.OP else 0
        for old, one in zip(before[written:], given[written:], strict=True):
            torch.testing.assert_close(one, old, rtol=0, atol=0, equal_nan=True)
        places = {one.untyped_storage()._cdata for one in given}
        assert not places & {one.untyped_storage()._cdata for one in results}


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda one: one.name)
def test_a_fill_is_valid_and_shapes_are_those_of_the_reference(operator: Operator) -> None:
    for sample in operator.samples(torch.Generator().manual_seed(1)):
        assert operator.fill is not None and operator.fake is not None
        operator.fill(sample.args, sample.kwargs, torch.Generator().manual_seed(2))
        got, expected = (list(tensors_in(run(*sample.args))) for run in (operator.fake, operator.reference))
        assert [(one.shape, one.dtype) for one in got] == [(one.shape, one.dtype) for one in expected]


def test_rows_that_come_from_fp8_storage_lose_nothing_more() -> None:
    kv = stored("fp8_656", KV[0], 4)[None]
    args = (Q, kv, CHOICE, 4, 0.5)
    torch.testing.assert_close(sparse_mla_prefill.quantised(*args), sparse_mla_prefill.reference(*args))
    for got, exact in zip(sparse_mla_prefill.quantised(*ARGS), sparse_mla_prefill.reference(*ARGS), strict=True):
        assert got.shape == exact.shape and got.dtype == exact.dtype
        assert not torch.equal(got, exact)
        torch.testing.assert_close(got, exact, rtol=0.1, atol=0.1)


# --- decode ---


def decode_inputs(layout: str, dtype: torch.dtype = F64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, pages of 4 rows with rows everywhere, and 7 of the 20 rows for each of 2 x 3 queries."""
    q, rows = normal(2, 3, 2, 12, dtype=dtype), normal(20, 12, seed=8, dtype=dtype)
    pages = empty_pages(layout, 5, 4, 8, 12, dtype)
    paged_kv_write.reference(pages, rows, torch.arange(20), 8, layout)
    order = torch.rand(2, 3, 20, generator=torch.Generator().manual_seed(9)).argsort(-1)
    return q, pages, order[..., :7].to(I32)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_decode_orders_heads_before_queries(layout: str) -> None:
    q, pages, indices = decode_inputs(layout)
    out, lse = sparse_mla_decode.reference(q, pages, indices, 8, 0.5, layout)
    kv = paged_kv_gather.reference(pages, ints([[0, 1, 2, 3, 4]] * 2), ints([20, 20]), 8, 12, 20, F64, layout)
    expected = sparse_mla_prefill.reference(q, kv, indices, 8, 0.5)
    assert lse.shape == (2, 2, 3) and lse.is_contiguous()
    torch.testing.assert_close(lse, expected[2].transpose(1, 2))
    torch.testing.assert_close(out, expected[0])


def test_each_attribute_of_decode_changes_the_result() -> None:
    q, pages, indices = decode_inputs("plain")
    plain = sparse_mla_decode.reference(q, pages, indices, 8, 0.5)
    others = {
        "scale": sparse_mla_decode.reference(q, pages, indices, 8, 0.4),
        "topk_length": sparse_mla_decode.reference(q, pages, indices, 8, 0.5, "plain", ints([3, 6])),
        "sink": sparse_mla_decode.reference(q, pages, indices, 8, 0.5, "plain", None, torch.ones(2)),
        "bitmap": sparse_mla_decode.reference(
            q, pages, indices, 8, 0.5, "plain", None, None, torch.arange(5) < ints([[2], [4]])
        ),
    }
    for name, other in others.items():
        assert not torch.allclose(other[0], plain[0]), name
        assert torch.equal(other[1], plain[1]) == (name == "sink"), name
    q, pages, indices = decode_inputs("fp8_656")
    assert not torch.equal(sparse_mla_decode.reference(q, pages, indices, 8, 0.5, "fp8_656")[0], plain[0])


def test_a_page_that_is_not_marked_is_not_read() -> None:
    q, pages, indices = decode_inputs("plain")
    bitmap = torch.tensor([[True, False, True, True, True], [True, True, True, True, False]])
    shut = ~bitmap.gather(1, (indices // 4).flatten(1).long()).reshape(indices.shape)
    expected = sparse_mla_decode.reference(q, pages, torch.where(shut, -1, indices), 8, 0.5)
    got = sparse_mla_decode.reference(q, pages, indices, 8, 0.5, "plain", None, None, bitmap)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    nothing = sparse_mla_decode.reference(
        q, pages, indices, 8, 0.5, "plain", None, torch.zeros(2), torch.zeros(2, 5, dtype=torch.bool)
    )
    assert bool((nothing[0] == 0).all()) and bool((nothing[1] == INF).all())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_decode_lets_no_unchosen_row_through(layout: str) -> None:
    q, pages, indices = decode_inputs(layout)
    indices = torch.where(indices == 6, -1, indices)  # the third row of the second page
    clean = sparse_mla_decode.reference(q, pages, indices, 8, 0.5, layout)
    paged_kv_write.reference(pages, torch.full((1, 12), NAN, dtype=F64), ints([6]), 8, layout)
    torch.testing.assert_close(sparse_mla_decode.reference(q, pages, indices, 8, 0.5, layout), clean, rtol=0, atol=0)
    indices[0, 1, 0] = 6
    out, lse = sparse_mla_decode.reference(q, pages, indices, 8, 0.5, layout)
    assert torch.isnan(out).flatten(2).all(-1).tolist() == [[False, True, False], [False] * 3]
    assert torch.equal(torch.isnan(lse), torch.isnan(out).all(-1).transpose(1, 2))


@pytest.mark.parametrize("value", [INF, -INF])
@pytest.mark.parametrize("place", [0, 11])
def test_decode_and_prefill_agree_on_rows_that_are_not_finite(value: float, place: int) -> None:
    q, pages, indices = decode_inputs("plain")
    pages[1, 2, place] = value
    out, lse = sparse_mla_decode.reference(q.abs(), pages, indices, 8, 0.5)
    kv = pages.reshape(1, 20, 12).expand(2, -1, -1)
    expected = sparse_mla_prefill.reference(q.abs(), kv, indices, 8, 0.5)
    torch.testing.assert_close(out, expected[0], equal_nan=True)
    torch.testing.assert_close(lse, expected[2].transpose(1, 2), equal_nan=True)


def test_places_beyond_the_cache_are_none() -> None:
    q, pages, indices = decode_inputs("plain")
    beyond = torch.cat((indices, ints([20, -7, 2**31 - 1]).expand(2, 3, -1)), dim=-1)
    got, expected = (sparse_mla_decode.reference(q, pages, one, 8, 0.5) for one in (beyond, indices))
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("layout", ["fp8_656", "fp8_584:4"])
def test_decode_reads_what_the_cache_holds(layout: str) -> None:
    q, pages, indices = decode_inputs(layout)
    kv = stored(layout, normal(20, 12, seed=8), 8)[None].expand(2, -1, -1)
    expected = sparse_mla_prefill.reference(q, kv, indices, 8, 0.5)[0]
    torch.testing.assert_close(sparse_mla_decode.reference(q, pages, indices, 8, 0.5, layout)[0], expected)


# --- the cache ---


@pytest.mark.parametrize(("name", "group"), [("fp8_656", 128), ("fp8_584", 64)])
@pytest.mark.parametrize("latent", [1, 64, 130, 512])
def test_what_has_been_stored_once_is_stored_again_without_loss(name: str, group: int, latent: int) -> None:
    sizes = 10.0 ** torch.randint(-7, 8, (400, 1), generator=torch.Generator().manual_seed(2))
    rows = normal(400, latent + 6, dtype=torch.float32) * sizes
    layout = layout_of(name, latent, latent + 6)
    once = layouts.pack(rows, layout, torch.uint8)
    values = layouts.unpack(once, layout, torch.float32)
    twice = layouts.pack(values, layout, torch.uint8)
    assert torch.equal(layouts.unpack(twice, layout, torch.float32), values)
    # A group whose largest code is rounded down to 224, half of 448, fits a scale half as large: same values, other
    # bytes. Every other row keeps its bytes.
    codes = once[0][:, :latent].clone().view(torch.float8_e4m3fn).float().abs()
    filled = torch.nn.functional.pad(codes, (0, -latent % group))
    kept = ~(filled.unflatten(1, (-1, group)).amax(-1) == 224).any(dim=1)
    assert int(kept.sum()) > 100
    for mine, theirs in zip(once, twice, strict=True):
        assert torch.equal(mine[kept], theirs[kept])


def test_the_rope_part_is_never_quantised() -> None:
    rows = normal(9, 20, dtype=BF16)
    for name in LAYOUTS:
        assert torch.equal(stored(name, rows, 8)[:, 8:], rows[:, 8:])
    assert not torch.equal(stored("fp8_656", rows, 8)[:, :8], rows[:, :8])


@pytest.mark.parametrize("largest", [448.0, 448.001, 224.0, 1.0, 1e-3, 0.0, 3e38])
def test_scales_are_the_smallest_power_of_two_that_fits(largest: float) -> None:
    rows = torch.zeros(1, 4)
    rows[0, 1] = -largest
    piece = layouts.pack(rows, layout_of("fp8_656", 4, 4), torch.uint8)[0]
    scale = float(piece[0, 4:8].clone().view(torch.float32))
    fraction, exponent = math.frexp(scale)
    assert fraction == 0.5
    wanted = max(largest, 448e-4)
    assert scale * 448 >= wanted * (1 - 1e-7) and scale / 2 * 448 < wanted
    code = layouts.pack(rows, layout_of("fp8_584", 4, 4), torch.uint8)[1]
    assert code.tolist() == [[exponent - 1 + 127] + [0] * 7]


def test_what_is_not_finite_is_nan_and_spoils_no_neighbour() -> None:
    rows = normal(1, 8, dtype=torch.float32)
    clean = stored("fp8_656", rows, 8)
    rows[0, 2], rows[0, 5] = INF, NAN
    got = stored("fp8_656", rows, 8)
    assert torch.isnan(got)[0].tolist() == [place in (2, 5) for place in range(8)]
    places = ~torch.isnan(got)
    torch.testing.assert_close(got[places], clean[places], rtol=0.07, atol=1e-3)


def test_every_scale_byte_is_read_as_e8m0() -> None:
    every = torch.arange(256, dtype=torch.uint8)[:, None]
    expected = every.view(torch.float8_e8m0fnu).to(torch.float32)
    codes = torch.full((256, 1), 0x38, dtype=torch.uint8)  # 1.0
    got = layouts.unpack((codes, every), layout_of("fp8_584", 1, 1), torch.float32)
    assert torch.isnan(got[255]) and torch.equal(got[:255], expected[:255])


def test_the_sizes_of_the_real_models() -> None:
    assert layouts.page_shape(layout_of("fp8_656", 512, 576), 64) == (64, 656)
    v4 = layout_of("fp8_584", 448, 512)
    assert v4.data_bytes + v4.scale_bytes == 584
    assert layouts.page_shape(v4, 64) == (37440,) and 37440 % 576 == 0 and 37440 - 64 * 584 < 576
    assert layouts.page_shape(layout_of("plain", 512, 576), 64) == (64, 576)


def test_scales_stand_behind_the_data_of_all_rows() -> None:
    pages = empty_pages("fp8_584:3", 1, 3, 2, 3)
    paged_kv_write.reference(pages, torch.ones(1, 3), ints([1]), 2, "fp8_584:3")
    # Data: 2 codes and 2 bytes in each row; then 8 bytes of scales for each row.
    assert pages[0].nonzero().flatten().tolist() == [4, 5, 6, 7, 12 + 8]
    assert pages[0, 20] == 127 - 8  # 1 / 448 lies between 2^-9 and 2^-8


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("slot_dtype", [I32, torch.int64])
def test_rows_go_to_their_slots_and_others_stay(layout: str, slot_dtype: torch.dtype) -> None:
    first, second = normal(20, 12), normal(4, 12, seed=5)
    pages = empty_pages(layout, 5, 4, 8, 12)
    paged_kv_write.reference(pages, first, torch.arange(20, dtype=slot_dtype), 8, layout)
    # The first row and one in the middle are skipped, one would go beyond the cache.
    slots = torch.tensor([-1, 7, 20, 0], dtype=slot_dtype)
    paged_kv_write.reference(pages, second, slots, 8, layout)
    expected = stored(layout, first, 8)
    expected[7], expected[0] = stored(layout, second, 8)[[1, 3]]
    got = paged_kv_gather.reference(pages, ints([[0, 1, 2, 3, 4]]), ints([20]), 8, 12, 20, F64, layout)
    assert torch.equal(got[0], expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_to_write_writes_nothing(layout: str) -> None:
    pages = empty_pages(layout, 2, 4, 8, 12, torch.float32)
    layouts.fill_pages(pages, layout_of(layout, 8, 12), 4, torch.Generator().manual_seed(1))
    if layout == "plain":
        pages.fill_(NAN)
    before = pages.clone()
    for slots in ([-1, -1, -1], [8, 9, 99], []):
        paged_kv_write.reference(pages, torch.ones(len(slots), 12), ints(slots), 8, layout)
        torch.testing.assert_close(pages, before, rtol=0, atol=0, equal_nan=True)
    none = pages[:0]
    paged_kv_write.reference(none, torch.ones(1, 12), ints([0]), 8, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_writing_goes_through_strided_views_and_no_further(layout: str) -> None:
    dense = empty_pages(layout, 3, 4, 8, 12)
    # Pages of two layers in turn, and room behind each row or page.
    block = torch.zeros(6, *dense.shape[1:-1], dense.shape[-1] + 16, dtype=dense.dtype)
    view = block[1::2, ..., : dense.shape[-1]]
    for pages in (dense, view):
        paged_kv_write.reference(pages, normal(3, 12), ints([9, -1, 2]), 8, layout)
    assert torch.equal(view, dense) and bool(dense.any())
    view.zero_()
    assert not bool(block.any())


class Tracing(TorchDispatchMode):
    """Refuses what asks for a value."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        asking = {"aten::nonzero", "aten::_local_scalar_dense", "aten::item", "aten::masked_select", "aten::is_nonzero"}
        assert func.name().partition(".")[0] not in asking
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_course_of_writing_and_reading_depends_on_no_value(layout: str) -> None:
    pages = empty_pages(layout, 3, 4, 8, 12)
    with Tracing():  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
        paged_kv_write.reference(pages, normal(3, 12), ints([9, -1, 2]), 8, layout)
        paged_kv_gather.reference(pages, ints([[0, -1]]), ints([5]), 8, 12, 8, F64, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reading_follows_the_table_and_leaves_zeros(layout: str) -> None:
    rows = normal(20, 12)
    pages = empty_pages(layout, 5, 4, 8, 12)
    paged_kv_write.reference(pages, rows, torch.arange(20), 8, layout)
    paged_kv_write.reference(pages, torch.full((2, 12), NAN, dtype=F64), ints([13, 2]), 8, layout)
    table, lengths = ints([[2, 0], [-1, 3], [5, 1]]), ints([6, 5, 99])
    got = paged_kv_gather.reference(pages, table, lengths, 8, 12, 10, F64, layout)
    expected = torch.zeros(3, 10, 12, dtype=F64)
    kept = stored(layout, rows, 8)
    expected[0, :6] = kept[[8, 9, 10, 11, 0, 1]]
    expected[1, 4] = kept[12]  # row 13 lies behind the length
    expected[2, 4:8] = kept[4:8]  # rows 8 and 9 lie behind the table
    assert torch.equal(got, expected)
    for dtype in (torch.float32, BF16, torch.float16):
        narrow = paged_kv_gather.reference(pages, table, lengths, 8, 12, 10, dtype, layout)
        assert narrow.dtype == dtype
        torch.testing.assert_close(narrow.double(), got, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_pages_of_64_rows_need_no_number() -> None:
    pages = empty_pages("fp8_584", 1, 64, 8, 12)
    paged_kv_write.reference(pages, normal(1, 12), ints([63]), 8, "fp8_584")
    named = paged_kv_gather.reference(pages, ints([[0]]), ints([64]), 8, 12, 64, F64, "fp8_584:64")
    assert bool(named[0, 63].any()) and not bool(named[0, :63].any())


# --- what is refused ---

PAGES = torch.zeros(3, 4, 12)
PACKED = torch.zeros(3, 4, 8 + 4 + 8, dtype=torch.uint8)
BEHIND = torch.zeros(3, 576, dtype=torch.uint8)
QD, ID = torch.zeros(2, 3, 2, 12), torch.zeros(2, 3, 7, dtype=I32)
ROWS, SLOTS = torch.zeros(5, 12), torch.zeros(5, dtype=I32)
P, D, W, G = (one.name.partition("::")[2] for one in OPERATORS)

BAD: dict[str, tuple[str, tuple[Any, ...], str, str]] = {
    "kv of another dtype": (P, (Q, KV.float(), CHOICE, 4, 0.5), "kv", "expected torch.float64, got torch.float32"),
    "another width": (P, (Q, KV[..., :5], CHOICE, 4, 0.5), "kv", "size 6 in dimension C, got shape [1, 5, 5]"),
    "long indices": (P, (Q, KV, CHOICE.long(), 4, 0.5), "indices", "expected torch.int32, got torch.int64"),
    "no latent": (P, (Q, KV, CHOICE, 0, 0.5), "latent", "expected 1 to the row width 6, got 0"),
    "too much latent": (P, (Q, KV, CHOICE, 7, 0.5), "latent", "expected 1 to the row width 6, got 7"),
    "no scale": (P, (Q, KV, CHOICE, 4, 0.0), "scale", "expected a positive number, got 0.0"),
    "a scale that is none": (P, (Q, KV, CHOICE, 4, NAN), "scale", "expected a positive number, got nan"),
    "one length for all": (P, (*ARGS, ints([2])), "topk_length", "expected 2 dimensions [B, S], got 1"),
    "long lengths": (P, (*ARGS, torch.zeros(1, 2, dtype=torch.int64)), "topk_length", "expected torch.int32"),
    "sinks of other heads": (P, (*ARGS, None, torch.zeros(2)), "attn_sink", "size 3 in dimension H, got shape [2]"),
    "narrow sinks": (P, (*ARGS, None, torch.zeros(3).bfloat16()), "attn_sink", "torch.float32 or torch.float64"),
    "wide sinks": (
        P,
        (Q.float(), KV.float(), CHOICE, 4, 0.5, None, torch.zeros(3).double()),
        "attn_sink",
        "expected torch.float32, got torch.float64",
    ),
    "a layout nobody knows": (D, (QD, PAGES, ID, 8, 0.5, "fp8"), "layout", "fp8_584:ROWS_OF_A_PAGE, got 'fp8'"),
    "a number where none is": (D, (QD, PACKED, ID, 8, 0.5, "fp8_656:4"), "layout", "got 'fp8_656:4'"),
    "no rows in a page": (D, (QD, BEHIND, ID, 8, 0.5, "fp8_584:0"), "layout", "got 'fp8_584:0'"),
    "bytes as values": (D, (QD, PACKED, ID, 8, 0.5), "pages", "expected a floating dtype, got torch.uint8"),
    "values as bytes": (D, (QD, PAGES, ID, 8, 0.5, "fp8_656"), "pages", "expected torch.uint8, got torch.float32"),
    "rows of other bytes": (D, (QD, PACKED, ID, 7, 0.5, "fp8_656"), "pages", "shape ['P', 4, 21], got [3, 4, 20]"),
    "pages of other bytes": (D, (QD, BEHIND, ID, 8, 0.5, "fp8_584"), "pages", "shape ['P', 1728], got [3, 576]"),
    "flat pages": (D, (QD, PACKED[0], ID, 8, 0.5, "fp8_656"), "pages", "3 dimensions for fp8_656, got 2"),
    "pages of no rows": (D, (QD, PAGES[:, :0], ID, 8, 0.5), "pages", "at least one row in a page"),
    "a length for each query": (
        D,
        (QD, PAGES, ID, 8, 0.5, "plain", torch.zeros(2, 3, dtype=I32)),
        "topk_length",
        "expected 1 dimensions [B], got 2",
    ),
    "a bitmap of numbers": (
        D,
        (QD, PAGES, ID, 8, 0.5, "plain", None, None, torch.zeros(2, 3)),
        "bitmap",
        "expected torch.bool, got torch.float32",
    ),
    "a bitmap of other pages": (
        D,
        (QD, PAGES, ID, 8, 0.5, "plain", None, None, torch.zeros(2, 4, dtype=torch.bool)),
        "bitmap",
        "size 3 in dimension P, got shape [2, 4]",
    ),
    "a negative scale": (D, (QD, PAGES, ID, 8, -1.0), "scale", "expected a positive number, got -1.0"),
    "rows without slots": (W, (PAGES, ROWS, SLOTS[:4], 8), "slots", "size 5 in dimension N, got shape [4]"),
    "slots that are floats": (W, (PAGES, ROWS, SLOTS.float(), 8), "slots", "torch.int32 or torch.int64"),
    "rows of another width": (W, (PAGES, ROWS[:, :11], SLOTS, 8), "pages", "shape ['P', 4, 11], got [3, 4, 12]"),
    "rows of numbers": (W, (PAGES, ROWS.int(), SLOTS, 8), "rows", "expected a floating dtype, got torch.int32"),
    "a table without requests": (
        G,
        (PAGES, ints([0]), ints([1]), 8, 12, 4, F64),
        "block_table",
        "expected 2 dimensions [B, M], got 1",
    ),
    "long lengths in the cache": (
        G,
        (PAGES, ints([[0]]), torch.ones(1, dtype=torch.int64), 8, 12, 4, F64),
        "lengths",
        "expected torch.int32, got torch.int64",
    ),
    "fewer rows than none": (G, (PAGES, ints([[0]]), ints([1]), 8, 12, -1, F64), "rows", "expected 0 or more, got -1"),
    "a dtype of numbers": (
        G,
        (PAGES, ints([[0]]), ints([1]), 8, 12, 4, I32),
        "dtype",
        "a floating dtype, got torch.int32",
    ),
    "another width in the cache": (
        G,
        (PAGES, ints([[0]]), ints([1]), 8, 13, 4, F64),
        "pages",
        "shape ['P', 4, 13], got [3, 4, 12]",
    ),
}


class NoArithmetic(TorchDispatchMode):
    """Refuses every operator but ours."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        assert func.name().startswith("day0::"), func.name()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_bad_input_is_named_before_anything_is_computed(name: str, device: str) -> None:
    operator, args, argument, words = BAD[name]
    register_operators()
    moved = [one.to(device) if isinstance(one, torch.Tensor) else one for one in args]
    with (
        pytest.raises(Day0Error) as caught,
        NoArithmetic(),  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
    ):
        getattr(torch.ops.day0, operator)(*moved)
    assert caught.value.where == f"day0::{operator}: {argument}"
    assert words in caught.value.what
