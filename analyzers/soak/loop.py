"""The soak itself: sequences arrive, are decoded in batches that change, end, and are looked at alone.

Shape suffixes: B sequences, S tokens, V vocabulary.
"""

from __future__ import annotations

import contextlib
import random
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from day0.analyzers.soak.alone import Wrong, compare_alone
from day0.analyzers.soak.drill import Drill, DrillError
from day0.analyzers.soak.engine import Engine, engine_for
from day0.analyzers.soak.held import Held, Memory, expert_caches, experts_held, memory_now
from day0.analyzers.soak.plan import SoakPlan, arrivals
from day0.analyzers.soak.planted import Planted
from day0.devices.open import device_counts, synchronize
from day0.errors import USER_ERRORS
from day0.registry.call_guard import RefusedCall
from day0.registry.results import WrongResult

__all__ = ["Latencies", "Latency", "Mean", "Quiet", "Sequence", "Soaked", "soak"]

STEP_ERRORS: tuple[type[BaseException], ...] = (*USER_ERRORS, WrongResult, RefusedCall)
"""What a model or a kernel may raise in a step; it costs the sequences of that step."""
MOST_ERRORS = 20
"""Unplanned ones, after which there is no point in going on."""
BUCKET = 16
"""Tokens of context within which steps count as alike."""
DRILL_AT = 4
"""The step from which on an operator may be made to raise."""
KEPT = 32
"""Sequences that wait to be decoded alone."""


@dataclass(kw_only=True, eq=False)
class Sequence:
    """One sequence."""

    number: int
    prompt: tuple[int, ...]
    wanted: int
    tokens: list[int] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    """[V] of each token, where it will be looked at."""

    @property
    def done(self) -> bool:
        """Whether it has all its tokens."""
        return len(self.tokens) >= self.wanted


@dataclass(kw_only=True, eq=False)
class _Group:
    """Sequences that are decoded together; rows of the engine's batch, ended ones among them where it cannot let go."""

    rows: list[Sequence]
    batch: Any
    length: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Latency:
    """How long one call took. Steps are alike that have the same kind, batch and context up to a bucket."""

    cycle: int
    """Quiet points before it."""
    seconds: float
    alike: tuple[str, int, int]


@dataclass(kw_only=True)
class Latencies:
    """All calls in few bytes each: a soak of days must not grow by its own notes."""

    cycles: array[int] = field(default_factory=lambda: array("l"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    kinds: array[int] = field(default_factory=lambda: array("l"))
    names: dict[tuple[str, int, int], int] = field(default_factory=dict)

    def add(self, one: Latency) -> None:
        """Keep one call."""
        self.cycles.append(one.cycle)
        self.seconds.append(one.seconds)
        self.kinds.append(self.names.setdefault(one.alike, len(self.names)))

    def all(self) -> Iterator[Latency]:
        """Yield them in their order."""
        names = list(self.names)
        for cycle, seconds, kind in zip(self.cycles, self.seconds, self.kinds, strict=True):
            yield Latency(cycle=cycle, seconds=seconds, alike=names[kind])


@dataclass(kw_only=True)
class Mean:
    """A mean that keeps no samples."""

    count: int = 0
    total: float = 0.0

    def add(self, value: float) -> None:
        """Take one more value into account."""
        self.count, self.total = self.count + 1, self.total + value

    @property
    def value(self) -> float:
        """The mean; 0 of nothing."""
        return self.total / self.count if self.count else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Quiet:
    """What is held while no sequence lives."""

    step: int
    tokens: int
    """So far."""
    memory: Memory
    held: Held


@dataclass(kw_only=True)
class Soaked:
    """All that a soak has seen."""

    steps: int = 0
    tokens: int = 0
    admitted: int = 0
    finished: int = 0
    failed: int = 0
    batches: set[int] = field(default_factory=set)
    joined: int = 0
    latencies: Latencies = field(default_factory=Latencies)
    quiet: list[Quiet] = field(default_factory=list)
    wrong: list[Wrong] = field(default_factory=list)
    compared: int = 0
    drilled: str = ""
    """The operator that raised in the drill."""
    drill_failures: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    most_blocks: int = 0
    wasted: Mean = field(default_factory=Mean)
    scattered: Mean = field(default_factory=Mean)
    experts_held: int = 0
    """Slots that were held between steps, at the worst moment."""
    seconds: float = 0.0
    simulated: bool = False
    """Whether latencies are of simulated time, which other programs do not change."""


def soak(
    model: nn.Module, device: torch.device, vocabulary: int, plan: SoakPlan, progress: Callable[[str], None]
) -> Soaked:
    """Run sequences until the time is over, then finish what runs.

    Whatever a step raises costs the sequences of that step alone. Raises what building the engine raises.
    """
    with torch.no_grad():
        run = _Run(model=model, device=device, vocabulary=vocabulary, plan=plan, engine=engine_for(model, device))
        return run.all(progress)


@dataclass(kw_only=True)
class _Run:
    model: nn.Module
    device: torch.device
    vocabulary: int
    plan: SoakPlan
    engine: Engine
    seen: Soaked = field(default_factory=Soaked)
    groups: list[_Group] = field(default_factory=list)
    waiting: deque[Sequence] = field(default_factory=lambda: deque(maxlen=KEPT))

    def all(self, progress: Callable[[str], None]) -> Soaked:
        self.dice = random.Random(self.plan.seed)  # noqa: S311 - a workload, not a secret
        self.ids = torch.Generator().manual_seed(self.plan.seed)
        self.planted = Planted(self.plan.faults, self.engine, self.device)
        self.experts = expert_caches(self.model)
        self.seen.simulated = "sim_seconds" in device_counts(self.device)
        began = time.perf_counter()
        while not self._over(began):
            for _ in range(self.plan.cycle):
                self._step(arrives=True)
                if self._over(began):
                    break
            self._drain()
            progress(f"soak: {self.seen.steps} steps, {self.seen.tokens} tokens, {self.seen.finished} sequences")
        self.seen.seconds = time.perf_counter() - began
        return self.seen

    def _over(self, began: float) -> bool:
        if self.plan.steps is not None and self.seen.steps >= self.plan.steps:
            return True
        return time.perf_counter() - began >= self.plan.seconds or len(self.seen.errors) >= MOST_ERRORS

    def _drain(self) -> None:
        """Finish what runs, look at one sequence alone, and note what is held then."""
        while self.groups:
            self._step(arrives=False)
        if self.waiting:
            # The longest has met the most other sequences.
            self._compare(max(self.waiting, key=lambda one: len(one.tokens)))
            self.waiting.clear()
        memory = memory_now(self.device)
        quiet = Quiet(step=self.seen.steps, tokens=self.seen.tokens, memory=memory, held=self.engine.held())
        self.seen.quiet.append(quiet)

    def _compare(self, sequence: Sequence) -> None:
        try:
            wrong = compare_alone(
                self.model, self.device, sequence.prompt, sequence.tokens, torch.stack(sequence.logits)
            )
        except STEP_ERRORS as error:
            self._error("alone", error)
            return
        self.seen.compared += 1
        if wrong is not None:
            self.seen.wrong.append(wrong)

    # --------------------------------------------------------------------------------------------- steps

    def _step(self, *, arrives: bool) -> None:
        seen = self.seen
        seen.steps += 1
        if arrives:
            self._admit()
        self._join()
        self.planted.step(seen.steps)
        for group in list(self.groups):
            self._decode(group)
        seen.batches.update(len(group.rows) for group in self.groups)
        held = self.engine.held()
        seen.most_blocks = max(seen.most_blocks, held.blocks)
        if held.blocks:
            seen.wasted.add(held.wasted_share)
            seen.scattered.add(held.scattered_share)
        seen.experts_held = max(seen.experts_held, experts_held(self.experts))

    def _admit(self) -> None:
        live = sum(len(group.rows) for group in self.groups)
        found = arrivals(self.plan, self.dice, live, tuple(group.length for group in self.groups))
        if found is None:
            return
        shape = (len(found.new_tokens), found.prompt_tokens)
        ids_BS = torch.randint(0, self.vocabulary, shape, generator=self.ids)
        rows = [
            Sequence(number=self.seen.admitted + row, prompt=tuple(ids_BS[row].tolist()), wanted=wanted)
            for row, wanted in enumerate(found.new_tokens)
        ]
        self.seen.admitted += len(rows)
        made = self._call("prefill", ids_BS, None, rows, found.prompt_tokens)
        if made is not None:
            group = _Group(rows=rows, batch=made[1], length=found.prompt_tokens)
            self._take(group, made[0])

    def _join(self) -> None:
        """Let batches that have come to the same length become one, half of the time."""
        if not self.engine.joins or self.dice.random() < 0.5:
            return
        by_length: dict[int, list[_Group]] = {}
        for group in self.groups:
            by_length.setdefault(group.length, []).append(group)
        for length, alike in by_length.items():
            if len(alike) > 1:
                rows = [row for group in alike for row in group.rows]
                batch = self.engine.join([group.batch for group in alike])
                self.groups = [one for one in self.groups if one not in alike]
                self.groups.append(_Group(rows=rows, batch=batch, length=length))
                self.seen.joined += 1

    def _decode(self, group: _Group) -> None:
        tokens_B1 = torch.tensor([[row.tokens[-1]] for row in group.rows])
        self.groups.remove(group)
        made = self._call("decode", tokens_B1, group.batch, group.rows, group.length)
        if made is not None:
            self._take(_Group(rows=group.rows, batch=made[1], length=group.length + 1), made[0])

    def _call(
        self, kind: str, ids_BS: torch.Tensor, batch: Any, rows: list[Sequence], length: int
    ) -> tuple[torch.Tensor, Any] | None:
        """Make one timed call; None where it raised, and then its sequences are let go."""
        with self._drilling(kind) as drill:
            began = self._clock()
            try:
                made = self.engine.prefill(ids_BS) if kind == "prefill" else self.engine.decode(ids_BS, batch)
            except STEP_ERRORS as error:
                self._failed(error, drill, batch, rows)
                return None
            self.planted.work(self.seen.steps)
            now = self._clock()
        if drill is None:
            alike = (kind, len(rows), length // BUCKET if kind == "decode" else length)
            self.seen.latencies.add(Latency(cycle=len(self.seen.quiet), seconds=now - began, alike=alike))
        return made

    def _take(self, group: _Group, logits_BV: torch.Tensor) -> None:
        """Choose the next tokens, and let those go that have ended."""
        for row, sequence in enumerate(group.rows):
            if not sequence.done:
                sequence.tokens.append(int(logits_BV[row].argmax()))
                sequence.logits.append(logits_BV[row])
                self.seen.tokens += 1
                if sequence.done:
                    self._ended(sequence)
        left = [row for row, sequence in enumerate(group.rows) if not sequence.done]
        if not left:
            self.planted.free(group.batch)
            return
        if len(left) < len(group.rows):
            batch = self.planted.keep(group.batch, left)
            if batch is not None:
                group = _Group(rows=[group.rows[row] for row in left], batch=batch, length=group.length)
        self.groups.append(group)

    def _ended(self, sequence: Sequence) -> None:
        self.seen.finished += 1
        self.waiting.append(sequence)
        self.planted.ended()

    # --------------------------------------------------------------------------------------------- errors

    @contextlib.contextmanager
    def _drilling(self, kind: str) -> Iterator[Drill | None]:
        """Once, when some sequences have come, let an operator raise in a decode."""
        wanted = self.plan.drill and kind == "decode" and self.seen.steps >= DRILL_AT and not self.seen.drilled
        if not wanted:
            yield None
            return
        drill = Drill()
        with drill:
            yield drill
        self.seen.drilled = drill.operator

    def _failed(self, error: BaseException, drill: Drill | None, batch: Any, rows: list[Sequence]) -> None:
        others = self.engine.held().sequences
        if batch is not None:
            self.planted.free(batch, failed=True)
        self.seen.failed += len(rows)
        if isinstance(error, DrillError) and drill is not None:
            left = self.engine.held().sequences
            if batch is not None and self.engine.joins and left != others - len(rows):
                self.seen.drill_failures.append(f"{others} sequences were held, and {left} are without its {len(rows)}")
            return
        self._error(f"step {self.seen.steps}", error)

    def _error(self, where: str, error: BaseException) -> None:
        first = (str(error).strip().splitlines() or [""])[0][:200]
        self.seen.errors.append(f"{where}: {type(error).__name__}: {first}")

    def _clock(self) -> float:
        synchronize(self.device)
        if self.seen.simulated:
            return device_counts(self.device)["sim_seconds"]
        # On the CPU its own time: what others do there is no drift.
        return time.process_time() if self.device.type == "cpu" else time.perf_counter()
