"""What each command does: flags to a plan, the plan to a session, the session through the stages."""

from __future__ import annotations

import json as jsonlib
import pkgutil
from pathlib import Path

from day0.cli import show, show_canary, show_trace
from day0.cli.canary_ask import EVERYTHING, CanaryAsk
from day0.cli.check_lock import check_lock
from day0.cli.held_lock import lock_mode
from day0.cli.plans import override_check, override_plan, playbook_path, trace_plan
from day0.cli.report import write_report
from day0.cli.rundir import FILES, RunFolder
from day0.cli.session import Session
from day0.cli.stages import STAGES, Outcome, Stage, inputs_of, perform, refresh
from day0.cli.talk import Talk
from day0.errors import Day0Error, ExitCode
from day0.playbook import Playbook
from day0.records import CanaryReport, Trace
from day0.yamlfile import read_yaml, validate_yaml

__all__ = ["report", "run", "stage", "status", "trace"]


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
    _refuse_other_model(folder, before, asked, force=force)
    said = {"workload": asked.workload, "trace": asked.trace, "capture": asked.capture}
    plan = asked if before is None else before.model_copy(update=said)
    if force:
        plan = plan.model_copy(update={"model": asked.model})
    return _single(STAGES[0], Session(plan=plan, folder=folder, talk=talk, force=force), json=json, view=view)


def stage(
    *,
    name: str,
    run: Path,
    force: bool,
    json: bool,
    device: str | None = None,
    load: list[Path] | None = None,
    without: list[str] | None = None,
    namespace: str | None = None,
    fallback: str | None = None,
    replacements: bool | None = None,
    replace: list[str] | None = None,
    upgrade: list[str] | None = None,
    check: bool = False,
    strict: bool = False,
    allow_unverified: bool = False,
    locked: bool = False,
    frozen: bool = False,
    plant: list[str] | None = None,
    jobs: int = 0,
    case_timeout: float | None = None,
    expect: Path | None = None,
    thorough: bool = False,
    level: str | None = None,
    seed: int | None = None,
    ask: CanaryAsk = EVERYTHING,
    dry_run: bool = False,
) -> int:
    """One of the stages after trace, on a run folder. Faults are planted in this stage alone."""
    talk, folder = Talk(as_json=json), RunFolder(run)
    before = folder.read_plan()
    if before is None:
        raise Day0Error(str(run), "there is no trace yet", hint=f"begin with `day0 trace MODEL --run {run}`")
    plan = override_plan(
        before,
        device=device,
        load=load or [],
        without=without or [],
        namespace=namespace,
        fallback=fallback,
        replacements=replacements,
        replace=replace or [],
        strict=strict,
        thorough=thorough,
        level=level,
        seed=seed,
    )
    plan = override_check(plan, case_timeout=case_timeout, expect=expect)
    if not plan.device:
        raise Day0Error(str(run), "no device was named yet", hint="add --device sim; see `day0 device list`")
    session = Session(
        plan=plan,
        folder=folder,
        talk=talk,
        force=force or bool(upgrade),
        allow_unverified=allow_unverified,
        plants=tuple(plant or ()),
        planted_stages=(name,),
        lock_mode=lock_mode(locked=locked, frozen=frozen),
        upgrade=tuple(upgrade or ()),
        jobs=jobs,
        ask=ask,
    )
    session.refuse_bad_plants()
    if dry_run:
        return int(pkgutil.resolve_name("day0.cli.canary:dry_run")(session, json=json))
    if check:
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


def run(
    *,
    playbook: Path,
    run: Path | None,
    device: str | None,
    load: list[Path],
    without: list[str],
    replacements: bool | None,
    replace: list[str],
    allow_unverified: bool,
    locked: bool,
    frozen: bool,
    force: bool,
    dry_run: bool,
    json: bool,
    plant: list[str],
) -> int:
    """`day0 run`: all stages, then the report, whatever happened."""
    talk = Talk(as_json=json)
    path = playbook_path(playbook)
    asked = validate_yaml(Playbook, read_yaml(path))
    plan = override_plan(asked, device=device, load=load, without=without, replacements=replacements, replace=replace)
    folder = RunFolder(run or Path("runs") / plan.name)
    _refuse_other_model(folder, folder.read_plan(), plan, force=force)
    session = Session(
        plan=plan,
        folder=folder,
        talk=talk,
        force=force,
        allow_unverified=allow_unverified,
        plants=tuple(plant),
        lock_mode=lock_mode(locked=locked, frozen=frozen),
    )
    session.refuse_bad_plants()
    show.title(talk, plan, path, folder)
    if dry_run:
        return _dry_run(session)
    _preflight(session)
    with folder.held():
        folder.write_plan(plan)
        outcomes = _walk(session)
        with talk.busy("report"):
            page = write_report(folder, plan.name)
    passed = len(outcomes) == len(STAGES) and all(outcome.passed for outcome in outcomes)
    show.ending(talk, outcomes, page, passed=passed)
    if json:
        print((page.parent / "report.json").read_text(encoding="utf-8"), end="")
    return int(ExitCode.OK if passed else ExitCode.GATE_FAILED)


def _preflight(session: Session) -> None:
    """Open what the stages will need, so that a mistake in the last one's input does not cost the first ones' time."""
    # Named, not imported: showing a plan does not load torch.
    pkgutil.resolve_name("day0.cli.canary:preflight")(session)
    # Each of these raises for what is wrong with it.
    for _ in (session.profile, session.namespaces, session.implementations):
        continue
    if session.profile.torch_device == "sim":
        # torch counts devices once, at its first backward pass, and a trace on the CPU may run one.
        pkgutil.resolve_name("day0.devices.open:open_torch_device")(session.profile)


def _walk(session: Session) -> list[Outcome]:
    """Perform the stages in order and stop after the first that fails: its followers would build on sand."""
    outcomes: list[Outcome] = []
    for number, one in enumerate(STAGES, start=1):
        if outcomes and not outcomes[-1].passed and not session.allow_unverified:
            show.not_run(session.talk, number, one.name, outcomes[-1].stage)
            continue
        with session.talk.busy(one.name):
            outcome = perform(one, session, force=session.force)
        outcomes.append(outcome)
        show.outcome(session.talk, number, outcome)
        if isinstance(outcome.record, CanaryReport):
            show_canary.way_on(session.talk, outcome.record, session.folder.path)
    return outcomes


def _dry_run(session: Session) -> int:
    stale = ""
    for number, one in enumerate(STAGES, start=1):
        reason = f"{stale} will be made again" if stale else ""
        if not stale:
            found = session.folder.freshness(one.record, inputs_of(one, session))
            reason = found.reason
            stale = one.name if not found.fresh or session.force else ""
        show.planned(session.talk, number, one.name, fresh=not stale, reason=reason)
    return int(ExitCode.OK)


def status(*, run: Path, json: bool) -> int:
    """`day0 status`: is each stage fresh? Exit code 1 if one is not."""
    talk, folder = Talk(as_json=json), RunFolder(run)
    plan = folder.read_plan()
    if plan is None:
        raise Day0Error(str(run), "this is not a run folder: there is no plan.json", hint="begin with `day0 trace`")
    session = Session(plan=plan, folder=folder, talk=talk)
    rows: list[dict[str, object]] = []
    for number, one in enumerate(STAGES, start=1):
        before = next((row for row in rows if not row["fresh"]), None)
        if before is None and "device" in one.depends and not plan.device:
            row: dict[str, object] = {"stage": one.name, "fresh": False, "reason": "no device was named yet"}
        elif before is None:
            found = folder.freshness(one.record, inputs_of(one, session))
            row = {"stage": one.name, "fresh": found.fresh, "reason": found.reason}
        else:
            row = {"stage": one.name, "fresh": False, "reason": f"{before['stage']} is not fresh"}
        rows.append(row)
        show.planned(talk, number, one.name, fresh=bool(row["fresh"]), reason=str(row["reason"]))
    if json:
        print(jsonlib.dumps(rows, indent=1))
    return int(ExitCode.OK if all(row["fresh"] for row in rows) else ExitCode.GATE_FAILED)


def report(*, run: Path, json: bool) -> int:
    """`day0 report`: write the report from what is there."""
    talk, folder = Talk(as_json=json), RunFolder(run)
    plan = folder.read_plan()
    folder.need(Trace)
    with folder.held(), talk.busy("report"):
        page = write_report(folder, plan.name if plan else run.name)
    talk.say(f"report: {page}")
    if json:
        print((page.parent / "report.json").read_text(encoding="utf-8"), end="")
    return int(ExitCode.OK)


def _refuse_other_model(folder: RunFolder, before: Playbook | None, asked: Playbook, *, force: bool) -> None:
    if before is None or force or before.model == asked.model:
        return
    changed = [
        f"{key}: {old!r} here, {new!r} asked for"
        for key, old in before.model.model_dump().items()
        if old != (new := asked.model.model_dump()[key])
    ]
    raise Day0Error(
        str(folder.path),
        f"this run folder belongs to another model, {before.model.source}",
        facts=tuple(changed),
        hint="name another folder with --run, or take this one over with --force",
    )
