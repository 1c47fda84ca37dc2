"""The memory that a step of one rank takes, predicted on meta: against what torch's allocator says on the CPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from day0.analyzers.ranks.memory import held_bytes, measure_step, predict_step, run_step
from day0.models.source import open_model
from day0.models.workload import token_ids
from day0.playbook import ModelPlan
from day0.reference_ops.torch_ops import register_operators

CPU = torch.device("cpu")
TOKENS = 96


def allocated_peak(run: object) -> int:
    """Return the most bytes that the CPU's allocator gave out at one time, as torch's profiler heard of it."""
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()  # type: ignore[operator]  # a function
    events = [one for one in profile.profiler.kineto_results.events() if one.name() == "[memory]"]
    now = peak = 0
    for one in sorted(events, key=lambda event: event.start_ns()):
        now += one.nbytes()
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize("source", ["hf:llama", "hf:deepseek_v32"])
def test_the_prediction_is_what_the_allocator_gave(source: str) -> None:
    pytest.importorskip("transformers.distributed.expert_parallel")
    spec = open_model(ModelPlan(source=source, shrink=True))
    model, ids_BS = spec.build("cpu"), token_ids(spec, 1, TOKENS + 1, seed=0)
    run_step(model, ids_BS)
    measured = held_bytes(model) + allocated_peak(lambda: run_step(model, ids_BS))
    predicted = predict_step(spec, 1, TOKENS, CPU).bytes
    assert predicted is not None
    assert 0.95 < measured / predicted < 1.05, (measured, predicted)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_of_several_needs_less(ranks: int) -> None:
    pytest.importorskip("transformers.distributed.expert_parallel")
    spec = open_model(ModelPlan(source="hf:deepseek_v32", shrink=True))
    whole, part = (predict_step(spec, count, TOKENS, CPU).bytes for count in (1, ranks))
    assert whole is not None
    assert part is not None
    assert whole / ranks < part < whole


def test_what_operators_of_ours_allocate_is_not_guessed() -> None:
    register_operators()
    found = predict_step(open_model(ModelPlan(source="toy", set={"vision": False})), 1, 8, CPU)
    assert found.bytes is None
    assert "nobody says what day0::" in found.why


def test_a_device_that_counts_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = open_model(ModelPlan(source="toy", set={"vision": False}))
    model, ids_BS = spec.build("cpu"), token_ids(spec, 1, 9, seed=0)
    assert measure_step(model, ids_BS, CPU) is None, "the CPU does not count"
    held = held_bytes(model)
    counts = SimpleNamespace(
        memory_allocated=lambda: held + 32, reset_peak_memory_stats=lambda: None, max_memory_allocated=lambda: held + 99
    )
    monkeypatch.setattr(torch, "cpu", counts)
    found = measure_step(model, ids_BS, CPU)
    assert found is not None
    assert (found.step, found.other, found.allocated) == (67, 32, held + 99)
    stats = {"requested_bytes.all.current": held + 30, "requested_bytes.all.peak": held + 80}
    counts.memory_stats = lambda: stats
    rounded = measure_step(model, ids_BS, CPU)
    assert rounded is not None
    assert (rounded.step, rounded.other) == (50, 30), "without what the allocator rounds up"
