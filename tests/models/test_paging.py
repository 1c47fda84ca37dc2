"""Pages: nobody owns another's, order is kept, and the numbers say how well the pool is used."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from day0.errors import Day0Error
from day0.models.paging import PageTable, grow, make_pages, metrics, release, sequences_of, slots_of

KINDS = ("text", "vision")
# A request, a kind, and how many tokens more; None gives the sequence back.
STEPS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(KINDS), st.none() | st.integers(1, 20)), max_size=25)


def check(table: PageTable) -> None:
    """What holds for every table."""
    owned = [block for one in table.sequences for block in one.blocks]
    assert sorted((*owned, *table.free)) == list(range(table.blocks)), "a page is lost, or has two owners"
    for one in table.sequences:
        assert len(one.blocks) == -(-one.tokens // table.block_size), "pages without a token, or too few"
    slots = [slot for request in range(3) for slot in slots_of(table, request)]
    assert len(slots) == len(set(slots)) == sum(one.tokens for one in table.sequences)
    assert all(slot // table.block_size in owned for slot in slots)


@given(STEPS, st.integers(1, 7), st.integers(1, 5))
def test_any_steps_keep_the_table_whole(steps: list[tuple[int, str, int | None]], block_size: int, blocks: int) -> None:
    table = make_pages(block_size, blocks)
    for request, kind, tokens in steps:
        before, held = table, {(one.request, one.kind): one for one in table.sequences}
        mine = held.get((request, kind))
        if tokens is None and mine is None:
            with pytest.raises(Day0Error, match=f"request {request} has no sequence '{kind}'") as caught:
                release(table, request, kind)
            assert caught.value.where == "page table" and caught.value.hint
            continue
        table = grow(table, request, kind, tokens) if tokens is not None else release(table, request, kind)
        check(table)
        check(before)
        now = {(one.request, one.kind): one for one in table.sequences}
        if tokens is None:
            assert (request, kind) not in now
        else:
            assert now[request, kind].tokens == (mine.tokens if mine else 0) + tokens
            old = mine.blocks if mine else ()
            assert now[request, kind].blocks[: len(old)] == old, "tokens that were there moved"
        assert {name: one for name, one in now.items() if name != (request, kind)} == {
            name: one for name, one in held.items() if name != (request, kind)
        }, "another sequence changed"


@given(STEPS, st.integers(1, 5))
def test_numbers_agree_with_counting(steps: list[tuple[int, str, int | None]], block_size: int) -> None:
    table = make_pages(block_size, 4)
    for request, kind, tokens in steps:
        if tokens is not None:
            table = grow(table, request, kind, tokens)
        elif any((one.request, one.kind) == (request, kind) for one in table.sequences):
            table = release(table, request, kind)
        found = metrics(table)
        free, used = set(table.free), table.blocks - len(table.free)
        runs = [last - first for first in range(table.blocks) for last in range(first, table.blocks + 1)
                if all(block in free for block in range(first, last))]  # fmt: skip
        filled = {slot for request in range(3) for slot in slots_of(table, request)}
        slots = [block * block_size + offset for block in set(range(table.blocks)) - free
                 for offset in range(block_size)]  # fmt: skip
        assert (found.used_blocks, found.free_blocks) == (used, len(free))
        wasted = sum(slot not in filled for slot in slots) / len(slots) if slots else 0.0
        assert found.wasted_share == pytest.approx(wasted)
        assert found.scattered_share == pytest.approx(1 - max(runs) / len(free) if free else 0.0)


def test_a_full_pool_doubles_and_no_slot_moves() -> None:
    table = grow(make_pages(4, 2), 0, "text", 8)
    before = slots_of(table, 0)
    assert table.free == () and table.blocks == 2
    table = grow(table, 0, "text", 1)
    assert table.blocks == 4 and slots_of(table, 0)[:8] == before
    assert grow(table, 1, "text", 33).blocks == 16, "doubled until it suffices"


def test_pages_are_handed_out_in_no_order() -> None:
    """A kernel that does not look into the table would read another's rows."""
    blocks = grow(make_pages(4, 9), 0, "text", 36).sequences[0].blocks
    assert sorted(blocks) == list(range(9)) and blocks != tuple(range(9))
    assert all(abs(one - other) != 1 for one, other in pairwise(blocks[:5]))


def test_logical_order_is_the_order_in_which_sequences_began() -> None:
    table = make_pages(4, 8)
    for kind, tokens in (("vision", 3), ("text", 5), ("vision", 2)):
        table = grow(table, 7, kind, tokens)
    vision, text = sequences_of(table, 7)
    assert (vision.kind, vision.tokens, text.kind, text.tokens) == ("vision", 5, "text", 5)
    expected = [one.blocks[token // 4] * 4 + token % 4 for one in (vision, text) for token in range(5)]
    assert slots_of(table, 7) == expected and slots_of(table, 8) == []


def test_numbers_of_a_pool_without_tokens_and_of_a_full_one() -> None:
    empty, full = metrics(make_pages(4, 4)), metrics(grow(make_pages(4, 4), 0, "text", 16))
    assert (empty.used_blocks, empty.free_blocks, empty.wasted_share, empty.scattered_share) == (0, 4, 0.0, 0.0)
    assert (full.used_blocks, full.free_blocks, full.wasted_share, full.scattered_share) == (4, 0, 0.0, 0.0)


def test_a_page_given_back_is_handed_out_again() -> None:
    table = grow(make_pages(4, 2), 0, "text", 8)
    again = grow(release(table, 0, "text"), 1, "text", 8)
    assert again.blocks == 2 and again.sequences[0].request == 1
