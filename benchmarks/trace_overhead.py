"""What tracing adds to the meta forward of DeepSeek-V3.2's default config (671 billion parameters), one phase."""

from __future__ import annotations

import dataclasses
import resource
import statistics
import time

from day0.analyzers.trace import trace_model
from day0.models.driver import step
from day0.models.source import open_model
from day0.models.workload import Phase, token_ids
from day0.playbook import ModelPlan

ROUNDS = 5
TOKENS = 64


def main() -> None:
    """Time the untraced forward and the traced one in turns; building the model is left out of both."""
    spec = open_model(ModelPlan(source="hf:deepseek_v32"))
    model = spec.build("meta")
    built = dataclasses.replace(spec, build=lambda _: model)
    ids_BS = token_ids(spec, 1, TOKENS, seed=0).to("meta")
    phase = Phase(name="prefill", batch=1, tokens=TOKENS, context=0, reason="benchmark")
    plain, traced = [], []
    step(model, ids_BS)  # the first forward compiles caches that both then use
    for _ in range(ROUNDS):
        began = time.perf_counter()
        step(model, ids_BS)
        plain.append(time.perf_counter() - began)
        began = time.perf_counter()
        trace_model(built, (phase,), mode="meta")
        traced.append(time.perf_counter() - began)
    ours, theirs = statistics.median(traced), statistics.median(plain)
    print(f"traced {ours:.2f} s, untraced {theirs:.2f} s, medians of {ROUNDS}")
    print(f"figure: trace_overhead {ours / theirs:.2f}")
    print(f"figure: peak_rss_mb {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}")


if __name__ == "__main__":
    main()
