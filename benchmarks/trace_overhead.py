"""What tracing the default config of DeepSeek-V3.2 (671 billion parameters) costs: time, memory, time by layers.

Time is against the untraced meta forward of the same model in the same process, and both levels are recorded.
The first two figures have marks: at most 1.6, and under 600 MB.
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

from day0.analyzers.trace import trace_model
from day0.models.driver import step
from day0.models.source import open_model
from day0.models.spec import ModelSpec
from day0.models.workload import Phase, token_ids
from day0.playbook import ModelPlan

TOKENS = 64
LAYERS = (1, 10, 100)
PHASE = Phase(name="prefill", batch=1, tokens=TOKENS, context=0, reason="benchmark")


def main() -> None:
    """Time the untraced forward and the traced one in turns; building the model is left out of both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each is timed")
    rounds = parser.parse_args().rounds
    _overhead(rounds)
    # Before the hundred layers, which are more than the model has.
    print(f"figure: peak_rss_mb {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}")
    _linear(rounds)


def _overhead(rounds: int) -> None:
    spec, forward = _built({})
    plain, traced = [], []
    forward()  # the first forward compiles caches that both then use
    for _ in range(rounds):
        plain.append(_seconds(forward))
        traced.append(_seconds(lambda: trace_model(spec, (PHASE,), mode="meta")))
    ours, theirs = statistics.median(traced), statistics.median(plain)
    trace = trace_model(spec, (PHASE,), mode="meta")
    functions = sum(sum(one.counts.values()) for one in trace.calls)
    print(f"{trace.phases[0].calls:,} operators below {functions:,} functions")
    print(f"{len(trace.entries)} and {len(trace.calls)} signatures")
    print(f"traced {ours:.2f} s, untraced {theirs:.2f} s, medians of {rounds}")
    print(f"figure: trace_overhead {ours / theirs:.2f}")


def _linear(rounds: int) -> None:
    """Compare what one more layer costs between 1 and 10 with what it costs between 10 and 100."""
    seconds, calls = [], []
    for layers in LAYERS:
        # All layers with experts, so that they are equal.
        spec, _ = _built({"num_hidden_layers": layers, "mlp_layer_types": ["sparse"] * layers})
        trace_model(spec, (PHASE,), mode="meta")
        seconds.append(min(_seconds(lambda spec=spec: trace_model(spec, (PHASE,), mode="meta")) for _ in range(rounds)))
        calls.append(trace_model(spec, (PHASE,), mode="meta").phases[0].calls)
        print(f"{layers:>4} layers: {calls[-1]:>7,} calls in {seconds[-1]:.3f} s")
    few = (seconds[1] - seconds[0]) / (calls[1] - calls[0])
    many = (seconds[2] - seconds[1]) / (calls[2] - calls[1])
    print(f"one more call: {few * 1e6:.1f} µs between 1 and 10 layers, {many * 1e6:.1f} µs between 10 and 100")
    print(f"figure: trace_cost_per_call_growth {many / few:.2f}")


def _built(changes: dict[str, Any]) -> tuple[ModelSpec, Callable[[], object]]:
    """Return the model as a source that is already built, and its untraced forward."""
    spec = open_model(ModelPlan(source="hf:deepseek_v32", set=changes))
    model = spec.build("meta")
    ids_BS = token_ids(spec, PHASE.batch, TOKENS, seed=0).to("meta")
    return dataclasses.replace(spec, build=lambda _: model), lambda: step(model, ids_BS)


def _seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
