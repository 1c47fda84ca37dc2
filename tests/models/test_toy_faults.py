"""Planted mistakes: each changes what its name says, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from day0.models.driver import step
from day0.models.paging import slots_of
from day0.models.toy.cache import KdaCache, MlaCache
from day0.models.toy.calls import dispatched, references
from day0.models.toy.faults import FAULTS, faulty
from day0.models.toy.model import ToyConfig, ToyModel
from tests.models.toys import CONFIG, TOPK, ids, image, logits, normal, toy

CLOSE: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-11}


def broken(name: str, config: ToyConfig = CONFIG) -> ToyModel:
    return toy(config, calls=faulty(name))


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.allclose(left, right, rtol=1e-9, atol=1e-9)


def test_they_are_the_mistakes_that_ports_make() -> None:
    assert set(FAULTS) == {
        "wrong rope pairing",
        "one-sided Hadamard",
        "transposed KDA state",
        "swapped nibbles",
        "off-by-one causal mask",
        "stale cache block",
        "weight applied early",
        "missing attention-residual bank",
    }


@pytest.mark.parametrize("name", FAULTS)
def test_each_shows_in_the_logits_and_stays_finite(name: str) -> None:
    rows = []
    for model in (toy(), broken(name)):
        first = model(input_ids=ids(2, 5 * TOPK), pixel_values=image(2))
        second = step(model, ids(2, 1), first.past_key_values)
        rows.append(torch.cat((first.logits, second.logits_BSV), dim=1))
    assert bool(rows[1].isfinite().all()) and not same(*rows)


@pytest.mark.parametrize("name", FAULTS)
def test_each_works_on_the_references_too(name: str) -> None:
    """So a fault can be trained or differentiated through."""
    model = toy(calls=faulty(name, references()))
    assert torch.equal(logits(model, ids(1, 20)), logits(broken(name), ids(1, 20)))


@pytest.mark.parametrize("name", FAULTS)
def test_the_other_operators_stay_what_they_are(name: str) -> None:
    calls, changed = dispatched(), FAULTS[name](dispatched())
    assert len(changed) == (2 if name == "transposed KDA state" else 1)
    for operator in ("rope", "topk_tokens", "kda_gate", "short_conv", "sparse_mla_decode"):
        assert getattr(faulty(name, calls), operator) is getattr(calls, operator)


def test_wrong_rope_pairing_turns_other_pairs_and_leaves_text_alone() -> None:
    x_NHD, positions = normal(5, 2, 12), torch.tensor([[0, 0], [0, 3], [2, 0], [1, 1], [4, 7]], dtype=torch.int32)
    right = dispatched().rope_2d(x_NHD, positions, 1e4)
    wrong = faulty("wrong rope pairing").rope_2d(x_NHD, positions, 1e4)
    torch.testing.assert_close(wrong[0], x_NHD[0], **CLOSE)
    for turned, pairs in ((right, (6, 2)), (wrong, (2, 6))):
        # Neighbours are [.., 6, 2], halves [.., 2, 6]: a rotation keeps the length of each pair.
        dim = -1 if pairs == (6, 2) else -2
        kept, before = (one.unflatten(-1, pairs).square().sum(dim=dim) for one in (turned, x_NHD))
        torch.testing.assert_close(kept, before, **CLOSE)
    assert not same(right[1:], wrong[1:])
    assert torch.equal(logits(broken("wrong rope pairing"), ids(1, 20)), logits(toy(), ids(1, 20)))
    seen = [logits(one, ids(1, 20), image(1)) for one in (toy(), broken("wrong rope pairing"))]
    assert not same(seen[0][:, 0], seen[1][:, 0])


def test_one_sided_hadamard_transforms_keys_alone() -> None:
    right, wrong = dispatched().hadamard, faulty("one-sided Hadamard").hadamard
    key, query = normal(1, 3, 1, 16), normal(1, 3, 17, 16)
    assert torch.equal(wrong(key), right(key)) and torch.equal(wrong(query), query)
    before, after = logits(toy(), ids(1, 5 * TOPK)), logits(broken("one-sided Hadamard"), ids(1, 5 * TOPK))
    torch.testing.assert_close(after[:, :TOPK], before[:, :TOPK], **CLOSE)
    assert not same(after[:, TOPK:], before[:, TOPK:])


def test_transposed_state_shows_in_the_next_call_only() -> None:
    ids_BS = ids(2, 20)
    right, wrong = (step(model, ids_BS) for model in (toy(), broken("transposed KDA state")))
    torch.testing.assert_close(wrong.logits_BSV, right.logits_BSV, **CLOSE)
    for one, other in zip(right.cache.layers, wrong.cache.layers, strict=True):
        if isinstance(one, KdaCache):
            assert other.state_BHKV.shape == one.state_BHKV.shape
            assert torch.equal(other.state_BHKV.flatten(2), one.state_BHKV.transpose(-1, -2).flatten(2))
        else:
            assert torch.equal(other.kv_PGC, one.kv_PGC)
    right, wrong = (
        step(model, ids(2, 1), output.cache)
        for model, output in ((toy(), right), (broken("transposed KDA state"), wrong))
    )
    assert not same(wrong.logits_BSV, right.logits_BSV)


def test_swapped_nibbles_swap_neighbours() -> None:
    codes = torch.arange(256, dtype=torch.uint8).reshape(1, 4, 64)
    scales = torch.full((1, 4, 4), 127, dtype=torch.uint8)
    right = dispatched().mxfp4_decode(codes, scales, torch.float64)
    wrong = faulty("swapped nibbles").mxfp4_decode(codes, scales, torch.float64)
    assert torch.equal(wrong[..., ::2], right[..., 1::2]) and torch.equal(wrong[..., 1::2], right[..., ::2])
    assert not torch.equal(wrong, right)


@pytest.mark.parametrize(("first", "tokens"), [(0, 5), (3, 4), (9, 1)])
def test_off_by_one_mask_hides_a_token_from_itself(first: int, tokens: int) -> None:
    args = (normal(2, tokens, 17, 16), normal(2, first + tokens, 16), normal(2, tokens, 17), first)
    right = dispatched().lightning_indexer(*args)
    wrong = faulty("off-by-one causal mask").lightning_indexer(*args)
    for row in range(tokens):
        for token in range(first + tokens):
            expected = right[:, row, token]
            if token == first + row and token:
                assert bool(expected.isfinite().all())
                expected = torch.full_like(expected, float("-inf"))
            assert torch.equal(wrong[:, row, token], expected)


def test_a_stale_block_shows_in_cached_rows_only() -> None:
    ids_BS = ids(2, 5 * TOPK)
    right, wrong = (step(model, ids_BS) for model in (toy(), broken("stale cache block")))
    torch.testing.assert_close(wrong.logits_BSV, right.logits_BSV, **CLOSE)
    pages = right.cache.pages
    assert pages == wrong.cache.pages
    slots = sorted(slot for request in range(2) for slot in slots_of(pages, request))
    stale = [slot for slot in slots if slot // pages.block_size % 4 == 1]
    assert 0 < len(stale) < len(slots)
    for one, other in zip(right.cache.layers, wrong.cache.layers, strict=True):
        if isinstance(one, KdaCache):
            assert torch.equal(one.state_BHKV, other.state_BHKV)
            continue
        assert isinstance(one, MlaCache) and isinstance(other, MlaCache)
        for left, rows in ((one.kv_PGC, other.kv_PGC), (one.index_PGC, other.index_PGC)):
            assert left is not None and rows is not None
            left, rows = left.flatten(0, 1), rows.flatten(0, 1)
            assert not rows[stale].any() and bool(left[stale].any(dim=-1).all())
            fresh = [slot for slot in slots if slot not in stale]
            assert torch.equal(rows[fresh], left[fresh])


def test_weight_early_goes_into_the_expert() -> None:
    x_NL, up_EHL, down_ELF = normal(3, 8), normal(4, 12, 8), normal(4, 8, 6)
    weight_NK, chosen_NK = normal(3, 2).abs(), torch.tensor([[0, 3], [2, 1], [1, 1]])
    rest = ("situ", False, False, 0.0, 4.0, 25.0)
    wrong = faulty("weight applied early").fused_experts(x_NL, up_EHL, down_ELF, weight_NK, chosen_NK, *rest)
    ones = torch.ones(1, 1, dtype=torch.float64)
    for row in range(3):
        expected = sum(
            dispatched().fused_experts(
                weight_NK[row, one] * x_NL[row : row + 1], up_EHL, down_ELF, ones, chosen_NK[row, one].view(1, 1), *rest
            )
            for one in range(2)
        )
        torch.testing.assert_close(wrong[row : row + 1], expected, **CLOSE)
    right = dispatched().fused_experts(x_NL, up_EHL, down_ELF, weight_NK, chosen_NK, *rest)
    assert not same(wrong, right)


def test_a_missing_bank_leaves_the_sum_of_the_block_alone() -> None:
    prefix, bank = normal(1, 3, 8), [normal(1, 3, 8, seed=1)]
    args = (prefix, normal(8), normal(8, seed=2), 1e-5)
    wrong = faulty("missing attention-residual bank").attention_residual(bank, *args)
    assert torch.equal(wrong, prefix)
    assert not same(dispatched().attention_residual(bank, *args), prefix)
    plain = ToyConfig(residual="plain")
    assert torch.equal(
        logits(broken("missing attention-residual bank", plain), ids(1, 9)), logits(toy(plain), ids(1, 9))
    )
