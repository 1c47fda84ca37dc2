"""A smaller call is the same kind of call."""

import torch

from day0.devices.leaves import leaf_dtypes, leaf_ranks
from day0.devices.profile_parts import layout_of
from day0.devices.smaller import signature_bytes, smaller
from day0.records import Signature
from day0.reference_ops.signatures import describe, tensor_values

LARGE = torch.zeros(256, 1024, 2048, dtype=torch.bfloat16, device="meta")
ROWS = torch.zeros(8, 1024, dtype=torch.bfloat16, device="meta")
OFFSETS = torch.zeros(256, dtype=torch.int32, device="meta")


def _layouts(signature: Signature) -> list[str]:
    return [layout_of(one.shape, one.stride) for one in tensor_values(signature)]


def test_equal_sizes_stay_equal_and_everything_else_stays() -> None:
    large = describe("aten::_grouped_mm", (ROWS, LARGE, OFFSETS), {})
    small = smaller(large, 1 << 20)
    assert small is not None
    assert signature_bytes(small) <= 1 << 20 < signature_bytes(large)
    rows, experts, offsets = tensor_values(small)
    assert rows.shape[1] == experts.shape[1]
    assert offsets.shape[0] == experts.shape[0]
    assert (leaf_dtypes(small), leaf_ranks(small)) == (leaf_dtypes(large), leaf_ranks(large))


def test_layouts_stay() -> None:
    strided = LARGE[:, :, ::2]
    for given in (LARGE, LARGE.transpose(1, 2), LARGE.permute(2, 0, 1), strided, LARGE[:1].expand(256, -1, -1)):
        large = describe("aten::abs", (given,), {})
        small = smaller(large, 1 << 16)
        assert small is not None
        assert _layouts(small) == _layouts(large)
        assert small != large


def test_a_call_that_is_small_enough_is_itself() -> None:
    call = describe("aten::abs", (ROWS,), {})
    assert smaller(call, 1 << 20) is call


def test_none_where_sizes_depend_on_each_other() -> None:
    # 1024 * 2048 becomes another number than the divided sizes multiply to.
    call = describe("aten::view", (LARGE, [256, 2097152]), {})
    assert smaller(call, 1 << 10) is None


def test_memory_is_counted_once_where_a_tensor_repeats_itself() -> None:
    assert signature_bytes(describe("aten::abs", (ROWS[:1].expand(512, -1),), {})) == 2048
