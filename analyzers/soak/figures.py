"""From what a soak has seen to figures with intervals, for gates to decide on."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable

from day0.analyzers.canary.gates import Figure
from day0.analyzers.soak.loop import Quiet, Soaked
from day0.analyzers.soak.trend import LEAST, theil_sen
from day0.playbook import Gate

__all__ = ["GATES", "METRICS", "figures_of", "latency_drift"]

GATES = (
    Gate(metric="errors", rule="==", limit=0),
    Gate(metric="drill_failures", rule="==", limit=0),
    Gate(metric="blocks_at_end", rule="==", limit=0),
    Gate(metric="sequences_at_end", rule="==", limit=0),
    Gate(metric="caches_at_end", rule="==", limit=0),
    Gate(metric="experts_held", rule="==", limit=0),
    Gate(metric="wrong_sequences", rule="==", limit=0, inconclusive="fail"),
    Gate(metric="device_growth", rule="<=", limit=1024, inconclusive="pass"),
    Gate(metric="host_growth", rule="<=", limit=256 * 1024, inconclusive="pass"),
    Gate(metric="latency_drift", rule="<=", limit=0.1, inconclusive="pass"),
)
"""Growth is in bytes for each 1,000 tokens. A short soak does not decide it, and that is no failure."""

METRICS: dict[str, str] = {
    "steps": "steps, each one decode of every batch that lives",
    "tokens": "tokens that were generated",
    "sequences": "sequences that ended with all their tokens",
    "failed_sequences": "sequences that a failed step cost, those of the drill included",
    "batch_sizes": "different sizes of batches",
    "joins": "batches that became one",
    "errors": "steps that failed and were no drill",
    "drills": "operators that were made to raise once",
    "drill_failures": "drills that cost more than the sequences of their step",
    "blocks_at_end": "pages that are owned although no sequence lives",
    "sequences_at_end": "sequences that an engine still has although none lives",
    "caches_at_end": "caches of batches that somebody keeps although no sequence lives",
    "experts_held": "slots of experts that were held between two steps, at the worst moment",
    "most_blocks": "most pages owned at one time",
    "wasted_share": "slots in owned pages without a token, on average",
    "scattered_share": "1 - longest run of free pages over all free pages, on average",
    "compared_sequences": "sequences that were decoded once more alone",
    "wrong_sequences": "sequences that went another way than alone, beyond what rounding explains",
    "device_growth": "bytes on the device by which each 1,000 tokens make it fuller, at moments without sequences",
    "host_growth": "the same on the host",
    "latency_drift": "how much slower a step is at the end than a like step at the beginning, as a share",
    "quiet_points": "moments without sequences at which memory was compared",
    "token_s": "median seconds of a step of decode",
}

WARM_UP = 2
"""Quiet points that are not compared: pools grow, libraries load."""
WARM_SHARE = 0.1
"""Of the steps, whose time is not compared."""
LEAST_ALIKE = 4
LEAST_REAL = 12
"""Cycles, where time is real."""
ONCE_HOST, ONCE_DEVICE = 16 << 20, 1 << 20
"""Bytes that may be taken once: arenas of the allocator, caches of kernels, workspaces."""


def figures_of(seen: Soaked) -> dict[str, float | Figure]:
    """Return every figure of METRICS."""
    last = seen.quiet[-1].held
    decode = [one.seconds for one in seen.latencies.all() if one.alike[0] == "decode"]
    return {
        "steps": float(seen.steps),
        "tokens": float(seen.tokens),
        "sequences": float(seen.finished),
        "failed_sequences": float(seen.failed),
        "batch_sizes": float(len(seen.batches)),
        "joins": float(seen.joined),
        "errors": float(len(seen.errors)),
        "drills": float(bool(seen.drilled)),
        "drill_failures": float(len(seen.drill_failures)),
        "blocks_at_end": float(last.blocks),
        "sequences_at_end": float(last.sequences),
        "caches_at_end": float(last.caches),
        "experts_held": float(seen.experts_held),
        "most_blocks": float(seen.most_blocks),
        "wasted_share": seen.wasted.value,
        "scattered_share": seen.scattered.value,
        "compared_sequences": float(seen.compared),
        "wrong_sequences": _wrong(seen),
        "device_growth": _growth(seen.quiet, lambda one: one.memory.device, ONCE_DEVICE),
        "host_growth": _growth(seen.quiet, lambda one: one.memory.host, ONCE_HOST),
        "latency_drift": latency_drift(seen),
        "quiet_points": float(len(seen.quiet)),
        "token_s": Figure(statistics.median(decode), unit="s") if decode else Figure(None, why="nothing was decoded"),
    }


def _wrong(seen: Soaked) -> float | Figure:
    if not seen.compared:
        return Figure(None, why="no sequence ended, so that none was decoded once more alone")
    return float(len(seen.wrong))


def _growth(quiet: list[Quiet], size: Callable[[Quiet], int], once: int) -> Figure:
    """Return bytes for each 1,000 tokens, from moments at which nothing is held.

    The interval is wide enough below for `once` bytes that are taken once and never again: a short soak cannot tell
    them from a leak, and a long one can.
    """
    points = quiet[WARM_UP:]
    found = theil_sen([one.tokens / 1000.0 for one in points], [float(size(one)) for one in points])
    if found is None:
        why = f"{len(points)} quiet points after the first {WARM_UP}, and an interval takes {LEAST}: give it more time"
        return Figure(None, why=why)
    span = (points[-1].tokens - points[0].tokens) / 1000.0
    low = found.low - once / span if found.low > 0.0 else found.low
    return Figure(found.slope, low=low, high=found.high, samples=found.samples, unit="B/1000 tokens")


def latency_drift(seen: Soaked) -> Figure:
    """Return by which share steps got slower from the first cycle to the last.

    Each step is held beside the median of those like it, and each cycle is one sample: what slows a machine down for a
    while slows many steps in a row, and they are no samples of their own. Real time needs more cycles than simulated.
    """
    decode = [one for one in seen.latencies.all() if one.alike[0] == "decode"]
    decode = decode[int(len(decode) * WARM_SHARE) :]
    alike: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for one in decode:
        alike[one.alike].append(one.seconds)
    usual = {key: statistics.median(times) for key, times in alike.items() if len(times) >= LEAST_ALIKE}
    cycles: dict[int, list[float]] = defaultdict(list)
    for one in decode:
        if usual.get(one.alike):
            cycles[one.cycle].append(one.seconds / usual[one.alike])
    least = LEAST if seen.simulated else LEAST_REAL
    found = theil_sen([float(n) for n in cycles], [statistics.median(found) for found in cycles.values()])
    if found is None or len(cycles) < least:
        return Figure(
            None, why=f"{len(cycles)} cycles have steps that are alike, and it takes {least}: give it more time"
        )
    span = max(cycles) - min(cycles)
    return Figure(found.slope * span, low=found.low * span, high=found.high * span, samples=found.samples)
