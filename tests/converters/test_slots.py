"""The bookkeeping of slots against a plain model of the policy: lists, no timestamps, no references."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.converters.online.budget import available_bytes, plan_slots
from day0.converters.online.routing import Routing, routing_of
from day0.converters.online.simulate import default_sizes, simulate
from day0.converters.online.slots import POLICIES, SPLITS, Plan, SlotTable
from day0.errors import Day0Error

LAYERS, EXPERTS = 3, 6
NEEDS = st.lists(
    st.tuples(st.integers(0, LAYERS - 1), st.sets(st.integers(0, EXPERTS - 1), max_size=5).map(sorted)), max_size=40
)
PLANS = st.builds(
    Plan,
    layers=st.just(LAYERS),
    slots=st.integers(0, 12),
    scratch=st.integers(1, 3),
    policy=st.sampled_from(POLICIES),
    split=st.sampled_from(SPLITS),
)


class PlainModel:
    """What is kept, as a list for each home, the next to leave in front."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.kept: dict[int, list[tuple[int, int]]] = {}
        self.hits = self.misses = self.evictions = self.unkept = 0

    def size(self, layer: int) -> int:
        if self.plan.split == "shared":
            return self.plan.slots
        each, more = divmod(self.plan.slots, self.plan.layers)
        return each + (layer < more)

    def step(self, layer: int, needed: list[int]) -> None:
        kept = self.kept.setdefault(0 if self.plan.split == "shared" else layer, [])
        keys = [(layer, one) for one in needed]
        there = [key for key in keys if key in kept]
        self.hits += len(there)
        if self.plan.policy == "lru":
            kept[:] = [key for key in kept if key not in there] + there
        for key in keys:
            if key in there:
                continue
            self.misses += 1
            leaves = next((one for one in kept if one not in keys), None)
            if len(kept) < self.size(layer):
                kept.append(key)
            elif leaves is not None:
                kept.remove(leaves)
                kept.append(key)
                self.evictions += 1
            else:
                self.unkept += 1


def routed(calls: list[tuple[int, list[int]]]) -> Routing:
    found = [(number, layer, torch.tensor([needed]).long()) for number, (layer, needed) in enumerate(calls)]
    return routing_of(found, layers=LAYERS, experts=EXPERTS)


@given(calls=NEEDS, plan=PLANS)
@settings(max_examples=150, deadline=None)
def test_it_does_what_the_plain_model_does(calls: list[tuple[int, list[int]]], plan: Plan) -> None:
    model = PlainModel(plan)
    for layer, needed in calls:
        model.step(layer, needed)
    found = simulate(routed(calls), plan)
    assert (found.hits, found.misses, found.evictions, found.unkept) == (
        model.hits,
        model.misses,
        model.evictions,
        model.unkept,
    )


@given(calls=NEEDS, plan=PLANS)
@settings(max_examples=60, deadline=None)
def test_several_steps_at_once_never_share_or_lose_a_slot(calls: list[tuple[int, list[int]]], plan: Plan) -> None:
    """Steps that overlap: each holds what it can until the one after the next comes."""
    table = SlotTable(plan)
    open_steps: list[list[object]] = []
    owner: dict[int, tuple[int, int]] = {}
    for layer, needed in calls:
        held = table.take(table.begin(), layer, needed)
        for one in held:
            assert table.slots[one.slot].expert == (layer, one.expert)
            if one.slot in owner:
                assert owner[one.slot] == (layer, one.expert), "a slot that somebody holds was given away"
            owner[one.slot] = (layer, one.expert)
        experts = [slot.expert for slot in table.slots if slot.expert is not None]
        assert len(set(experts)) == len(experts)
        open_steps.append(list(held))
        if len(open_steps) > 2:
            table.release(open_steps.pop(0))  # type: ignore[arg-type]
        owner = {slot.number: slot.expert for slot in table.slots if slot.references and slot.expert}
    for held_before in open_steps:
        table.release(held_before)  # type: ignore[arg-type]
    assert table.held() == 0


def test_two_slots_and_a_step_of_three() -> None:
    """What a step uses stays until it ends: the third goes through scratch, and nothing is evicted."""
    table = SlotTable(Plan(layers=1, slots=2, scratch=1))
    step = table.begin()
    held = table.take(step, 0, [0, 1, 2])
    assert [one.slot for one in held] == [0, 1, 2]
    assert not table.take(step, 0, [3]), "all are held"
    table.release(held)
    assert [one.slot for one in table.take(step, 0, [3])] == [2], "the first two belong to this step still"
    assert table.counts.evictions == 0 and table.counts.unkept == 2


def test_policies_differ_where_an_old_expert_is_used_again() -> None:
    calls = [(0, [0]), (0, [1]), (0, [0]), (0, [2]), (0, [0])]
    rates = {policy: simulate(routed(calls), Plan(layers=LAYERS, slots=6, policy=policy)).hits for policy in POLICIES}
    assert rates == {"lru": 2, "lrc": 1}


def test_one_pool_below_a_step_keeps_nothing_and_layers_of_their_own_do() -> None:
    calls = [(layer, [0, 1]) for _ in range(20) for layer in range(LAYERS)]
    shared, by_layer = (simulate(routed(calls), Plan(layers=LAYERS, slots=3, split=one)) for one in ("shared", "layer"))
    assert shared.hits == 0
    assert by_layer.hit_rate == pytest.approx(0.475)


def test_slots_are_released_once_and_layers_exist() -> None:
    table = SlotTable(Plan(layers=1, slots=1))
    held = table.take(table.begin(), 0, [5])
    table.release(held)
    with pytest.raises(ValueError, match="held by nobody"):
        table.release(held)
    with pytest.raises(ValueError, match="layer 1 of 1"):
        table.take(table.begin(), 1, [0])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"policy": "lur"}, "policy lur"),
        ({"split": "x"}, "split x"),
        ({"slots": -1}, "slots"),
        ({"scratch": 0}, "scratch"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(Day0Error) as caught:
        Plan(**{"layers": 2, "slots": 2, **changes})  # type: ignore[arg-type]
    assert caught.value.where == said and caught.value.hint


def test_a_fifth_of_the_memory_stays_free() -> None:
    one = plan_slots(layers=4, experts=100, per_step=4, slot_bytes=10, available=1000)
    assert (one.slots, one.scratch, one.nbytes, one.note) == (76, 4, 800, "")
    assert plan_slots(layers=4, experts=10, per_step=4, slot_bytes=10, available=10**6).slots == 40
    small = plan_slots(layers=4, experts=100, per_step=4, slot_bytes=10, available=100)
    assert (small.slots, small.scratch) == (4, 4) and "less than the 16 experts" in small.note
    assert plan_slots(layers=4, experts=100, per_step=4, slot_bytes=10, available=None).slots == 0
    with pytest.raises(Day0Error, match="a slot takes 10 bytes"):
        plan_slots(layers=4, experts=100, per_step=4, slot_bytes=10, available=12)
    with pytest.raises(Day0Error, match="share"):
        plan_slots(layers=4, experts=100, per_step=4, slot_bytes=10, available=12, margin=1.0)
    assert (available_bytes() or 0) > 1 << 20


def test_sizes_worth_a_look() -> None:
    assert default_sizes(routed([(0, [0, 1])])) == (1, 3, 6, 12, 18)
