"""One run of `day0 run`: all stages in one run folder, then the report, whatever happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Literal

from day0.cli import show
from day0.cli.held_lock import lock_mode
from day0.cli.plans import override_plan, refuse_other_model
from day0.cli.playbook_matrix import PlannedRun
from day0.cli.rundir import RunFolder
from day0.cli.session import Session
from day0.cli.stages import STAGES, Outcome
from day0.cli.talk import Talk
from day0.cli.walk import preflight, walk
from day0.errors import ExitCode

__all__ = ["Job", "RunFlags", "RunResult", "StageLine", "open_session", "perform_run"]

Verdict = Literal["pass", "fail"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFlags:
    """Flags of `day0 run` that hold for every run."""

    device: str | None = None
    load: Sequence[Path] = ()
    without: Sequence[str] = ()
    replacements: bool | None = None
    replace: Sequence[str] = ()
    allow_unverified: bool = False
    locked: bool = False
    frozen: bool = False
    plant: Sequence[str] = ()
    force: bool = False
    plain: bool = False
    """No colours and no progress."""

    def over(self, run: PlannedRun) -> PlannedRun:
        """Return a run with what the flags say of its plan."""
        plan = override_plan(
            run.plan,
            device=self.device,
            load=self.load,
            without=self.without,
            replacements=self.replacements,
            replace=self.replace,
        )
        return replace(run, plan=plan)


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One run and the folder it works in."""

    run: PlannedRun
    folder: Path

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.run.name


@dataclass(frozen=True, kw_only=True, slots=True)
class StageLine:
    """What the closing table says of one stage."""

    stage: str
    verdict: Verdict
    seconds: float
    kept: bool
    """Its record was fresh: nothing was made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """What became of one run."""

    name: str
    playbook: str
    folder: str
    code: int | None
    """Exit code; None for a run that was never begun."""
    seconds: float = 0.0
    stages: tuple[StageLine, ...] = ()
    note: str = ""
    """Why it ended without a verdict."""


def open_session(job: Job, flags: RunFlags, talk: Talk) -> Session:
    """Return the session of a run. Raises Day0Error for a run folder of another model, and for faults nobody knows."""
    folder = RunFolder(job.folder)
    refuse_other_model(folder.path, folder.read_plan(), job.run.plan, force=flags.force)
    session = Session(
        plan=job.run.plan,
        folder=folder,
        talk=talk,
        force=flags.force,
        allow_unverified=flags.allow_unverified,
        plants=tuple(flags.plant),
        lock_mode=lock_mode(locked=flags.locked, frozen=flags.frozen),
    )
    session.refuse_bad_plants()
    return session


def perform_run(job: Job, flags: RunFlags, talk: Talk, tell: Callable[[StageLine], None]) -> int:
    """Walk all stages, write the report and return the exit code; `tell` hears of each stage when it has ended."""
    session = open_session(job, flags, talk)
    show.title(talk, job.run.plan, job.run.playbook, session.folder)
    preflight(session)
    with session.folder.held():
        session.folder.write_plan(session.plan)
        outcomes = walk(session, lambda outcome: tell(_line(outcome)))
        with talk.busy("report"):
            # Named, not imported: whoever only starts runs draws no charts.
            page = resolve_name("day0.cli.report:write_report")(session.folder, session.plan.name)
    passed = len(outcomes) == len(STAGES) and all(outcome.passed for outcome in outcomes)
    show.ending(talk, outcomes, page, passed=passed)
    return int(ExitCode.OK if passed else ExitCode.GATE_FAILED)


def _line(outcome: Outcome) -> StageLine:
    return StageLine(
        stage=outcome.stage,
        verdict="pass" if outcome.passed else "fail",
        seconds=round(outcome.seconds, 3),
        kept=outcome.freshness.fresh,
    )
