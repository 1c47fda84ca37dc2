"""The toy's cache: rows land in their slots, and nobody's page holds another's rows."""

from __future__ import annotations

import pytest
import torch

from day0.errors import Day0Error
from day0.models.paging import sequences_of, slots_of
from day0.models.toy.cache import SPARE_BLOCKS, KdaCache, MlaCache, place, read_rows, write_rows
from day0.models.toy.calls import dispatched
from day0.models.toy.model import ToyCache, ToyModel
from tests.models.toys import CONFIG, KINDS, config_of, ids, image, normal, toy

SIZE = 4
CPU = torch.device("cpu")


def test_rows_land_in_their_slots_and_come_back_in_order() -> None:
    calls, rows_BSC = dispatched(), normal(2, 11, 6)
    pages, where = place(None, SIZE, 2, {"vision": 5, "text": 6}, CPU)
    pages_PGC = write_rows(calls, None, rows_BSC, where)
    assert pages_PGC.shape == (pages.blocks, SIZE, 6) and where.first == 0
    for request in range(2):
        slots = slots_of(pages, request)
        assert where.slot_BT[request].tolist() == slots
        assert torch.equal(pages_PGC.flatten(0, 1)[slots], rows_BSC[request])
    written = where.new_N.tolist()
    others = [slot for slot in range(pages.blocks * SIZE) if slot not in written]
    assert not pages_PGC.flatten(0, 1)[others].any(), "a row outside the slots of the tokens"
    assert torch.equal(read_rows(calls, pages_PGC, where), rows_BSC)


def test_growth_keeps_content() -> None:
    calls, rows_BSC = dispatched(), normal(2, 60, 6)
    pages, where = place(None, SIZE, 2, {"vision": 3, "text": 2}, CPU)
    pages_PGC, held = write_rows(calls, None, rows_BSC[:, :5], where), 5
    sizes = {pages_PGC.shape[0]}
    for count in (1, 6, 1, 20, 27):
        pages, where = place(pages, SIZE, 2, {"text": count}, CPU)
        pages_PGC = write_rows(calls, pages_PGC, rows_BSC[:, held : held + count], where)
        assert where.first == held
        held += count
        sizes.add(pages_PGC.shape[0])
        assert torch.equal(read_rows(calls, pages_PGC, where), rows_BSC[:, :held])
    assert len(sizes) >= 3, "the pool never grew"


def test_the_first_steps_of_decode_need_no_larger_pool() -> None:
    pages, where = place(None, SIZE, 2, {"text": 5}, CPU)
    for _ in range(SIZE * SPARE_BLOCKS):
        pages, where = place(pages, SIZE, 2, {"text": 1}, CPU)
    assert where.blocks == 2 * (2 + SPARE_BLOCKS)


def held(model: ToyModel, tokens: int, *, pixels: torch.Tensor | None = None) -> ToyCache:
    cache: ToyCache | None = model(input_ids=ids(2, tokens), pixel_values=pixels).past_key_values
    assert cache is not None
    return cache


def test_vision_and_text_and_two_requests_have_pages_of_their_own() -> None:
    pages = held(toy(), 20, pixels=image(2)).pages
    owners: dict[int, tuple[int, str]] = {}
    for one in pages.sequences:
        for block in one.blocks:
            assert owners.setdefault(block, (one.request, one.kind)) == (one.request, one.kind)
    kinds = [(one.kind, one.tokens) for one in sequences_of(pages, 1)]
    assert kinds == [("vision", 6), ("text", 14)] and pages.block_size == CONFIG.block_size
    assert set(owners.values()) == {(request, kind) for request in range(2) for kind in ("vision", "text")}


def test_text_after_the_image_goes_to_the_text() -> None:
    model = toy()
    cache = held(model, 20, pixels=image(2))
    cache = model(input_ids=ids(2, 3), past_key_values=cache).past_key_values
    assert [(one.kind, one.tokens) for one in sequences_of(cache.pages, 0)] == [("vision", 6), ("text", 17)]
    assert cache.length == 23


@pytest.mark.parametrize("kind", KINDS)
def test_pages_of_every_layer_hold_its_rows(kind: str) -> None:
    """Rows of a prefill in two calls are those of a prefill in one, wherever they lie."""
    model, ids_BS = toy(config_of(kind)), ids(2, 41)
    whole = model(input_ids=ids_BS).past_key_values
    first = model(input_ids=ids_BS[:, :9]).past_key_values
    second = model(input_ids=ids_BS[:, 9:], past_key_values=first).past_key_values
    found = 0
    for one, other in zip(whole.layers, second.layers, strict=True):
        if not isinstance(one, MlaCache):
            continue
        for name in ("kv_PGC", "index_PGC"):
            left, right = getattr(one, name), getattr(other, name)
            if left is None:
                assert right is None and model.config.index_shared_layers
                continue
            found += 1
            for request in range(2):
                rows = [
                    cache_PGC.flatten(0, 1)[slots_of(pages, request)]
                    for cache_PGC, pages in ((left, whole.pages), (right, second.pages))
                ]
                assert rows[0].shape[0] == 41 and rows[0].any()
                torch.testing.assert_close(*rows, rtol=1e-11, atol=1e-11)
    shared = len(model.config.index_shared_layers)
    assert found == 2 * len(model.config.mla_layers) - shared


@pytest.mark.parametrize("batch", [1, 3])
def test_another_batch_is_refused(batch: int) -> None:
    model = toy()
    cache = held(model, 9)
    with pytest.raises(Day0Error, match=f"expected the 2 prompts that the cache holds, got {batch}") as caught:
        model(input_ids=ids(batch, 1), past_key_values=cache)
    assert caught.value.where == "input_ids" and caught.value.hint


def test_no_token_changes_nothing() -> None:
    model, ids_BS = toy(), ids(2, 12)
    empty = model(input_ids=ids_BS[:, :0])
    assert empty.logits.shape == (2, 0, CONFIG.vocab_size) and empty.past_key_values.length == 0
    first = model(input_ids=ids_BS, past_key_values=empty.past_key_values)
    between = model(input_ids=ids_BS[:, :0], past_key_values=first.past_key_values)
    last = model(input_ids=ids_BS[:, :1], past_key_values=between.past_key_values)
    expected = model(input_ids=torch.cat((ids_BS, ids_BS[:, :1]), dim=1)).logits
    torch.testing.assert_close(first.logits, expected[:, :-1], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(last.logits, expected[:, -1:], rtol=1e-11, atol=1e-11)


def test_the_state_has_the_layout_that_the_config_names() -> None:
    caches = [held(toy(config_of(kind)), 9).layers[0] for kind in ("kimi-k3.1", "state vk")]
    states = [one.state_BHKV for one in caches if isinstance(one, KdaCache)]
    assert states[0].shape[2:] == (CONFIG.kda_key_dim, CONFIG.kda_value_dim)
    torch.testing.assert_close(states[1].transpose(-1, -2), states[0], rtol=1e-11, atol=1e-11)
