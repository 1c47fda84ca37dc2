"""Make the record of each stage: the glue between a session and the analyzers."""

from __future__ import annotations

import shutil
from pathlib import Path

from day0.analyzers.cases.captured import FOLDER
from day0.analyzers.inventory import take_inventory
from day0.analyzers.parallel import trace_one_rank
from day0.analyzers.recording.keeping import keeping
from day0.analyzers.trace import trace_model
from day0.analyzers.traced_inputs.document import read_inputs
from day0.analyzers.traced_inputs.importing import import_trace
from day0.cli.session import Session
from day0.errors import Day0Error
from day0.models.inputs import inputs_path
from day0.models.workload import plan_phases
from day0.records import Inventory, Lock, NumericsReport, Trace
from day0.registry import lock as locking
from day0.registry.evidence import verify

__all__ = ["make_inventory", "make_lock", "make_trace", "record_evidence"]


def make_trace(session: Session) -> Trace:
    """Stage 1."""
    path = inputs_path(session.plan.model.source)
    if path is not None:
        return _import(session, path)
    if session.plan.capture:
        return _capture(session)
    shutil.rmtree(session.folder.file(FOLDER), ignore_errors=True)  # values of another trace
    phases = plan_phases(session.spec, session.plan.workload)
    ranks = session.plan.workload.world_size
    if ranks > 1:
        return trace_one_rank(session.spec, phases, ranks, mode=session.plan.trace, progress=session.talk.progress)
    return trace_model(session.spec, phases, mode=session.plan.trace, progress=session.talk.progress)


def _capture(session: Session) -> Trace:
    """Trace with real values and keep them."""
    if session.plan.workload.world_size > 1:
        raise Day0Error("--capture", "one rank of several has no values of its own", hint="leave --world-size away")
    if session.plan.trace not in ("auto", "real"):
        raise Day0Error("--capture", f"a trace of mode {session.plan.trace} has no values", hint="use --mode real")
    phases = plan_phases(session.spec, session.plan.workload)
    with keeping(session.folder.file(FOLDER)) as keeper:
        trace = trace_model(session.spec, phases, mode="real", progress=session.talk.progress)
    session.talk.note(f"kept the values of {len(keeper.files)} calls, {keeper.bytes / 2**20:,.1f} MiB")
    if keeper.left_out:
        name, reason = min(keeper.left_out.items())
        session.talk.note(f"{len(keeper.left_out)} calls were not kept; the first of them, {name}: {reason}")
    return trace


def _import(session: Session, path: Path) -> Trace:
    if session.plan.workload.phases:
        raise Day0Error("--phase", "a text of traced inputs has no phases", hint="leave --phase away")
    source = session.plan.model.source
    return import_trace(read_inputs(path), str(path), source=source, progress=session.talk.progress)


def make_inventory(session: Session) -> Inventory:
    """Stage 2."""
    return take_inventory(
        session.folder.need(Trace).record,
        session.profile,
        locking.without_fallbacks(session.implementations, session.plan.register_),
        namespaces=session.namespaces,
        progress=session.talk.progress,
    )


def make_lock(session: Session, inventory: Inventory | None = None) -> Lock:
    """Stage 3, from the folder's inventory or another."""
    made = locking.make_lock(
        inventory or session.folder.need(Inventory).record,
        session.folder.need(Trace).record,
        session.implementations,
        session.profile,
        session.plan.register_,
        session.namespaces,
    )
    if not session.upgrade:
        return made
    return locking.upgrade(session.folder.need(Lock).record, made, session.upgrade)


def record_evidence(session: Session) -> None:
    """Write into the lock which of its entries the numerics report verified; afterwards it can travel without the report."""
    lock, numerics = session.folder.need(Lock), session.folder.need(NumericsReport).record
    verified = verify(lock.record, numerics, session.measured_with("check"))
    if verified != lock.record:
        session.folder.write(verified, inputs=lock.inputs, environment=lock.environment)
