"""The toy with experts in a cache, and in batches under a memory limit on `sim`."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from day0.converters.online.simulate import simulate
from day0.devices.profile import load_profile
from day0.devices.sim.device import open_sim
from day0.devices.sim.state import STATE
from day0.errors import Day0Error
from day0.models.routing import record_routing
from day0.models.toy.calls import references
from day0.models.toy.model import ToyConfig, ToyModel, make_toy
from day0.models.toy.online import batch_experts, cache_experts
from tests.models.toys import ids, toy

SMALL = ToyConfig(num_hidden_layers=2, mla_layers=(2,), dense_layers=1, vision=False, n_experts=32)


def logits(model: ToyModel, tokens_BS: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=tokens_BS).logits
    return found


def test_logits_are_the_same_bits_with_a_cache() -> None:
    model, tokens_BS = toy(dtype=torch.float32), ids(1, 6)
    right = logits(model, tokens_BS)
    cache = cache_experts(model, slots=20, scratch=10, checked=True)
    for _ in range(2):
        assert torch.equal(logits(model, tokens_BS), right)
    assert cache.metrics().hits > 0
    several: tuple[dict[str, Any], ...] = (
        {"slots": 3, "scratch": 1},
        {"slots": 8, "scratch": 2, "threads": 2, "batch": 1},
    )
    for options in several:
        cache = cache_experts(model, checked=True, **options)
        torch.testing.assert_close(logits(model, tokens_BS), right, rtol=1e-4, atol=1e-4)
        assert cache.metrics().rounds > cache.metrics().steps
        cache.close()
    batch_experts(model, 3)
    torch.testing.assert_close(logits(model, tokens_BS), right, rtol=1e-4, atol=1e-4)


def test_the_measured_hit_rate_is_the_simulated_one() -> None:
    model = toy(dtype=torch.float32)
    cache = cache_experts(model, slots=12, policy="lrc")
    routing = record_routing(model, ids(1, 4), 8)
    expected, found = simulate(routing, cache.plan), cache.metrics()
    assert (found.hits, found.misses, found.evictions) == (expected.hits, expected.misses, expected.evictions)
    assert (routing.layers, routing.experts, routing.steps) == (4, 10, 9) and found.hits > 0


def test_without_a_number_all_experts_fit_into_this_machine() -> None:
    cache = cache_experts(toy(dtype=torch.float32))
    assert cache.plan.slots == 40 and cache.plan.scratch == 3
    with pytest.raises(Day0Error, match="no routed experts"):
        cache_experts(make_toy(ToyConfig(dense_layers=5)))


@pytest.fixture
def sim() -> Iterator[torch.device]:
    yield open_sim(load_profile("null"))
    open_sim(load_profile("null"))


def test_experts_in_batches_fit_where_a_layer_does_not(sim: torch.device) -> None:
    tokens_BS = ids(1, 2)
    model = toy(SMALL, torch.float32, references())
    right = logits(model, tokens_BS)
    model = model.to(sim)
    gc.collect()
    # A decoded layer has 32 experts of 24 KiB, and tokens choose six of them at most.
    limit = STATE.allocated_bytes + 600 * 1024
    open_sim(load_profile("null").model_copy(update={"memory_gib": limit / 2**30}))
    with pytest.raises(torch.OutOfMemoryError):
        logits(model, tokens_BS.to(sim))
    batch_experts(model, 2)
    torch.testing.assert_close(logits(model, tokens_BS.to(sim)).cpu(), right, rtol=1e-4, atol=1e-4)


def test_experts_in_a_cache_on_sim_are_the_same_bits(sim: torch.device) -> None:
    # Conversions run in inference mode, where views of tensors on sim could not be made.
    tokens_BS = ids(1, 4)
    model = toy(SMALL, torch.float32, references())
    right = logits(model, tokens_BS)
    model = model.to(sim)
    cache = cache_experts(model, slots=20, scratch=12, checked=True)
    for _ in range(2):
        assert torch.equal(logits(model, tokens_BS.to(sim)).cpu(), right)
    assert cache.metrics().hits > 0
    threaded = cache_experts(model, slots=8, scratch=2, threads=2, batch=1, checked=True)
    # Experts in several rounds are added in another order: rounding of float32, and no more.
    torch.testing.assert_close(logits(model, tokens_BS.to(sim)).cpu(), right, rtol=1e-4, atol=1e-4)
    threaded.close()
