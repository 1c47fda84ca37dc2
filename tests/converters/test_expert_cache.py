"""The cache: the right weights for every expert, whoever asks meanwhile, and whatever fails."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
import torch

from day0.converters.online import fp8_workspace
from day0.converters.online.cached import CachedExperts
from day0.converters.online.expert_cache import ExpertCache
from day0.converters.online.fp8_workspace import Fp8Workspace, Matrix, Packed
from day0.converters.online.routing import routing_of
from day0.converters.online.simulate import simulate
from day0.converters.online.slots import POLICIES, SPLITS, Plan
from day0.converters.tiers import eager
from day0.converters.workspace import PackedExperts
from day0.errors import Day0Error
from day0.reference_ops import mxfp4_decode

LAYERS, EXPERTS = 3, 8
MATRIX = Matrix(rows=4, columns=32)


def packed(layer: int, expert: int) -> Packed:
    generator = torch.Generator().manual_seed(100 * layer + expert)
    codes = torch.randint(0, 256, (4, 16), dtype=torch.uint8, generator=generator)
    return Packed(codes=codes, scales=torch.randint(110, 130, (4, 1), dtype=torch.uint8, generator=generator))


PACKED = {(layer, expert): packed(layer, expert) for layer in range(LAYERS) for expert in range(EXPERTS)}
RIGHT = {key: mxfp4_decode.reference(one.codes, one.scales, torch.float32) for key, one in PACKED.items()}


def made(plan: Plan, **options: int) -> ExpertCache:
    workspace = Fp8Workspace((MATRIX,), plan.slots + plan.scratch, decode=eager.decode)
    return ExpertCache(workspace, plan, checked=True, **options)


def step(cache: ExpertCache, layer: int, needed: Sequence[int], *, slow: float = 0.0) -> list[int]:
    """One step that looks at every weight; returns the experts in the order they came."""
    came: list[int] = []
    for places in cache.rounds(layer, needed, lambda expert: (PACKED[layer, expert],)):
        time.sleep(slow)
        for expert, slot in places.items():
            found = cache.workspace.decoded(0, [slot], torch.float32)[0]
            assert torch.equal(found, RIGHT[layer, expert]), f"layer {layer}: expert {expert} in slot {slot}"
            came.append(expert)
    assert sorted(came) == sorted(set(needed))
    return came


def needs(count: int, seed: int = 0) -> Iterator[tuple[int, list[int]]]:
    rng = random.Random(seed)  # noqa: S311 - an order of experts is no secret
    for number in range(count):
        yield number % LAYERS, rng.sample(range(EXPERTS), rng.randint(0, 5))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(("threads", "batch"), [(0, 0), (0, 2), (2, 0), (2, 1)])
def test_measured_hits_are_the_simulated_ones(policy: str, split: str, threads: int, batch: int) -> None:
    plan = Plan(layers=LAYERS, slots=7, scratch=2, policy=policy, split=split)
    cache, calls = made(plan, threads=threads, batch=batch), list(needs(60))
    for layer, needed in calls:
        step(cache, layer, needed)
    recorded = [(number, layer, torch.tensor([needed]).long()) for number, (layer, needed) in enumerate(calls)]
    expected = simulate(routing_of(recorded, layers=LAYERS, experts=EXPERTS), plan)
    found = cache.metrics()
    cache.close()
    assert (found.hits, found.misses, found.evictions, found.unkept) == (
        expected.hits,
        expected.misses,
        expected.evictions,
        expected.unkept,
    )
    assert found.hit_rate == expected.hit_rate > 0
    assert found.bytes_converted == found.misses * cache.workspace.slot_bytes
    assert found.convert_seconds > 0 and found.steps == 60


@pytest.mark.parametrize(
    ("slots", "scratch", "threads", "batch"), [(6, 1, 0, 0), (4, 2, 2, 1), (0, 1, 1, 1), (9, 3, 3, 0)]
)
def test_many_threads_at_once(slots: int, scratch: int, threads: int, batch: int) -> None:
    """More steps at one time than there are slots: all end, all see the right weights, nothing stays held."""
    cache = made(Plan(layers=LAYERS, slots=slots, scratch=scratch), threads=threads, batch=batch)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for layer, needed in needs(25, seed):
                step(cache, layer, needed, slow=0.0002 if seed % 2 else 0.0)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test must see it
            errors.append(error)

    workers = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(5)]
    for one in workers:
        one.start()
    for one in workers:
        one.join(timeout=30)
    assert not errors and not any(one.is_alive() for one in workers)
    assert cache.table.held() == 0
    found = cache.metrics()
    assert found.hits + found.misses == sum(len(needed) for seed in range(5) for _, needed in needs(25, seed))
    cache.close()


def test_two_threads_that_need_one_expert_convert_it_once() -> None:
    cache = made(Plan(layers=1, slots=4), threads=1)
    begun, asked = threading.Event(), []

    def source(expert: int) -> tuple[Packed]:
        asked.append(expert)
        begun.set()
        time.sleep(0.05)
        return (PACKED[0, expert],)

    def other() -> None:
        begun.wait(10)
        for places in cache.rounds(0, [3], source):
            assert torch.equal(cache.workspace.decoded(0, [places[3]], torch.float32)[0], RIGHT[0, 3])

    thread = threading.Thread(target=other)
    thread.start()
    assert [sorted(places) for places in cache.rounds(0, [3], source)] == [[3]]
    thread.join(10)
    assert asked == [3] and cache.metrics().hits == 1
    cache.close()


@pytest.mark.parametrize("threads", [0, 2])
def test_a_failed_conversion_frees_its_slot_and_is_tried_again(threads: int) -> None:
    cache = made(Plan(layers=1, slots=2), threads=threads)
    broken = True

    def source(expert: int) -> tuple[Packed]:
        if broken and expert == 1:
            raise Day0Error("expert 1", "cannot be read")
        return (PACKED[0, expert],)

    with pytest.raises(Day0Error, match="cannot be read"):
        list(cache.rounds(0, [0, 1], source))
    assert cache.table.held() == 0
    broken = False
    for places in cache.rounds(0, [0, 1], source):
        assert torch.equal(cache.workspace.decoded(0, [places[1]], torch.float32)[0], RIGHT[0, 1])
    assert cache.metrics().hits == 1, "the one that did not fail was kept"
    cache.close()


def test_a_step_that_is_left_early_holds_nothing() -> None:
    cache = made(Plan(layers=1, slots=4, scratch=2), threads=2, batch=1)
    landed = []

    def source(expert: int) -> tuple[Packed]:
        time.sleep(0.01)
        landed.append(expert)
        return (PACKED[0, expert],)

    rounds = cache.rounds(0, range(6), source)
    next(rounds)
    rounds.close()  # type: ignore[attr-defined]  # a generator
    assert sorted(landed) == list(range(6)), "a conversion that is under way would write into the next owner's slot"
    assert cache.table.held() == 0
    for expert in range(EXPERTS):
        step(cache, 0, [expert])
    cache.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        step(cache, 0, [7, 6, 5, 4, 3, 2, 1, 0])
    assert cache.table.held() == 0


def test_a_kernel_that_writes_too_far_is_caught_at_the_end_of_the_step() -> None:
    cache = made(Plan(layers=1, slots=2))
    with pytest.raises(Day0Error, match="was overwritten"):
        for places in cache.rounds(0, [0], lambda expert: (PACKED[0, expert],)):
            values = cache.workspace.values(0).view(torch.uint8)
            values.as_strided((129,), (1,), values.storage_offset() + places[0] * values.stride(0)).fill_(1)


def test_hits_come_first_and_the_rest_in_batches() -> None:
    cache = made(Plan(layers=1, slots=8), threads=1, batch=2)
    step(cache, 0, [5, 6])
    came = [sorted(places) for places in cache.rounds(0, range(7), lambda expert: (PACKED[0, expert],))]
    assert came == [[5, 6], [0, 1], [2, 3], [4]]
    cache.close()


def test_the_workspace_must_have_the_slots_of_the_plan() -> None:
    with pytest.raises(ValueError, match="2 slots for 2 kept ones"):
        ExpertCache(Fp8Workspace((MATRIX,), 2, decode=eager.decode), Plan(layers=1, slots=2))


def layer_of_experts() -> tuple[list[PackedExperts], torch.Tensor]:
    """Gate, up and down of one layer, and what two tokens chose."""
    generator = torch.Generator().manual_seed(4)

    def one(name: str, rows: int, columns: int) -> PackedExperts:
        shape = (EXPERTS, rows, columns // 2)
        codes = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        scales = torch.randint(118, 124, (EXPERTS, rows, columns // 32), dtype=torch.uint8, generator=generator)
        return PackedExperts(name=name, codes=codes, scales=scales)

    return [one("gate", 32, 32), one("up", 32, 32), one("down", 32, 32)], torch.tensor([[6, 1], [1, -1]])


@pytest.mark.parametrize("layout", ["bf16", "mxfp8", "fp8-128x128", "fp8-1x128"])
def test_a_layer_gets_its_experts_from_any_layout_and_slots_themselves_where_they_hold_its_dtype(layout: str) -> None:
    layer, chosen_NK = layer_of_experts()
    matrices = (Matrix(rows=64, columns=32), Matrix(rows=32, columns=32))
    plan = Plan(layers=1, slots=3, scratch=2)
    workspace = Fp8Workspace(matrices, 5, decode=eager.decode, layout=layout)
    cached = CachedExperts(ExpertCache(workspace, plan), 0)
    right = [mxfp4_decode.reference(one.codes, one.scales, torch.bfloat16) for one in layer]
    for _ in range(2):
        rounds = list(cached.rounds(layer, chosen_NK, torch.bfloat16))
        assert len(rounds) == 1
        place_NK = rounds[0].chosen_NK
        for token, choice in ((0, 0), (0, 1), (1, 0)):
            expert, place = int(chosen_NK[token, choice]), int(place_NK[token, choice])
            assert torch.equal(rounds[0].gate_up[place], torch.cat((right[0][expert], right[1][expert])))
            assert torch.equal(rounds[0].down[place], right[2][expert])
        assert int(place_NK[1, 1]) == -1
    assert (rounds[0].down.data_ptr() == workspace.values(1).data_ptr()) == (layout == "bf16")


def test_weights_are_asked_once_whether_they_are_exact_and_again_when_they_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer, chosen_NK = layer_of_experts()
    workspace = Fp8Workspace(
        (Matrix(rows=64, columns=32), Matrix(rows=32, columns=32)), 2, decode=eager.decode, layout="bf16"
    )
    cached = CachedExperts(ExpertCache(workspace, Plan(layers=1, slots=0, scratch=2)), 0)
    asked: list[str] = []
    settled, exact = Fp8Workspace.settled, Fp8Workspace.exact_by_scales

    def one_asked(workspace: Fp8Workspace, matrix: int, one: Packed) -> Packed:
        asked.append("one expert")
        return settled(workspace, matrix, one)

    def all_asked(workspace: Fp8Workspace, bytes_ERG: torch.Tensor) -> torch.Tensor | None:
        asked.append("all")
        return exact(workspace, bytes_ERG)

    monkeypatch.setattr(Fp8Workspace, "settled", one_asked)
    monkeypatch.setattr(Fp8Workspace, "exact_by_scales", all_asked)
    for _ in range(2):
        list(cached.rounds(layer, chosen_NK, torch.bfloat16))
        assert asked == ["all"] * 3, "gate, up and down of all experts, and no expert for itself"
    layer[0].scales[6] = 254
    with pytest.raises(Day0Error, match="does not fit"):
        list(cached.rounds(layer, chosen_NK, torch.bfloat16))
    assert asked[3:] == ["all"] * 3 + ["one expert"]


@pytest.mark.parametrize("asked_bytes", [1, 1 << 25])
def test_of_all_experts_those_are_named_that_their_scales_leave_exact(
    asked_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fp8_workspace, "ASKED_BYTES", asked_bytes)
    bytes_ERG = torch.full((4, 64, 1), 120, dtype=torch.uint8)
    bytes_ERG[1, 5], bytes_ERG[2, 0], bytes_ERG[3, 63] = 253, 252, 255
    found = {}
    for layout in ("bf16", "mxfp8", "fp8-1x128"):
        one = Fp8Workspace((Matrix(rows=64, columns=32),), 1, decode=eager.decode, layout=layout)
        said = one.exact_by_scales(bytes_ERG)
        found[layout] = None if said is None else said.tolist()
    assert found == {"bf16": [True, False, True, True], "mxfp8": [True] * 4, "fp8-1x128": None}


def test_gate_and_up_in_one_piece_of_memory_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, _ = layer_of_experts()
    cached = CachedExperts(made(Plan(layers=1, slots=1)), 0)
    both = torch.cat((layer[0].codes, layer[1].codes), dim=1)
    scales = torch.cat((layer[0].scales, layer[1].scales), dim=1)
    there = [
        PackedExperts(name="gate", codes=both[:, :32], scales=scales[:, :32]),
        PackedExperts(name="up", codes=both[:, 32:], scales=scales[:, 32:]),
        layer[2],
    ]
    # Sizes are another matter.
    monkeypatch.setattr(cached.cache.workspace, "settled", lambda matrix, one: one)
    one, other = cached.source(there)(5)[0], cached.source(layer)(5)[0]
    assert one.codes.data_ptr() == both[5].data_ptr() and other.codes.data_ptr() != layer[0].codes[5].data_ptr()
    assert torch.equal(one.codes, other.codes) and torch.equal(one.scales, other.scales)
    apart = [there[1], there[0], there[2]]
    assert torch.equal(cached.source(apart)(5)[0].codes, torch.cat((layer[1].codes[5], layer[0].codes[5])))
