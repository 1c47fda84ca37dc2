"""Real workers, both kinds: they give what a case gives in this process, and the same as each other."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch

from day0.analyzers.cases.plan import plan_cases
from day0.analyzers.checking.case import Bench, judge_case
from day0.analyzers.checking.check import Kept, run_cases
from day0.analyzers.checking.limits import Limits
from day0.analyzers.checking.pool import Pool, starter
from day0.analyzers.checking.setting import Loaded, Setting
from day0.analyzers.checking.worker import Place
from day0.devices.open import open_torch_device
from day0.devices.profile import DeviceProfile, load_profile
from day0.playbook import CheckPlan
from day0.records import CaseResult, Lock, Trace
from day0.reference_ops.signatures import describe, signature_id

records = import_module("tests.golden.make").records

CPU = torch.device("cpu")
LOCK = Lock(device="cpu", namespace="base", model="x", entries=())
TWO = load_profile("sim").model_copy(update={"devices": 2})


def _trace() -> Trace:
    calls = {
        "aten::mm": (torch.zeros(5, 7), torch.zeros(7, 3)),
        "aten::silu": (torch.zeros(2, 8, dtype=torch.bfloat16),),
        "aten::native_dropout": (torch.zeros(64), 0.5, True),
    }
    made = next(one for one in records() if isinstance(one, Trace))
    signatures = [describe(op, args, {}) for op, args in calls.items()]
    entries = (made.entries[0].model_copy(update={"id": signature_id(one), "signature": one}) for one in signatures)
    return made.model_copy(update={"entries": tuple(entries)})


@pytest.mark.parametrize("fork", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["forked", "spawned"])
def test_workers_give_what_this_process_gives(tmp_path: Path, fork: bool) -> None:
    plan = CheckPlan(regimes=("ordinary", "wide"), derived=False)
    cases = list(plan_cases(_trace(), plan))
    assert len(cases) >= 5
    limits = Limits()
    loaded = Loaded(device=CPU, lock=LOCK, implementations=(), cases={one.key: one for one in cases}, limits=limits)
    # A spawned worker plans the cases for itself, from the trace.
    setting = Setting(profile=load_profile("cpu"), lock=LOCK, trace=_trace(), plan=plan)
    kept: list[CaseResult] = []
    with Pool(starter(loaded, setting, fork=fork), tmp_path / "work", limits) as pool:
        found = run_cases(pool, cases, LOCK, Kept(done={}, keep=kept.append), lambda *_: None)
    bench = Bench(device=CPU, active=None, lock=LOCK)
    here = tuple(judge_case(case, bench) for case in cases)
    assert [one.model_copy(update={"seconds": None}) for one in found] == [
        one.model_copy(update={"seconds": None}) for one in here
    ]
    assert len(kept) == len(cases)
    assert {one.status for one in found} == {"pass"}


def _on(folder: Path, number: int, profile: DeviceProfile = TWO) -> tuple[int | None, tuple[CaseResult, ...]]:
    """Return the device of a worker that is the pool's `number`-th, and what it finds."""
    plan, limits = CheckPlan(regimes=("ordinary",), derived=True), Limits()
    device, lock = open_torch_device(profile), LOCK.model_copy(update={"device": profile.name})
    cases = list(plan_cases(_trace(), plan, devices=2))
    found = {one.key: one for one in cases}
    loaded = Loaded(device=device, lock=lock, implementations=(), cases=found, limits=limits)
    start = starter(loaded, Setting(profile=profile, lock=lock, trace=_trace(), plan=plan), fork=True)
    with Pool(lambda link, place: start(link, replace(place, device=number)), folder, limits) as pool:
        results = run_cases(pool, cases, lock, Kept(done={}, keep=lambda _: None), lambda *_: None)
        return pool.devices[0], tuple(one.model_copy(update={"seconds": None}) for one in results)


def test_a_worker_finds_the_same_on_every_device(tmp_path: Path) -> None:
    first, second, third = (_on(tmp_path / str(number), number) for number in range(3))
    assert (first[0], second[0], third[0]) == (0, 1, 0)
    assert first[1] == second[1]
    other = [case.status for case in first[1] if "second_device" in case.case]
    assert "pass" in other, "a case on another device than the worker's is among them"


def test_a_device_that_the_profile_names_is_kept(tmp_path: Path) -> None:
    named = TWO.model_copy(update={"torch_device": "sim:0"})
    loaded = Loaded(device=CPU, lock=LOCK, implementations=(), cases={}, limits=Limits())
    setting = Setting(profile=named, lock=LOCK, trace=None, plan=CheckPlan())
    process = starter(loaded, setting, fork=True)(Pipe()[0], Place(log="", board="", parent=0, device=1))
    assert process._args[2].device is None  # type: ignore[attr-defined]  # what the process is given
