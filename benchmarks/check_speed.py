"""What the guards, the workers and the judging cost: `day0 check` next to a bare loop over the same cases.

Taken are the cases that make one call: those that repeat or split it would measure their calls. The bare loop makes the
inputs and computes what any check has to: the golden in float64, the result in the same dtype,
and the candidate on the device. No worker, no guard, no rule, no journal. Both sides have one process and one thread, and
take turns; the least of the rounds counts: other programs only add. `check_overhead` is check over bare loop, and its mark
is 1.5. Then the whole check of the toy as a user runs it, with one worker for each core, whose mark is 30 s on two cores.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from day0.analyzers.cases.case import Case, Unfillable
from day0.analyzers.cases.copies import copy_to
from day0.analyzers.cases.fill import make_inputs
from day0.analyzers.cases.plan import plan_cases
from day0.analyzers.cases.ways._way import load_ways, no_more
from day0.analyzers.checking.check import Kept, run_cases
from day0.analyzers.checking.limits import Limits
from day0.analyzers.checking.pool import Pool, starter
from day0.analyzers.checking.setting import Loaded, Setting
from day0.analyzers.judging.reference import RUN_ERRORS, references
from day0.cli.rundir import RunFolder
from day0.cli.session import Session
from day0.cli.talk import Talk
from day0.records import Lock, Trace
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import resolve
from day0.reference_ops.torch_ops import register_operators
from day0.registry.dispatch import activate, suspended

MARK, MARK_S = 1.5, 30.0


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each side is timed")
    parser.add_argument("--every", type=int, default=4, help="take one of so many cases")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    register_operators()
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "toy"
        for command in ("trace toy", "inventory --device sim", "register"):
            _day0(*command.split(), "--run", str(run))
        _compare(run, asked.rounds, asked.every)
        began = time.perf_counter()
        _day0("check", "--level", "ops", "--run", str(run), may_fail=True)
        seconds = time.perf_counter() - began
    print(
        f"the whole check of the toy's operators took {seconds:.1f} s, the start of the program included; mark {MARK_S:.0f}"
    )
    print(f"figure: toy_check_seconds {seconds:.1f}")


def _day0(*arguments: str, may_fail: bool = False) -> None:
    command = [sys.executable, "-m", "day0", *arguments]
    subprocess.run(command, check=not may_fail, stdout=subprocess.DEVNULL)  # noqa: S603 - our own program


def _compare(run: Path, rounds: int, every: int) -> None:
    folder = RunFolder(run)
    plan = folder.read_plan()
    if plan is None:
        raise SystemExit(f"{run} has no plan")
    session = Session(plan=plan, folder=folder, talk=Talk())
    trace, lock = folder.need(Trace).record, folder.need(Lock).record
    planned = plan_cases(trace, plan.check)
    cases = [case for case in planned if not case.refusal and load_ways()[case.way].again is no_more][::every]
    setting = Setting(profile=session.profile, lock=lock, trace=trace, plan=plan.check)
    loaded = Loaded(
        device=session.device,
        lock=lock,
        implementations=session.implementations,
        cases={case.key: case for case in cases},
        limits=Limits(),
    )
    sides: dict[str, Callable[[], None]] = {
        "bare loop": lambda: _bare(cases, loaded),
        "check": lambda: _check(cases, loaded, setting, run / "work"),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, act in sides.items():
            began = time.perf_counter()
            act()
            if number:  # the first round warms up
                times[name].append(time.perf_counter() - began)
    least = {name: min(found) for name, found in times.items()}
    print(f"torch {torch.__version__}, {len(cases)} cases on {session.device.type}, least of {rounds} rounds")
    for name, seconds in least.items():
        print(f"{name:10} {seconds:7.2f} s, {len(cases) / seconds:6.0f} cases per second")
    print(f"mark {MARK}\nfigure: check_overhead {least['check'] / least['bare loop']:.2f}")


def _bare(cases: list[Case], loaded: Loaded) -> None:
    with activate(loaded.lock, loaded.device, loaded.implementations):
        for case in cases:
            contract = load_operators().get(case.signature.op.partition(".")[0])
            inputs = make_inputs(case, contract)
            if isinstance(inputs, Unfillable):
                continue
            operator = resolve(case.signature.op)
            try:
                with suspended():
                    references(case.signature, inputs, contract)
                moved = copy_to(inputs, loaded.device)
                with torch.no_grad():
                    operator(*moved.args, **moved.kwargs)
            except RUN_ERRORS:
                continue


def _check(cases: list[Case], loaded: Loaded, setting: Setting, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    kept = Kept(done={}, keep=lambda _: None)
    with Pool(starter(loaded, setting), folder, loaded.limits) as pool:
        run_cases(pool, cases, loaded.lock, kept, lambda *_: None)


if __name__ == "__main__":
    main()
