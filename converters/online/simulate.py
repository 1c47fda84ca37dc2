"""What a cache would do on recorded routing: the same bookkeeping, without weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from day0.converters.online.routing import Routing
from day0.converters.online.slots import POLICIES, SPLITS, Counts, Plan, SlotTable

__all__ = ["Simulated", "default_sizes", "simulate", "sweep"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """One policy with one number of slots."""

    plan: Plan
    hits: int
    misses: int
    evictions: int
    unkept: int
    rounds: int

    @property
    def hit_rate(self) -> float:
        """Share of the needed experts that lay there already."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0


def simulate(routing: Routing, plan: Plan) -> Simulated:
    """Run the calls through the bookkeeping, one after the other."""
    table = SlotTable(_used(routing, plan))
    for layer, needed in routing.needs():
        step, left = table.begin(), list(needed)
        while left:
            held = table.take(step, layer, left)
            there = {one.expert for one in held}
            left = [expert for expert in left if expert not in there]
            table.release(held)
    return _result(plan, table.counts)


def _used(routing: Routing, plan: Plan) -> Plan:
    """Return the plan without slots that stay empty: with a slot for each expert of each layer, all others do."""
    chosen: dict[int, set[int]] = {}
    for layer, needed in routing.needs():
        chosen.setdefault(layer, set()).update(needed)
    most = routing.layers * max((len(one) for one in chosen.values()), default=0)
    return replace(plan, slots=min(plan.slots, most), scratch=min(plan.scratch, max(1, routing.per_step())))


def _result(plan: Plan, counts: Counts) -> Simulated:
    return Simulated(
        plan=plan,
        hits=counts.hits,
        misses=counts.misses,
        evictions=counts.evictions,
        unkept=counts.unkept,
        rounds=counts.rounds,
    )


def default_sizes(routing: Routing) -> tuple[int, ...]:
    """Return numbers of slots worth a look: fractions and multiples of what a decoding step needs, up to all experts."""
    width = max((len(row) for call in routing.calls for row in call.chosen_NK), default=1)
    need, most = routing.layers * max(1, width), routing.layers * routing.experts
    found = {max(1, need // 4), max(1, need // 2), need, 2 * need, 4 * need, 8 * need, most}
    return tuple(sorted(size for size in found if size <= most))


def sweep(
    routing: Routing,
    sizes: Sequence[int],
    *,
    policies: Iterable[str] = POLICIES,
    splits: Iterable[str] = SPLITS,
    scratch: int | None = None,
) -> tuple[Simulated, ...]:
    """Simulate every combination; `scratch` slots are by default what one call needs at most."""
    spare = max(1, routing.per_step()) if scratch is None else scratch
    splits = tuple(splits)
    return tuple(
        simulate(routing, Plan(layers=routing.layers, slots=size, scratch=spare, policy=policy, split=split))
        for policy in policies
        for split in splits
        for size in sizes
    )
