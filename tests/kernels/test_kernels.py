"""Every implementation against the float64 reference of its operator, and against what a young device lacks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from day0.errors import Day0Error
from day0.implementation import Implementation
from day0.kernels.load import load_implementations
from day0.kernels.torch.grouped_mm import grouped_mm
from day0.kernels.torch.histc import histc
from day0.kernels.torch.lightning_indexer import by_flat_heads
from day0.kernels.torch.mxfp4_decode import by_table
from day0.kernels.torch.native_layer_norm import native_layer_norm
from day0.kernels.torch.rsqrt import rsqrt
from day0.kernels.torch.sparse_mla_prefill import by_gather
from day0.kernels.torch.topk import topk
from day0.kernels.torch.topk_tokens import by_rank
from day0.reference_ops import mxfp4_decode, sparse_mla_prefill
from day0.reference_ops._spec import Operator, Sample
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import dtype_name, tensors_in

NAN, INF = float("nan"), float("inf")
IMPLEMENTATIONS = tuple(one for one in load_implementations() if {"*", "cpu"} & set(one.devices))
WITH_CONTRACT = tuple(one for one in IMPLEMENTATIONS if one.operator in load_operators())


def identity(one: Implementation) -> str:
    return str(one.identity)


def strides(tensor: torch.Tensor) -> list[int]:
    """Return the strides that mean something."""
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def contract_of(one: Implementation) -> Operator:
    return load_operators()[one.operator]


def samples(one: Implementation) -> list[Sample]:
    """Return the contract's samples that the implementation takes."""
    limits = one.constraints
    found = []
    for sample in contract_of(one).samples(torch.Generator().manual_seed(2)):
        dtypes = [dtype_name(tensor.dtype) for tensor in tensors_in((sample.args, sample.kwargs))]
        if (not limits.dtypes or set(dtypes) <= limits.dtypes) and (
            not limits.first_dtype or dtypes[0] in limits.first_dtype
        ):
            found.append(sample)
    return found


def cast(value: Any, dtype: torch.dtype, only: torch.dtype | None = None) -> Any:
    """Cast the floating tensors within; with `only`, those of that dtype."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() and only in (None, value.dtype) else value
    if isinstance(value, torch.dtype):
        return dtype
    if isinstance(value, (list, tuple)):
        return type(value)(cast(item, dtype, only) for item in value)
    return {key: cast(item, dtype, only) for key, item in value.items()} if isinstance(value, dict) else value


def model_dtype(sample: Sample) -> torch.dtype | None:
    """Return the dtype of the first floating tensor: parameters beside it may be float32 in every model."""
    tensors = tensors_in((sample.args, sample.kwargs))
    return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), None)


def error(got: torch.Tensor, golden: torch.Tensor) -> float:
    size = float(torch.linalg.vector_norm(golden))
    return float(torch.linalg.vector_norm(got.double() - golden)) / (size or 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("one", WITH_CONTRACT, ids=identity)
def test_agrees_with_the_float64_reference(one: Implementation, dtype: torch.dtype) -> None:
    contract = contract_of(one)
    assert one.contract == contract.version
    assert samples(one)
    for sample in samples(one):
        args, kwargs = (cast(part, dtype, model_dtype(sample)) for part in (sample.args, sample.kwargs))
        same = list(tensors_in(contract.reference(*args, **kwargs)))
        golden = list(tensors_in(contract.reference(*cast(args, torch.float64), **cast(kwargs, torch.float64))))
        got = list(tensors_in(one.run(*args, **kwargs)))
        for mine, theirs, gold in zip(got, same, golden, strict=True):
            assert (mine.shape, mine.dtype, strides(mine)) == (theirs.shape, theirs.dtype, strides(theirs))
            if not mine.is_floating_point() or contract.comparison == "exact":
                assert torch.equal(torch.isnan(mine), torch.isnan(theirs))
                assert torch.equal(mine.nan_to_num(7.0), theirs.nan_to_num(7.0))
                continue
            assert torch.equal(torch.isfinite(mine), torch.isfinite(theirs))
            finite = torch.isfinite(gold)
            mine, theirs, gold = (torch.where(finite, x, 0.0) for x in (mine, theirs, gold))
            floor = contract.tolerance.ulps * torch.finfo(mine.dtype).eps
            assert error(mine, gold) <= max(floor, contract.tolerance.ratio * error(theirs, gold))


class Watcher(TorchDispatchMode):
    """Refuses what the simulated device lacks."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.name().partition(".")[0]
        assert name not in {"aten::topk", "aten::_grouped_mm", "aten::rsqrt", "aten::histc"}, name
        result = func(*args, **(kwargs or {}))
        wide = [x for x in tensors_in((args, result)) if x.dtype == torch.float64]
        assert not wide, f"{name} works in float64"
        return result


@pytest.mark.parametrize("one", [one for one in WITH_CONTRACT if "*" in one.devices], ids=identity)
def test_needs_nothing_that_young_devices_lack(one: Implementation) -> None:
    for sample in samples(one):
        args, kwargs = (cast(part, torch.float32) for part in (sample.args, sample.kwargs))
        with Watcher():  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
            one.run(*args, **kwargs)


def writes(one: Implementation) -> bool:
    """Say whether the operator is there to write to an argument."""
    return "!" in contract_of(one).schema or one.operator.endswith("_")


@pytest.mark.parametrize("one", [one for one in WITH_CONTRACT if not writes(one)], ids=identity)
def test_leaves_its_arguments_alone(one: Implementation) -> None:
    for sample in samples(one):
        before = [tensor.clone() for tensor in tensors_in((sample.args, sample.kwargs))]
        results = list(tensors_in(one.run(*sample.args, **sample.kwargs)))
        for old, tensor in zip(before, tensors_in((sample.args, sample.kwargs)), strict=True):
            assert torch.equal(old.nan_to_num(7.0), tensor.nan_to_num(7.0))
            assert all(tensor.untyped_storage()._cdata != one.untyped_storage()._cdata for one in results)


@given(
    values=st.lists(st.integers(-40, 40), max_size=40),
    bins=st.integers(1, 60),
    low=st.integers(-30, 30),
    width=st.integers(0, 60),
)
def test_histc_counts_as_torch_does_in_float64(values: list[int], bins: int, low: int, width: int) -> None:
    tensor = torch.tensor(values, dtype=torch.int32)
    expected = torch.histc(tensor.double(), bins, low, low + width)
    got = histc(tensor, bins, low, low + width)
    assert got.dtype == torch.int32 and torch.equal(got.double(), expected)


def test_histc_puts_the_largest_value_into_the_last_bin() -> None:
    assert histc(torch.tensor([0, 3, 4, 5, -1]), 4, 0, 4).tolist() == [1, 0, 0, 2]


def test_histc_refuses_a_broken_range() -> None:
    with pytest.raises(NotImplementedError, match="whole numbers"):
        histc(torch.tensor([1]), 4, 0.5, 2)


def test_grouped_mm_lets_no_group_into_another() -> None:
    rows, mats = torch.ones(4, 2), torch.ones(3, 2, 2)
    mats[1] = INF
    out = grouped_mm(rows, mats, torch.tensor([2, 2, 3], dtype=torch.int32))
    # Group 1 is empty, row 3 belongs to no group.
    assert out.tolist() == [[2.0, 2.0]] * 3 + [[0.0, 0.0]]


def test_grouped_mm_of_batches_has_no_offsets() -> None:
    left, right = torch.randn(3, 4, 8), torch.randn(3, 8, 5)
    torch.testing.assert_close(grouped_mm(left, right), torch.bmm(left, right))


@pytest.mark.parametrize(
    ("mats", "bias"), [(torch.ones(2, 2, 2), torch.ones(2, 2)), (torch.ones(2, 6), None)], ids=["bias", "2D x 2D"]
)
def test_grouped_mm_says_what_it_does_not_cover(mats: torch.Tensor, bias: torch.Tensor | None) -> None:
    with pytest.raises(NotImplementedError, match="grouped_mm: "):
        grouped_mm(torch.ones(4, 2), mats, torch.tensor([1, 2]), bias)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_topk_equals_torch(dim: int, largest: bool) -> None:
    tensor = torch.randn(6, 7, generator=torch.Generator().manual_seed(1))
    tensor[2, 3] = NAN
    got, expected = topk(tensor, 4, dim, largest), torch.topk(tensor, 4, dim, largest)
    torch.testing.assert_close(got[0], expected[0], equal_nan=True)
    assert torch.equal(got[1], expected[1])


def test_topk_tokens_with_more_ties_than_places() -> None:
    got, count = by_rank(torch.zeros(1, 1, 5000), 8)
    assert got.tolist() == [[list(range(8))]] and count.tolist() == [[8]]


def test_mxfp4_table_equals_the_reference_for_every_byte_and_scale() -> None:
    codes = torch.arange(256, dtype=torch.uint8).expand(256, 256).contiguous()
    scales = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 16).contiguous()
    for one in (one for one in IMPLEMENTATIONS if one.operator == mxfp4_decode.NAME):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            got, expected = one.run(codes, scales, dtype), mxfp4_decode.reference(codes, scales, dtype)
            assert isinstance(got, torch.Tensor)
            bits = torch.int32 if dtype == torch.float32 else torch.int16
            places = ~torch.isnan(expected)
            assert torch.equal(got.view(bits)[places], expected.view(bits)[places])
            assert torch.equal(torch.isnan(got), ~places)


def test_gathered_rows_keep_what_nobody_chose_out() -> None:
    q, kv = torch.randn(1, 3, 1, 3), torch.randn(1, 4, 3)
    kv[0, 0], kv[0, 2] = NAN, INF
    # Row 0 is what fills up the second query's list, whose other entry is a row.
    indices = torch.tensor([[[1, 3], [1, -1], [-1, 4]]], dtype=torch.int32)
    out, largest, lse = by_gather(q, kv, indices, 2, 1.0)
    assert torch.isfinite(out).all() and bool((out[0, 2] == 0).all())
    assert (largest[0, 2].item(), lse[0, 2].item()) == (-INF, INF)


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor cannot flush subnormals")
def test_mxfp4_table_needs_no_subnormals_for_normal_results() -> None:
    """Scale byte 0 is 2^-127, which a device that flushes subnormals reads as 0, while 6 times that is normal."""
    codes, scales = torch.full((1, 16), 0x77, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.uint8)
    torch.set_flush_denormal(True)
    try:
        got = by_table(codes, scales, torch.float32)
    finally:
        torch.set_flush_denormal(False)
    assert got.tolist() == [[6.0 * 2.0**-127] * 32]


def test_a_chosen_row_of_infinity_spoils_its_query_in_kernel_and_reference() -> None:
    q, kv = torch.full((1, 2, 1, 2), -1.0), torch.ones(1, 3, 2)
    kv[0, 2] = INF  # its score is -inf, so its weight is 0
    args = (q, kv, torch.tensor([[[0, 2], [0, 1]]], dtype=torch.int32), 1, 1.0)
    for run in (by_gather, sparse_mla_prefill.reference):
        assert torch.isnan(run(*args)[0]).flatten().tolist() == [True, False]


def test_flat_heads_refuses_what_the_contract_refuses() -> None:
    with pytest.raises(Day0Error, match="expected size 16 in dimension H"):
        by_flat_heads(torch.ones(1, 1, 16, 4), torch.ones(1, 2, 4), torch.ones(1, 1, 15), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rsqrt_equals_torch(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, -0.0, 1.0, 2.0, 1e-3, 6e4, INF, -1.0, NAN]).to(dtype)
    got, expected = rsqrt(values), torch.rsqrt(values)
    assert torch.equal(torch.isnan(got), torch.isnan(expected))
    torch.testing.assert_close(got, expected, equal_nan=True, rtol=torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_equals_torch(dtype: torch.dtype, affine: bool) -> None:
    x, weight, bias = (
        torch.randn(*size, generator=torch.Generator().manual_seed(3)).to(dtype)
        for size in ((2, 5, 3, 8), (3, 8), (3, 8))
    )
    given_ = (x, [3, 8], weight if affine else None, bias if affine else None, 1e-5)
    for got, right in zip(native_layer_norm(*given_), torch.native_layer_norm(*given_), strict=True):
        assert (got.shape, got.dtype) == (right.shape, right.dtype)
        torch.testing.assert_close(got, right)
    assert native_layer_norm(x[:0], *given_[1:])[0].shape == (0, 5, 3, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layer_norm_of_rows_in_any_order_is_packed(dtype: torch.dtype) -> None:
    """`day0 check` of GLM-5.3-Flash on `sim` found the strides of the input in the result."""
    weight = torch.ones(8, dtype=dtype)
    base = torch.randn(64, generator=torch.Generator().manual_seed(3)).to(dtype)
    for x in (base.reshape(8, 8).t(), base.as_strided((6, 8), (5, 1))):
        got, right = (
            layer_norm(x, [8], weight, weight, 1e-5)[0] for layer_norm in (native_layer_norm, torch.native_layer_norm)
        )
        assert got.stride() == right.stride() == (8, 1)
        torch.testing.assert_close(got, right)


def test_layer_norm_of_half_types_is_rounded_once() -> None:
    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(0)).bfloat16()
    weight = torch.full((128,), 960.0).bfloat16()
    bias = -960.0 * x[0].float().bfloat16()  # cancels in the first row
    right = torch.native_layer_norm(x.double(), [128], weight.double(), bias.double(), 1e-5)[0]
    error = (native_layer_norm(x, [128], weight, bias, 1e-5)[0].double() - right).abs()
    assert bool((error <= right.abs() * 2.0**-8 + 1e-3).all())
    # What torch's composite kernel does: the rows are stored in the half type before the weight.
    rows = torch.native_layer_norm(x, [128], None, None, 1e-5)[0]
    early = torch.addcmul(bias, rows, weight)
    assert float((early.double() - right).abs()[0].max()) > 10 * float(error[0].max())
