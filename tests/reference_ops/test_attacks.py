"""Inputs that an attack found: large caches, exponents that vanish, columns in another order."""

from __future__ import annotations

import math

import pytest
import torch

from day0.errors import Day0Error
from day0.reference_ops import expand_pools, kda_chunked, kda_gate, kda_recurrent, pool_index_keys, sparse_mla_decode
from day0.reference_ops import topk_tokens as topk


def test_a_cache_with_more_rows_than_int32_counts_is_read() -> None:
    pages = torch.zeros(1, 1, 1).expand(2**22, 2**10, 1)
    indices = torch.zeros(1, 1, 2, dtype=torch.int32)
    indices[0, 0, 1] = -1
    _, lse = sparse_mla_decode.reference(torch.ones(1, 1, 1, 1), pages, indices, 1, 1.0)
    assert lse.item() == 0.0


def test_a_decay_of_almost_nothing_left_equals_the_recurrent_form() -> None:
    generator = torch.Generator().manual_seed(1)
    q, k = (torch.randn(1, 5, 2, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    v = 1e30 * torch.randn(1, 5, 2, 3, generator=generator, dtype=torch.float64)
    g = torch.full((1, 5, 2, 4), -80.0, dtype=torch.float64)
    beta, state = torch.rand(1, 5, 2, generator=generator).double(), torch.zeros(1, 2, 4, 3).double()
    chunked = kda_chunked.reference(q, k, v, g, beta, state)
    recurrent = kda_recurrent.reference(q, k, v, g, beta, state)
    # What is left of the last token lies 35 digits below the new one, and still has to be there in the difference.
    far = chunked[0] - kda_chunked.reference(q, k, v, torch.full_like(g, -math.inf), beta, state)[0]
    near = recurrent[0] - kda_recurrent.reference(q, k, v, torch.full_like(g, -math.inf), beta, state)[0]
    torch.testing.assert_close(chunked, recurrent, rtol=1e-12, atol=0)
    torch.testing.assert_close(far, near, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("x", [20.5, 25.0, 33.0])
def test_the_plain_gate_is_exact_where_softplus_is_often_cut(x: float) -> None:
    raw, zero = torch.full((1, 1, 1, 1), x, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    g = kda_gate.reference(raw, torch.zeros(1, dtype=torch.float64), zero)
    assert -g.item() - x == pytest.approx(math.log1p(math.exp(-x)), rel=1e-5)


def test_a_first_token_before_the_first_is_the_first() -> None:
    pools = torch.tensor([[[0, 1]]], dtype=torch.int32)
    before, first = (torch.tensor([place], dtype=torch.int32) for place in (-2, 0))
    for got, expected in zip(
        expand_pools.reference(pools, before, 2, 4, 5), expand_pools.reference(pools, first, 2, 4, 5), strict=True
    ):
        assert torch.equal(got, expected)


def test_a_first_token_behind_the_last_leaves_no_pool() -> None:
    k = torch.ones(1, 6, 2)
    far = torch.tensor([2**63 - 1])
    assert not pool_index_keys.reference(k, k, torch.zeros(2, 2), far, 2).any()


def test_floats_of_eight_bits_are_refused_where_nothing_is_computed_in_them() -> None:
    with pytest.raises(Day0Error, match=r"of 16 bits or more, got torch\.float8_e4m3fn"):
        topk.reference(torch.zeros(1, 1, 4).to(torch.float8_e4m3fn), 2)
