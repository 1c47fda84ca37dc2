"""The whole selftest: all planted faults, all differences that are none, all bundled kernels, and the device as it is."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from day0.analyzers.selftest.bench import lock_for
from day0.analyzers.selftest.choosing import calls_for, parts
from day0.analyzers.selftest.models import ON_MODELS, TOY_MISTAKES
from day0.analyzers.selftest.pool import Pool, Task, open_pool
from day0.analyzers.selftest.selection import refuse_device, select_faults
from day0.analyzers.selftest.subjects import collect_subjects
from day0.analyzers.selftest.usual.load import load_usual
from day0.analyzers.selftest.variants import variant_for
from day0.devices.faults._fault import Fault
from day0.devices.profile import DeviceProfile
from day0.records import FaultScore, RightScore, SelftestReport, Signature
from day0.reference_ops.signatures import signature_id
from day0.reference_ops.torch_ops import register_operators
from day0.registry.collect import collect

__all__ = ["Progress", "run_selftest"]

Progress = Callable[[str, int, int], None]
"""What is done, and how many of how many steps are behind."""

PART = 40
"""Calls that one task looks at."""
MODEL_SEEDS = 3
"""Prompts with which the toy is checked without a fault."""
EACH_FAULT = 16
"""Calls on which one fault is tried."""


def run_selftest(
    profile: DeviceProfile,
    *,
    seeds: int = 10,
    only: Sequence[str] = (),
    jobs: int = 1,
    usual: bool = True,
    signatures: Sequence[Signature] | None = None,
    progress: Progress = lambda *_: None,
) -> SelftestReport:
    """Plant each fault in turn and see whether the check reports it; check what is right and see that it does not.

    `seeds` is over how many seeds of values the bundled kernels and the legitimate differences are checked, `signatures`
    the calls to try; without any, all that `collect_subjects` knows.
    Raises Day0Error for a device that is not simulated: faults are planted there only.
    """
    refuse_device(profile)
    faults = select_faults(only)
    register_operators()
    progress("calls to try", 0, 1)
    signatures = collect_subjects(profile) if signatures is None else signatures
    wanting = [one for one in faults if set(one.needs) - set(profile.dtypes)]
    with _open_work(profile, signatures, jobs=jobs, usual=usual, seeds=seeds, progress=progress) as work:
        scores, right = work.measure([one for one in faults if one not in wanting], whole=not only)
    for fault in wanting:
        # A device without the dtype cannot have the bug: it is tried on the same device with it.
        wider, calls = variant_for(fault, profile, signatures)
        with _open_work(wider, calls, jobs=1, usual=usual, seeds=seeds, progress=progress) as work:
            score, clean = work.planted([fault])
        scores, right = [*scores, *score], [*right, *clean]
    return SelftestReport(
        device=profile.name,
        seeds=seeds,
        usual=tuple(load_usual()) if usual else (),
        faults=tuple(sorted(scores, key=lambda one: (one.family, one.name))),
        right=tuple(_joined(right)),
    )


@contextmanager
def _open_work(
    profile: DeviceProfile, signatures: Sequence[Signature], *, jobs: int, usual: bool, seeds: int, progress: Progress
) -> Iterator[_Work]:
    """Open as many processes as asked for, with a lock for what the device lacks."""
    lock = lock_for(signatures, profile, collect(()))
    with open_pool(profile, signatures, lock, jobs=jobs, usual=usual) as pool:
        by_id = {signature_id(one): one for one in signatures}
        yield _Work(pool=pool, signatures=by_id, seeds=seeds, progress=progress)


@dataclass(kw_only=True)
class _Work:
    """One run, step by step."""

    pool: Pool
    signatures: dict[str, Signature]
    seeds: int
    progress: Progress

    def measure(self, faults: Sequence[Fault], *, whole: bool) -> tuple[list[FaultScore], list[RightScore]]:
        """Try faults on operators and on models; check the device, and the bundled kernels, without one."""
        calls = self._calls(faults)
        needed = list(self.signatures) if whole else sorted({id_ for found in calls.values() for id_ in found})
        scores, right = self._planted(faults, calls)
        right += [one for _, one in self._run("without a fault", [_part("clean", ids) for ids in parts(needed, PART)])]
        scores, more = self._models(scores, whole=whole)
        right += more
        right += self._kernels(None if whole else {op for one in faults for op in one.operators})
        return scores, right

    def planted(self, faults: Sequence[Fault]) -> tuple[list[FaultScore], list[RightScore]]:
        """Try faults on operators only."""
        return self._planted(faults, self._calls(faults))

    def _calls(self, faults: Sequence[Fault]) -> dict[str, list[str]]:
        touches = self._touches()
        return {one.name: calls_for(one.operators, touches, self.signatures, EACH_FAULT) for one in faults}

    def _run(self, title: str, tasks: Sequence[Task]) -> Iterator[tuple[Task, Any]]:
        began = time.monotonic()
        for done, (task, result) in enumerate(self.pool.run(tasks), start=1):
            left = (time.monotonic() - began) / done * (len(tasks) - done)
            self.progress(f"{title}: {task.name}, about {left:.0f} s left", done, len(tasks))
            yield task, result

    def _touches(self) -> dict[str, frozenset[str]]:
        tasks = [_part("touches", ids) for ids in parts(list(self.signatures), PART)]
        found: dict[str, frozenset[str]] = {}
        for _, one in self._run("what calls come to", tasks):
            found |= one
        # In their own order, whichever process was the first.
        return {one: found[one] for one in self.signatures}

    def _planted(
        self, faults: Sequence[Fault], calls: dict[str, list[str]]
    ) -> tuple[list[FaultScore], list[RightScore]]:
        tasks = []
        for fault in faults:
            ids = calls[fault.name]
            if fault.is_fault:
                tasks.append(Task(name=fault.name, method="fault", arguments=(fault.name, ids)))
                continue
            for seed in range(self.seeds):
                tasks.append(Task(name=fault.name, method="difference", arguments=(fault.name, ids, seed)))
        scores: list[FaultScore] = []
        right: list[RightScore] = []
        for task, one in self._run("planted", tasks):
            if task.method == "fault":
                scores.append(one[0])
                right.append(one[1])
            else:
                right.append(one)
        return scores, right

    def _models(self, scores: list[FaultScore], *, whole: bool) -> tuple[list[FaultScore], list[RightScore]]:
        """Try the level of models where it is measured: some families of faults, the toy's own mistakes, the toy itself."""
        names = [one.name for one in scores if one.family in ON_MODELS]
        tasks = [Task(name=name, method="model", arguments=(name,)) for name in names]
        if whole:
            tasks += [Task(name=f"toy: {name}", method="mistake", arguments=(name,)) for name in TOY_MISTAKES]
            tasks += [Task(name="the toy", method="right_model", arguments=(seed,)) for seed in range(MODEL_SEEDS)]
        found: dict[tuple[str, tuple[Any, ...]], Any] = {
            (task.name, task.arguments): one for task, one in self._run("models", tasks)
        }
        joined = [one.model_copy(update={"model": found.get((one.name, (one.name,)), one.model)}) for one in scores]
        joined += [one for one in found.values() if isinstance(one, FaultScore)]
        return joined, [one for one in found.values() if isinstance(one, RightScore)]

    def _kernels(self, operators: set[str] | None) -> list[RightScore]:
        kernels = [one for one in collect(()) if one.kind in ("kernel", "decomposition")]
        tasks = [
            Task(name=str(one.identity), method="kernel", arguments=(str(one.identity), seed))
            for one in kernels
            if operators is None or one.operator in operators
            for seed in range(self.seeds)
        ]
        return [score for _, score in self._run("bundled kernels", tasks)]


def _part(method: str, ids: Sequence[str]) -> Task:
    return Task(name=f"{len(ids)} calls", method=method, arguments=(tuple(ids),))


def _joined(scores: Iterable[RightScore]) -> list[RightScore]:
    """Add up the seeds of each subject."""
    groups: dict[str, list[RightScore]] = defaultdict(list)
    for one in scores:
        groups[one.subject].append(one)
    return [
        RightScore(
            subject=subject,
            level=many[0].level,
            judged=sum(one.judged for one in many),
            alarms=tuple(sorted((alarm for one in many for alarm in one.alarms), key=lambda alarm: alarm.case)),
            usual_judged=sum(one.usual_judged for one in many),
            usual={rule: sum(one.usual.get(rule, 0) for one in many) for rule in many[0].usual},
        )
        for subject, many in sorted(groups.items())
    ]
