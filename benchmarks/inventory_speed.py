"""How long the inventory of the 671-billion-parameter model takes, and how it grows with the number of layers.

The trace is made first and not timed. The first inventory of a process loads what torch loads late: that one counts.
Layers are repeated, so that 100 times as many make 100 times as many calls, and hardly more signatures.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from day0.analyzers.inventory import take_inventory
from day0.analyzers.trace import trace_model
from day0.devices.profile import DeviceProfile, load_profile
from day0.models.source import open_model
from day0.models.workload import plan_phases
from day0.playbook import ModelPlan, WorkloadPlan
from day0.records import Trace
from day0.reference_ops.torch_ops import register_operators
from day0.registry.collect import collect


def main() -> None:
    """Print a table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="hf:deepseek_v32")
    parser.add_argument("--device", default="s5000")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    register_operators()
    profile = load_profile(options.device)
    whole = _trace(options.model, {})
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        first = fresh.submit(_first, whole.model_dump_json(), options.device).result()
    seconds = _seconds(whole, profile, options.repeat)
    print(f"{options.model} on {options.device}: {first:.2f} s in a new process, then {seconds:.2f} s")
    per_call = {}
    for count in (1, 10, 100):
        trace = _trace(options.model, {"num_hidden_layers": 4 * count})
        calls = sum(phase.calls for phase in trace.phases)
        took = _seconds(trace, profile, options.repeat)
        per_call[count] = took / calls
        print(f"{4 * count:4} layers: {calls:9,} calls, {len(trace.entries):5} signatures, {took:.3f} s")
    print(f"figure: inventory_seconds {first:.2f}")
    print(f"figure: inventory_cost_100_over_1 {per_call[100] / per_call[1]:.3f}")


def _first(text: str, device: str) -> float:
    """In a process of its own, with the torch modules that are loaded late."""
    register_operators()
    return _seconds(Trace.model_validate_json(text), load_profile(device), 1)


def _trace(source: str, changes: dict[str, int]) -> Trace:
    spec = open_model(ModelPlan(source=source, set=dict(changes)))
    return trace_model(spec, plan_phases(spec, WorkloadPlan()), mode="meta")


def _seconds(trace: Trace, profile: DeviceProfile, repeat: int) -> float:
    known = collect()
    best = float("inf")
    for _ in range(repeat):
        began = time.perf_counter()
        take_inventory(trace, profile, known)
        best = min(best, time.perf_counter() - began)
    return best


if __name__ == "__main__":
    main()
