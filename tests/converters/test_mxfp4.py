from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from day0.converters.mxfp4 import Mxfp4, decode_mxfp4, encode_mxfp4
from day0.errors import Day0Error
from day0.reference_ops.mxfp4_decode import E2M1_VALUES

GRID = torch.tensor([*E2M1_VALUES, *(-value for value in E2M1_VALUES)])


def block(*values: float) -> torch.Tensor:
    """One block [1, 32] that begins with these values."""
    return torch.tensor([[*values, *([0.0] * (32 - len(values)))]], dtype=torch.float64)


def codes_of(packed: Mxfp4) -> list[int]:
    return torch.stack((packed.codes & 15, packed.codes >> 4), dim=-1).flatten().tolist()


def test_every_code_under_every_scale_survives_the_round_trip() -> None:
    """All 255 scales with a block that holds each code; bytes, not values, are compared."""
    codes = torch.arange(16, dtype=torch.uint8)
    pairs = (codes | (codes.flip(0) << 4)).expand(255, 16).contiguous()
    scales = torch.arange(255, dtype=torch.uint8)[:, None]
    again = encode_mxfp4(decode_mxfp4(Mxfp4(codes=pairs, scales=scales), torch.float64))
    assert torch.equal(again.codes, pairs) and torch.equal(again.scales, scales)


def test_ties_go_to_the_even_code() -> None:
    midpoints = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
    packed = encode_mxfp4(block(4.0, *midpoints, *(-middle for middle in midpoints)))
    assert packed.scales.tolist() == [[127]]
    assert codes_of(packed)[1:15] == [0, 2, 2, 4, 4, 6, 6, 8, 10, 10, 12, 12, 14, 14]


@pytest.mark.parametrize(
    ("largest", "byte"), [(4.0, 127), (7.99, 127), (8.0, 128), (3.99, 126), (6.5, 127), (2.0**-127, 0), (2.0**127, 252)]
)
def test_scale_follows_the_floor_rule(largest: float, byte: int) -> None:
    assert encode_mxfp4(block(largest)).scales.tolist() == [[byte]]


def test_what_lies_beyond_six_is_clamped() -> None:
    assert decode_mxfp4(encode_mxfp4(block(7.99, -7.0)))[0, :2].tolist() == [6.0, -6.0]


def test_zeros_keep_their_sign_and_get_scale_0() -> None:
    packed = encode_mxfp4(block(-0.0, 0.0))
    assert packed.scales.tolist() == [[0]] and codes_of(packed)[:2] == [8, 0]


def test_low_nibble_is_the_even_element() -> None:
    assert int(encode_mxfp4(block(6.0, -0.5)).codes[0, 0]) == 0x97


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=32, max_size=32))
def test_no_value_on_the_grid_is_nearer(values: list[float]) -> None:
    weight = torch.tensor([values], dtype=torch.float64)
    packed = encode_mxfp4(weight)
    decoded = decode_mxfp4(packed, torch.float64)
    grid = GRID.double() * 2.0 ** (packed.scales.double() - 127.0)
    nearest = (weight[..., None] - grid[:, None]).abs().amin(dim=-1)
    assert bool(((weight - decoded).abs() <= nearest).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_input_dtype_does_not_matter(dtype: torch.dtype) -> None:
    weight = torch.randn(3, 5, 96, generator=torch.Generator().manual_seed(0)).to(dtype)
    packed, wide = encode_mxfp4(weight), encode_mxfp4(weight.double())
    assert packed.codes.shape == (3, 5, 48) and packed.scales.shape == (3, 5, 3)
    assert torch.equal(packed.codes, wide.codes) and torch.equal(packed.scales, wide.scales)


def test_matches_ml_dtypes_rounding() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    weight = torch.randn(64, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    packed = encode_mxfp4(weight)
    scaled = (weight * 2.0 ** (127.0 - packed.scales.double())).clamp(-6.0, 6.0)
    theirs = scaled.numpy().astype(ml_dtypes.float4_e2m1fn).view("uint8").reshape(-1)
    assert codes_of(packed) == theirs.tolist()


def test_a_ragged_row_is_refused() -> None:
    with pytest.raises(Day0Error, match="a row of 40 values is no multiple of 32"):
        encode_mxfp4(torch.zeros(2, 40))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(Day0Error, match="NaN or infinity"):
        encode_mxfp4(block(1.0, value))
