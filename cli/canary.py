"""`day0 canary`: what would run, what is kept of an earlier run, and the record."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape

from day0.analyzers.canary.context import CanaryContext
from day0.analyzers.canary.export import chrome_trace
from day0.analyzers.canary.kept import Kept, hash_of_tensors
from day0.analyzers.canary.run import Resumed, run_stages
from day0.analyzers.canary.stages import Selection, Step, plan_stages
from day0.cli.canary_history import last_good
from day0.cli.failures import clean
from day0.cli.rundir import write_atomically
from day0.cli.session import Session
from day0.cli.threads import threads_for
from day0.codec import body_hash, decode, encode
from day0.errors import Day0Error
from day0.hashing import hash_file
from day0.models.inputs import no_model
from day0.records import CanaryReport, Lock, NumericsReport, StageResult, Trace
from day0.registry.dispatch import activate
from day0.registry.evidence import unverified
from day0.registry.receipts import entries_to_run

__all__ = ["PARTIAL", "TRACE_FILE", "dry_run", "make_report", "preflight", "steps_of"]

PARTIAL = "canary.partial.json"
"""The stages so far, written after each one: what is lost when the process dies is the stage in flight."""
TRACE_FILE = "canary.trace.json"
REFERENCE = "reference"
MOST_HASHED = 1 << 30
"""Weights of a larger model are named by the model's fingerprint alone."""


def preflight(session: Session) -> None:
    """Raise Day0Error for a plan that cannot be run, before anything runs."""
    steps_of(session)
    spec, canary = session.spec, session.plan.canary
    longest = canary.prompt_tokens + canary.new_tokens
    if spec.max_positions is not None and longest > spec.max_positions:
        what = f"{longest:,} tokens are more than the {spec.max_positions:,} positions of {spec.class_name}"
        raise Day0Error("canary: prompt_tokens + new_tokens", what, hint="give smaller numbers in the playbook")


def steps_of(session: Session) -> tuple[Step, ...]:
    """Return every stage of the plan, and why some will not run."""
    ask = session.ask
    return plan_stages(session.plan.canary, session.spec, Selection(only=ask.only, first=ask.first))


def dry_run(session: Session, *, json: bool) -> int:
    """Say what would run and why, and run nothing."""
    inputs = _inputs(session)
    done, note = _earlier(session, inputs)
    rows = [_row(step, done) for step in steps_of(session)]
    if note:
        session.talk.note(note)
    for row in rows:
        text = f"{row['does']:<5} {row['stage']:<12} {row['why']}"
        session.talk.out.print(escape(clean(text)), soft_wrap=True, highlight=False)
    if json:
        print(jsonlib.dumps(rows, indent=1))
    return 0


def _row(step: Step, done: Mapping[str, StageResult]) -> dict[str, Any]:
    gates = [f"{gate.metric} {gate.rule} {gate.limit:g}" for gate in step.stage.gates]
    if step.stage.name in done:
        does, why = "keep", "it passed, and nothing has changed since"
    elif step.skip:
        does, why = "skip", step.reason
    else:
        does, why = "run", f"{step.stage.title}; gates: {', '.join(gates)}"
    return {"stage": step.stage.name, "does": does, "why": why, "gates": gates}


def make_report(session: Session) -> CanaryReport:
    """Stage 5. Only a lock whose numerics passed may enter, unless the user says otherwise, which is recorded."""
    trace = session.folder.need(Trace).record
    if trace.imported is not None:
        raise no_model(trace.model.source)
    lock, numerics = session.folder.need(Lock).record, session.folder.need(NumericsReport).record
    _refuse_unverified(session, lock, numerics)
    preflight(session)
    steps, inputs = steps_of(session), _inputs(session)
    done, note = _earlier(session, inputs)
    if note:
        session.talk.note(note)
    resumed = Resumed(done=done, keep=_keeper(session, lock, inputs))
    with threads_for(trace), activate(lock, session.device, session.implementations) as active:
        for text in active.notes:
            session.talk.note(text)
        context = CanaryContext(
            spec=session.spec,
            device=session.device,
            active=active,
            evidence=session.folder.file("evidence"),
            prompt_tokens=session.plan.canary.prompt_tokens,
            new_tokens=session.plan.canary.new_tokens,
            must_run=entries_to_run(lock, trace),
            trace=trace,
            profile=session.profile,
            about_cases=_about_cases(session),
            seed=session.plan.check.seed,
            soak_s=session.plan.canary.soak_s,
            compile=session.plan.canary.compile,
            reference_mib=session.plan.canary.reference_mib,
        )
        context.kept = _kept(session, context)
        plan, progress = session.plan.canary, session.talk.progress
        stages = run_stages(context, plan, steps=steps, resumed=resumed, progress=progress)
    report = _report(session, lock, stages)
    if context.timeline.events:
        write_atomically(session.folder.file(TRACE_FILE), jsonlib.dumps(chrome_trace(context.timeline, report)) + "\n")
    return report


def _report(session: Session, lock: Lock, stages: tuple[StageResult, ...]) -> CanaryReport:
    failed = any(stage.status == "fail" for stage in stages)
    name, model = session.profile.name, session.spec.fingerprint
    return CanaryReport(
        device=name,
        lock=body_hash(lock),
        allow_unverified=session.allow_unverified,
        stages=stages,
        last_good=last_good(session.folder.path, name, model, other_than=body_hash(lock)) if failed else None,
    )


def _keeper(session: Session, lock: Lock, inputs: dict[str, str]) -> Callable[[tuple[StageResult, ...]], None]:
    def keep(stages: tuple[StageResult, ...]) -> None:
        report = CanaryReport(
            device=session.profile.name, lock=body_hash(lock), allow_unverified=session.allow_unverified, stages=stages
        )
        write_atomically(session.folder.file(PARTIAL), encode(report, inputs=inputs, environment=session.environment))

    return keep


def _inputs(session: Session) -> dict[str, str]:
    """Return what the canary depends on, whatever stages are asked for."""
    from day0.cli.stages import STAGES, inputs_of

    canary = next(stage for stage in STAGES if stage.name == "canary")
    return {name: value for name, value in inputs_of(canary, session).items() if name != "stages"}


def _earlier(session: Session, inputs: dict[str, str]) -> tuple[dict[str, StageResult], str]:
    """Return the stages that an earlier run has passed with the same inputs, and what to say of it."""
    ask = session.ask
    if session.force or not (ask.resume or ask.selected):
        return {}, ""
    text = session.folder.read_text(PARTIAL)
    if text is None:
        return {}, "nothing to resume: no canary has run here" if ask.resume else ""
    try:
        where = str(session.folder.file(PARTIAL))
        found = decode(CanaryReport, text, where=where, remake=f"day0 canary --run {session.folder.path} --force")
    except Day0Error as error:
        return {}, f"nothing can be kept: {error.what}"
    changed = sorted(key for key in {*found.inputs, *inputs} if found.inputs.get(key) != inputs.get(key))
    if changed:
        return {}, f"nothing can be kept, since these changed: {', '.join(changed)}"
    done = _passed_so_far(found.record.stages)
    if ask.selected:
        wanted = Selection(only=ask.only, first=ask.first).names(tuple(step.stage.name for step in steps_of(session)))
        done = {name: one for name, one in done.items() if name not in wanted or ask.resume}
    return done, f"kept from the earlier run: {', '.join(done)}" if done else "no stage had passed"


def _passed_so_far(stages: tuple[StageResult, ...]) -> dict[str, StageResult]:
    done: dict[str, StageResult] = {}
    for stage in stages:
        if stage.status == "fail":
            break
        if stage.status == "pass":
            done[stage.name] = stage.model_copy(update={"kept": True})
    return done


def _kept(session: Session, context: CanaryContext) -> Kept:
    """Return the folder of reference passes, for this model, these weights, this dtype and this torch."""
    reference = session.ask.reference
    model = {
        "model": context.spec.fingerprint,
        "weights": _weights_hash(context),
        "dtype": str(context.spec.dtype),
        "torch": torch.__version__,
    }
    return Kept(folder=reference or session.folder.file(REFERENCE), model=model, strict=reference is not None)


def _weights_hash(context: CanaryContext) -> str:
    state = context.reference().state_dict()
    if any(one.is_meta for one in state.values()) or sum(one.nbytes for one in state.values()) > MOST_HASHED:
        return context.spec.fingerprint
    return hash_of_tensors(state)


def _about_cases(session: Session) -> dict[str, Any]:
    """Return what a reproducer has to know beside its case."""
    plan = session.plan
    files = [Path(one).resolve() for one in plan.register_.load]
    return {
        "profile": session.profile.model_dump(mode="json", by_alias=True),
        "plan": plan.check.model_copy(update={"expect": ()}).model_dump(mode="json"),
        "files": [{"path": str(one), "sha256": hash_file(one)} for one in files],
        "without": list(plan.register_.without),
        "plants": list(session.plants_in("canary")),
        "golden": True,
    }


def _refuse_unverified(session: Session, lock: Lock, numerics: NumericsReport) -> None:
    if session.allow_unverified:
        return
    where = str(session.folder.path)
    if numerics.lock != body_hash(lock):
        raise Day0Error(where, "numerics.json was made from another lock", hint=f"run `day0 check --run {where}`")
    bad = [case for case in numerics.cases if case.failed]
    # What the canary plants, the check may have been free of: faults that only a whole model shows are its own to find.
    measured = {key: value for key, value in session.measured_with("check").items() if key != "planted"}
    unproven = unverified(lock, session.profile.name, measured, report=body_hash(numerics)) if not bad else ()
    model = (
        f"the model level failed: {numerics.model.reason}" if numerics.model and numerics.model.status == "fail" else ""
    )
    if bad or unproven or lock.gaps or model:
        facts = tuple(f"{case.op} {case.shapes}: {case.status}, {case.reason}" for case in bad[:5])
        facts += (model,) if model else ()
        facts += unproven[:5]
        facts += tuple(f"{gap.operator}: {gap.reason}" for gap in lock.gaps[:5])
        counts = f"{len(bad)} cases failed, {len(unproven)} entries lack evidence, {len(lock.gaps)} gaps are open"
        raise Day0Error(
            where,
            f"the lock is not verified: {counts}",
            facts=facts,
            hint="repair them first, or enter with --allow-unverified, which the report will say",
        )
