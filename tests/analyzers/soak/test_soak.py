"""The soak: right on what is right, and every planted leak, drift and mix-up is seen.

Shape suffixes: B sequences, S tokens, V vocabulary.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from day0.analyzers.canary.gates import Figure, judge_gates
from day0.analyzers.soak.alone import compare_alone
from day0.analyzers.soak.figures import GATES, METRICS, figures_of
from day0.analyzers.soak.held import expert_caches, experts_held
from day0.analyzers.soak.loop import Soaked, soak
from day0.analyzers.soak.plan import SOAK_FAULTS, SoakPlan
from day0.analyzers.soak.pool import PoolEngine
from day0.devices.open import open_torch_device
from day0.devices.profile import load_profile
from day0.errors import Day0Error
from day0.models.driver import step
from day0.models.source import open_model
from day0.models.toy.model import ToyModel
from day0.models.toy.online import cache_experts
from day0.playbook import ModelPlan

CPU = torch.device("cpu")
SHORT = SoakPlan(seconds=1e6, steps=18, cycle=3, prompt_tokens=(2, 6), new_tokens=(1, 4))
"""Of so many steps, whatever the machine."""
QUIETER = replace(SHORT, steps=24, cycle=1, new_tokens=(1, 2), prompt_tokens=(2, 4))
"""Many quiet points."""


@pytest.fixture(scope="module", autouse=True)
def steady() -> Iterator[None]:
    """Let every call on the CPU take as long as the others: how busy the machine is would be a drift like any other."""
    ticks = itertools.count()
    clock = SimpleNamespace(perf_counter=time.perf_counter, process_time=lambda: 1e-3 * next(ticks))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("day0.analyzers.soak.loop.time", clock)
        yield


@pytest.fixture(scope="module")
def toy() -> nn.Module:
    return open_model(ModelPlan(source="toy", dtype="float32")).build("cpu").eval()


def soaked(model: nn.Module, plan: SoakPlan, device: torch.device = CPU) -> Soaked:
    return soak(model, device, 100, plan, lambda _: None)


def verdicts(seen: Soaked) -> dict[str, str]:
    return {gate.metric: gate.verdict for gate in judge_gates(GATES, figures_of(seen))}


@pytest.fixture(scope="module")
def clean(toy: nn.Module) -> Soaked:
    return soaked(toy, replace(SHORT, steps=30))


def test_a_model_without_a_fault_passes(clean: Soaked) -> None:
    found = verdicts(clean)
    assert set(found.values()) <= {"successful", "inconclusive"}, found
    # Resident memory is noise for so short a time, and time on the CPU takes more cycles.
    assert {name for name, verdict in found.items() if verdict == "inconclusive"} <= {"host_growth", "latency_drift"}
    assert set(figures_of(clean)) == set(METRICS)


def test_sequences_come_and_go_in_batches_that_change(clean: Soaked) -> None:
    assert clean.finished + clean.failed == clean.admitted > 10
    assert len(clean.batches - {0}) >= 2
    assert clean.joined > 0
    assert clean.compared >= 3
    assert clean.most_blocks > 0


def test_an_operator_that_raises_costs_its_own_step(clean: Soaked) -> None:
    assert clean.drilled.startswith("aten::")
    assert 1 <= clean.failed <= SHORT.most_live
    assert clean.drill_failures == []
    assert clean.errors == [], "a drill is no error"


def test_the_same_seed_gives_the_same_soak(toy: nn.Module) -> None:
    plan = replace(SHORT, steps=4, seed=9)
    one, other = soaked(toy, plan), soaked(toy, plan)
    assert (one.tokens, one.finished, one.steps) == (other.tokens, other.finished, other.steps)
    assert soaked(toy, replace(plan, seed=10)).tokens != one.tokens


@pytest.mark.parametrize(
    ("fault", "plan", "gates"),
    [
        ("soak_blocks_kept", SHORT, {"blocks_at_end", "sequences_at_end", "caches_at_end"}),
        ("soak_failed_kept", SHORT, {"blocks_at_end", "drill_failures"}),
        ("soak_wrong_page", replace(SHORT, new_tokens=(3, 6)), {"wrong_sequences"}),
        ("soak_host_grows", QUIETER, {"host_growth"}),
    ],
)
def test_a_planted_leak_or_mix_up_is_seen(toy: nn.Module, fault: str, plan: SoakPlan, gates: set[str]) -> None:
    failed = {
        name for name, verdict in verdicts(soaked(toy, replace(plan, faults=(fault,)))).items() if verdict == "failed"
    }
    assert gates <= failed
    assert failed <= {*gates, "sequences_at_end", "caches_at_end"}


@pytest.fixture(scope="module")
def on_sim() -> tuple[nn.Module, torch.device]:
    """A model of transformers on the simulated device that lacks nothing: memory and time are counted, not measured."""
    pytest.importorskip("transformers")
    device = open_torch_device(load_profile("null"))
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    sizes |= {"num_hidden_layers": 1, "vocab_size": 100}
    spec = open_model(ModelPlan(source="hf:llama", set=dict(sizes), dtype="float32"))
    return spec.build(str(device)).eval(), device


def test_simulated_time_and_memory_do_not_drift(on_sim: tuple[nn.Module, torch.device]) -> None:
    seen = soaked(on_sim[0], replace(QUIETER, steps=20), on_sim[1])
    assert seen.simulated
    found = verdicts(seen)
    assert found["latency_drift"] == found["device_growth"] == "successful"
    assert figures_of(seen)["device_growth"] == Figure(
        0.0, low=0.0, high=0.0, samples=len(seen.quiet) - 2, unit="B/1000 tokens"
    )
    assert found["wrong_sequences"] == "successful"
    assert seen.joined == 0, "caches of transformers stay apart"
    assert figures_of(seen)["caches_at_end"] == 0.0


@pytest.mark.parametrize(
    ("fault", "gates"), [("soak_slows", {"latency_drift"}), ("soak_device_grows", {"device_growth"})]
)
def test_a_planted_drift_is_seen(on_sim: tuple[nn.Module, torch.device], fault: str, gates: set[str]) -> None:
    seen = soaked(on_sim[0], replace(QUIETER, steps=20, faults=(fault,)), on_sim[1])
    failed = {name for name, verdict in verdicts(seen).items() if verdict == "failed"}
    assert gates <= failed <= {*gates, "host_growth"}, "what lies on a simulated device lies on the host"


def test_a_step_that_fails_unasked_is_an_error_and_the_rest_goes_on(toy: nn.Module) -> None:
    calls = 0

    def fail(module: nn.Module, args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 12:
            raise RuntimeError("out of something\nsecond line")

    handle = toy.get_submodule("layers.3").register_forward_pre_hook(fail)
    try:
        seen = soaked(toy, replace(SHORT, drill=False))
    finally:
        handle.remove()
    assert len(seen.errors) == 1
    assert seen.errors[0].endswith("RuntimeError: out of something")
    found = verdicts(seen)
    assert found["errors"] == "failed"
    assert found["blocks_at_end"] == found["sequences_at_end"] == found["caches_at_end"] == "successful"
    assert seen.finished > 3


def test_what_always_fails_ends_the_soak(toy: nn.Module) -> None:
    def fail(module: nn.Module, args: Any) -> None:
        raise RuntimeError("broken")

    engine_needs = 1  # its first call, which begins the pool
    seen_calls = 0

    def later(module: nn.Module, args: Any) -> None:
        nonlocal seen_calls
        seen_calls += 1
        if seen_calls > engine_needs:
            fail(module, args)

    handle = toy.get_submodule("layers.0").register_forward_pre_hook(later)
    try:
        seen = soaked(toy, replace(SHORT, steps=100_000, drill=False))
    finally:
        handle.remove()
    assert 20 <= len(seen.errors) < 40
    figures = figures_of(seen)
    assert isinstance(figures["wrong_sequences"], Figure)
    assert figures["wrong_sequences"].value is None, "nothing was compared, and that is not called right"


def test_the_pool_gives_what_a_cache_of_ones_own_gives(toy: ToyModel) -> None:
    engine = PoolEngine(toy, CPU)
    first_BS = torch.arange(8).reshape(1, 8)
    second_BS = torch.tensor([[5, 4, 3, 2, 1, 9, 7, 8], [11, 12, 13, 14, 15, 16, 17, 18]])
    one_BV, one = engine.prefill(first_BS)
    two_BV, two = engine.prefill(second_BS)
    assert torch.equal(one_BV, step(toy, first_BS).logits_BSV[:, -1])
    both = engine.join([one, two])
    tokens_B1 = torch.tensor([[1], [2], [3]])
    got_BV, both = engine.decode(tokens_B1, both)
    right = step(toy, torch.cat((first_BS, second_BS)))
    right_BV = step(toy, tokens_B1, right.cache).logits_BSV[:, -1]
    assert torch.allclose(got_BV, right_BV, rtol=1e-4, atol=1e-5)
    left = engine.keep(both, [0, 2])
    got_BV, left = engine.decode(tokens_B1[:2], left)
    assert engine.held().sequences == 2
    engine.free(left)
    assert engine.held().sequences == engine.held().blocks == 0
    assert two_BV.shape == (2, toy.config.vocab_size)


def test_a_call_that_raises_leaves_the_pool_as_it_was(toy: ToyModel) -> None:
    engine = PoolEngine(toy, CPU)
    _, batch = engine.prefill(torch.arange(5)[None])
    before = engine.pages
    with pytest.raises(IndexError):
        engine.decode(torch.tensor([[10_000]]), batch)
    assert engine.pages is before
    assert engine.decode(torch.tensor([[3]]), batch)[0].shape == (1, toy.config.vocab_size)


def test_a_slot_of_an_expert_that_is_held_is_counted(toy: ToyModel) -> None:
    model = open_model(ModelPlan(source="toy", dtype="float32")).build("cpu").eval()
    assert isinstance(model, ToyModel)
    cache = cache_experts(model, slots=8)
    assert expert_caches(model) == (cache,)
    assert soaked(model, replace(SHORT, steps=6)).experts_held == 0
    with cache._changed:
        cache.table.take(cache.table.begin(), 0, [1])
    assert experts_held((cache,)) == 1
    assert verdicts(soaked(model, replace(SHORT, steps=3)))["experts_held"] == "failed"
    cache.close()


def test_another_token_is_explained_by_a_margin_that_small_alone(toy: nn.Module) -> None:
    prompt = (1, 2, 3, 4)
    first = step(toy, torch.tensor([prompt])).logits_BSV[0, -1].float()
    best = int(first.argmax())
    assert compare_alone(toy, CPU, prompt, [best], first[None]) is None
    other = int(first.topk(2).indices[1])
    wrong = compare_alone(toy, CPU, prompt, [other], first[None])
    assert wrong is not None
    assert "whose margin is" in wrong.reason
    far = compare_alone(toy, CPU, prompt, [best], -first[None])
    assert far is not None
    assert far.distance == pytest.approx(2.0)
    assert compare_alone(toy, CPU, prompt, [best], torch.full_like(first[None], float("nan"))) is not None


def test_a_fault_that_does_not_exist_is_refused(toy: nn.Module) -> None:
    with pytest.raises(Day0Error, match="no such fault of a soak") as caught:
        soaked(toy, replace(SHORT, faults=("soak_slow",)))
    assert "soak_slows" in caught.value.hint


@pytest.mark.slow
@pytest.mark.parametrize("fault", sorted(SOAK_FAULTS))
def test_a_longer_soak_sees_every_fault(toy: nn.Module, fault: str, on_sim: tuple[nn.Module, torch.device]) -> None:
    place: Callable[..., Soaked] = soaked
    simulated = fault in ("soak_slows", "soak_device_grows")
    model, device = on_sim if simulated else (toy, CPU)
    seen = place(model, SoakPlan(seconds=10.0, faults=(fault,)), device)
    assert "failed" in verdicts(seen).values()


@pytest.mark.slow
def test_a_minute_without_a_fault(toy: nn.Module) -> None:
    seen = soaked(toy, SoakPlan(seconds=60.0))
    assert "failed" not in verdicts(seen).values()
    assert verdicts(seen)["host_growth"] == "successful" or seen.tokens < 2_000
