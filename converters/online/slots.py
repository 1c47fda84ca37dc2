"""Which expert lies in which slot, and which one has to go: bookkeeping without weights, for a cache and a simulation.

Slots are of two kinds. Kept ones belong to a layer (or to all of them together), and hold experts from step to step.
Scratch ones belong to nobody: they take what a step needs beyond its layer's slots, and are free again afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from day0.errors import Day0Error, near_names

__all__ = ["LEAST_RECENTLY_CONVERTED", "LRU", "POLICIES", "SPLITS", "Counts", "Plan", "Slot", "SlotTable", "Taken"]

LRU, LEAST_RECENTLY_CONVERTED = "lru", "lrc"
POLICIES = (LRU, LEAST_RECENTLY_CONVERTED)
BY_LAYER, SHARED = "layer", "shared"
SPLITS = (BY_LAYER, SHARED)
_ALL, _SCRATCH = -1, -2
"""Homes of slots that belong to all layers together, and to nobody."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How slots are divided and what leaves them first. Raises Day0Error for what cannot be."""

    layers: int
    slots: int
    """Of all layers together, scratch not among them."""
    scratch: int = 1
    policy: str = LRU
    split: str = BY_LAYER

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for name, word, known in (("policy", self.policy, POLICIES), ("split", self.split, SPLITS)):
            if word not in known:
                hint = near_names(word, known) or " or ".join(known)
                raise Day0Error(f"{name} {word}", "there is no such choice", hint=hint)
        for name, size, least in (("layers", self.layers, 1), ("slots", self.slots, 0), ("scratch", self.scratch, 1)):
            if size < least:
                raise Day0Error(name, f"expected at least {least}, got {size}", hint=f"give {least} or more")

    def homes(self) -> list[int]:
        """Return for every slot the layer it belongs to; the first layers get what does not divide."""
        if self.split == SHARED:
            kept = [_ALL] * self.slots
        else:
            each, more = divmod(self.slots, self.layers)
            kept = [layer for layer in range(self.layers) for _ in range(each + (layer < more))]
        return kept + [_SCRATCH] * self.scratch


@dataclass(kw_only=True, slots=True)
class Slot:
    """One place for one expert."""

    number: int
    home: int
    expert: tuple[int, int] | None = None
    """Layer and expert; None where it is empty."""
    references: int = 0
    """Steps that are computing with it: above 0 it is not given away."""
    converted_at: int = 0
    used_at: int = 0
    """Timestamps of one clock, which ticks with every event."""
    step: int = 0
    """The last step that used it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """An expert that a step holds."""

    expert: int
    slot: int
    hit: bool
    """False where it has to be converted first."""


@dataclass(kw_only=True, slots=True)
class Counts:
    """What happened so far; every expert that a step needs is one hit or one miss."""

    steps: int = 0
    rounds: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    unkept: int = 0
    """Misses that went through scratch: the step needed more experts than its layer has slots."""

    @property
    def hit_rate(self) -> float:
        """Share of the needed experts that lay there already; 0 where nothing was needed."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0


class SlotTable:
    """The bookkeeping. Not safe for threads by itself: the cache has a lock around it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.slots = tuple(Slot(number=number, home=home) for number, home in enumerate(plan.homes()))
        self.counts = Counts()
        self._of_home: dict[int, list[Slot]] = {}
        for slot in self.slots:
            self._of_home.setdefault(slot.home, []).append(slot)
        self._where: dict[tuple[int, int], Slot] = {}
        self._clock = 0

    def begin(self) -> int:
        """Return the number of a new step: one layer with the experts that one batch of tokens needs there."""
        self.counts.steps += 1
        return self.counts.steps

    def take(self, step: int, layer: int, wanted: Iterable[int]) -> list[Taken]:
        """Hold those of the wanted experts that there is room for: all that lie there, then others in their order.

        What the step has used, or uses, stays. The rest is for another round, after a `release`; nothing comes back
        only while others hold every slot.
        """
        if not 0 <= layer < self.plan.layers:
            raise ValueError(f"layer {layer} of {self.plan.layers}")
        wanted = list(dict.fromkeys(wanted))
        resident = [expert for expert in wanted if (layer, expert) in self._where]
        found = [self._hold(self._where[layer, expert], step, expert, hit=True) for expert in resident]
        for expert in wanted:
            if (layer, expert) not in self._where:
                slot = self._room(layer, step)
                if slot is None:
                    break
                self._fill(slot, (layer, expert))
                found.append(self._hold(slot, step, expert, hit=False))
        self.counts.rounds += bool(found)
        return found

    def release(self, taken: Iterable[Taken]) -> None:
        """Let go of what `take` gave."""
        for one in taken:
            slot = self.slots[one.slot]
            if slot.references < 1:
                raise ValueError(f"slot {one.slot} is held by nobody")
            slot.references -= 1
            if slot.home == _SCRATCH and not slot.references:
                self._empty(slot)

    def forget(self, slot: int) -> None:
        """Take back what a slot was filled with: the conversion failed."""
        self._empty(self.slots[slot])

    def held(self) -> int:
        """Return how many slots somebody holds."""
        return sum(slot.references > 0 for slot in self.slots)

    def _hold(self, slot: Slot, step: int, expert: int, *, hit: bool) -> Taken:
        self._clock += 1
        slot.references += 1
        slot.used_at, slot.step = self._clock, step
        self.counts.hits += hit
        self.counts.misses += not hit
        return Taken(expert=expert, slot=slot.number, hit=hit)

    def _room(self, layer: int, step: int) -> Slot | None:
        home = _ALL if self.plan.split == SHARED else layer
        kept: Sequence[Slot] = self._of_home.get(home, ())
        free = [slot for slot in kept if not slot.references and (slot.expert is None or slot.step != step)]
        if free:
            return min(free, key=self._rank)
        return next((slot for slot in self._of_home[_SCRATCH] if not slot.references), None)

    def _rank(self, slot: Slot) -> tuple[bool, int]:
        stamp = slot.used_at if self.plan.policy == LRU else slot.converted_at
        return slot.expert is not None, stamp

    def _fill(self, slot: Slot, expert: tuple[int, int]) -> None:
        self.counts.evictions += slot.expert is not None
        self.counts.unkept += slot.home == _SCRATCH
        self._empty(slot)
        self._clock += 1
        slot.expert, slot.converted_at = expert, self._clock
        self._where[expert] = slot

    def _empty(self, slot: Slot) -> None:
        if slot.expert is not None:
            del self._where[slot.expert]
            slot.expert = None
