"""What each command does: flags to a plan, the plan to a session, the session through the stages."""

from __future__ import annotations

import json as jsonlib
import pkgutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from day0.cli import show, show_canary, show_trace
from day0.cli.check_lock import check_lock
from day0.cli.plans import refuse_other_model, trace_plan
from day0.cli.rundir import FILES, RunFolder
from day0.cli.session import Session
from day0.cli.stage_flags import StageFlags
from day0.cli.stages import STAGES, Stage, perform, refresh
from day0.cli.talk import Talk
from day0.cli.timing import read_seconds
from day0.cli.walk import plan_of
from day0.errors import Day0Error, ExitCode
from day0.records import CanaryReport, Trace

__all__ = ["stage", "status", "trace"]


def trace(
    *,
    model: str,
    run: Path,
    sets: list[str],
    dtype: str,
    mode: str,
    shrink: bool,
    batch: int,
    phases: list[str],
    trust_remote_code: bool,
    force: bool,
    json: bool,
    adapt: list[str] | None = None,
    world_size: int = 1,
    level: str = "both",
    shapes: list[str] | None = None,
    capture: bool = False,
) -> int:
    """`day0 trace`: start a run folder with a model."""
    talk, folder = Talk(as_json=json), RunFolder(run)
    view = show_trace.View.of(level, shapes or [])
    asked = trace_plan(
        model=model,
        sets=sets,
        dtype=dtype,
        mode=mode,
        shrink=shrink,
        batch=batch,
        phases=phases,
        trust_remote_code=trust_remote_code,
        name=run.name or "run",
        world_size=world_size,
        adapt=adapt or [],
        capture=capture,
    )
    before = folder.read_plan()
    refuse_other_model(folder.path, before, asked, force=force)
    said = {"workload": asked.workload, "trace": asked.trace, "capture": asked.capture}
    plan = asked if before is None else before.model_copy(update=said)
    if force:
        plan = plan.model_copy(update={"model": asked.model})
    return _single(STAGES[0], Session(plan=plan, folder=folder, talk=talk, force=force), json=json, view=view)


def stage(*, name: str, run: Path, json: bool, **flags: Any) -> int:
    """One of the stages after trace, on a run folder; `flags` are those of `StageFlags`."""
    asked = StageFlags(**flags)
    talk, folder = Talk(as_json=json), RunFolder(run)
    before = folder.read_plan()
    if before is None:
        raise Day0Error(str(run), "there is no trace yet", hint=f"begin with `day0 trace MODEL --run {run}`")
    plan = asked.over(before)
    if not plan.device:
        raise Day0Error(str(run), "no device was named yet", hint="add --device sim; see `day0 device list`")
    session = asked.session(plan, folder, talk, name)
    session.refuse_bad_plants()
    if asked.dry_run:
        return int(pkgutil.resolve_name("day0.cli.canary:dry_run")(session, json=json))
    if asked.check:
        return check_lock(session, json=json)
    code = _single(next(one for one in STAGES if one.name == name), session, json=json)
    if plan.check != before.check:
        # A level or a seed was asked for once: the next check is a whole one again.
        folder.write_plan(plan.model_copy(update={"check": before.check}))
    return code


def _single(one: Stage, session: Session, *, json: bool, view: show_trace.View | None = None) -> int:
    with session.folder.held():
        with session.talk.busy(one.name):
            earlier = refresh(one, session)
            outcome = perform(one, session, force=session.force)
        session.folder.write_plan(session.plan)
    for made in earlier:
        show.outcome(session.talk, 1 + [stage.name for stage in STAGES].index(made.stage), made)
    show.outcome(session.talk, 1 + STAGES.index(one), outcome)
    view = view or show_trace.View()
    show.record(session.talk, outcome.record, operators=view.level != "call")
    if isinstance(outcome.record, Trace):
        show_trace.levels(session.talk, outcome.record, view)
        show.cost(session.talk, outcome)
    if isinstance(outcome.record, CanaryReport):
        show_canary.way_on(session.talk, outcome.record, session.folder.path)
    if json:
        print((session.folder.file(FILES[one.record][1])).read_text(encoding="utf-8"), end="")
    return int(ExitCode.OK if outcome.passed else ExitCode.GATE_FAILED)


def status(*, run: Path, json: bool) -> int:
    """`day0 status`: is each stage fresh, and how long did it take? Exit code 1 if one is not fresh."""
    talk, folder = Talk(as_json=json), RunFolder(run)
    plan = folder.read_plan()
    if plan is None:
        raise Day0Error(str(run), "this is not a run folder: there is no plan.json", hint="begin with `day0 trace`")
    rows = plan_of(Session(plan=plan, folder=folder, talk=talk), because="is not fresh")
    seconds = read_seconds(folder)
    show.plan(talk, rows, seconds)
    if json:
        stages = [{**asdict(row), "seconds": seconds.get(row.stage)} for row in rows]
        print(jsonlib.dumps({"run": str(run), "stages": stages, "seconds": round(sum(seconds.values()), 3)}, indent=1))
    return int(ExitCode.OK if all(row.fresh for row in rows) else ExitCode.GATE_FAILED)
