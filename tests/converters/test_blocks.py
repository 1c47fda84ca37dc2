"""The choice of a block's scale, against a search over all scales in exact fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from day0.converters.blocks import bounds_of, present
from day0.converters.tables import E4M3, E4M3FNUZ, HALVES, FloatLayout, encode

VALUES = [Fraction(halves, 2) for halves in HALVES] * 2


def block(groups: list[tuple[int, list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """One row; each group has a scale byte and its codes, repeated to 32."""
    codes = torch.tensor([(one * 32)[:32] for _, one in groups], dtype=torch.uint8)
    packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
    return packed.reshape(1, -1), torch.tensor([[byte for byte, _ in groups]], dtype=torch.uint8)


def fits(groups: list[tuple[int, list[int]]], layout: FloatLayout, scale: int, *, normal: bool) -> bool:
    for byte, codes in groups:
        for code in codes:
            halves = HALVES[code & 7]
            _, exact, subnormal = encode(layout, halves, byte - 127 - scale, flush=False)
            if not exact or (normal and subnormal):
                return False
    return True


@given(
    st.lists(
        st.tuples(st.integers(90, 130), st.lists(st.integers(0, 15), min_size=1, max_size=4)), min_size=1, max_size=4
    ),
    st.sampled_from([E4M3, E4M3FNUZ]),
)
def test_exact_whenever_any_scale_is(groups: list[tuple[int, list[int]]], layout: FloatLayout) -> None:
    codes, scales = block(groups)
    bounds = bounds_of(layout, scales, codes, 1, len(groups))
    chosen = int(bounds.scale())
    assert bool(bounds.exact >= chosen) == any(fits(groups, layout, b, normal=False) for b in range(-60, 20))
    assert bool(bounds.settled()) == any(fits(groups, layout, b, normal=True) for b in range(-60, 20))
    if bool(bounds.exact >= chosen):
        assert fits(groups, layout, chosen, normal=bool(bounds.settled()))


@pytest.mark.parametrize(
    ("span", "exact", "normal"),
    [(0, True, True), (11, True, True), (12, True, False), (14, True, False), (15, False, False)],
)
def test_the_span_decides(span: int, exact: bool, normal: bool) -> None:
    """Groups that hold every code: 11 apart is normal, 14 exact, 15 not."""
    every = list(range(16))
    codes, scales = block([(127, every), (127 - span, every)])
    bounds = bounds_of(E4M3, scales, codes, 1, 2)
    assert bool(bounds.exact >= bounds.scale()) is exact and bool(bounds.settled()) is normal


def test_codes_widen_the_window_by_three_on_either_side() -> None:
    """A top group of halves may sit at 9, a bottom group of fours at -11."""
    codes, scales = block([(127, [1]), (107, [6])])
    bounds = bounds_of(E4M3, scales, codes, 1, 2)
    assert int(bounds.scale()) == -9 and bool(bounds.exact >= bounds.scale())


def test_groups_of_zeros_do_not_count() -> None:
    """Encoders write them with scale byte 0, which would make any span too wide."""
    every = list(range(16))
    codes, scales = block([(127, every), (0, [0, 8]), (124, every)])
    assert bool(bounds_of(E4M3, scales, codes, 1, 3).settled())
    assert not bool(bounds_of(E4M3, scales, None, 1, 3).settled())


def test_a_nan_scale_spoils_nobody_else() -> None:
    codes, scales = block([(127, [6]), (255, [6])])
    assert int(bounds_of(E4M3, scales, codes, 1, 2).scale()) == -6


def test_a_block_of_zeros_has_scale_one() -> None:
    """Also where their scales are far apart; where they are not, nobody looks at the codes."""
    codes, scales = block([(0, [0]), (200, [8])])
    assert int(bounds_of(E4M3, scales, codes, 1, 2).scale()) == 0


def test_looking_at_codes_changes_nothing_that_was_settled() -> None:
    """A plan that read scales only and a conversion that has the codes must write the same bytes."""
    codes, scales = block([(127, [1]), (120, [1])])
    alone, both = bounds_of(E4M3, scales, None, 1, 2), bounds_of(E4M3, scales, codes, 1, 2)
    assert int(alone.scale()) == int(both.scale()) == -6


def test_present_names_every_magnitude() -> None:
    for code in range(16):
        codes, _ = block([(0, [0] * 31 + [code])])
        assert int(present(codes)) == (1 << (code & 7)) & 0xFE


def test_blocks_at_the_edges_are_smaller() -> None:
    """160 rows and 5 groups in blocks of 128 rows and 4 groups: the edges have scales of their own."""
    scales = torch.full((160, 5), 120, dtype=torch.uint8)
    scales[128:] = 100
    scales[:, 4] = 90
    codes = torch.full((160, 80), 0x66, dtype=torch.uint8)
    assert bounds_of(E4M3, scales, codes, 128, 4).scale().tolist() == [[-13, -43], [-33, -43]]
