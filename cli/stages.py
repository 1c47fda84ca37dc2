"""The five stages as a table: what each reads, what it makes, when it has failed. `day0 run` walks this table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from day0.cli.held_lock import hold_lock
from day0.cli.rundir import Freshness
from day0.cli.session import Session
from day0.cli.talk import stopwatch
from day0.cli.timing import note_seconds
from day0.hashing import hash_json
from day0.records import CanaryReport, Inventory, Lock, NumericsReport, Record, Trace

if TYPE_CHECKING:
    from day0.devices.sim.planting import Planting

__all__ = ["STAGES", "Outcome", "Stage", "inputs_of", "perform", "refresh"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One stage: its record, the records it reads, the other things it depends on, and two functions by name.

    `make` and `verdict` are named, not imported, so that showing a plan does not load torch.
    """

    name: str
    record: type[Record]
    reads: tuple[type[Record], ...]
    depends: tuple[str, ...]
    make: str
    verdict: str
    after: str = ""
    """What is done once the record is there, made now or before; it changes nothing where it was done already."""


STAGES: tuple[Stage, ...] = (
    Stage(
        name="trace",
        record=Trace,
        reads=(),
        depends=("model", "workload", "versions"),
        make="day0.cli.make:make_trace",
        verdict="day0.cli.verdicts:of_trace",
    ),
    Stage(
        name="inventory",
        record=Inventory,
        reads=(Trace,),
        depends=("device", "implementations", "choices"),
        make="day0.cli.make:make_inventory",
        verdict="day0.cli.verdicts:of_inventory",
    ),
    Stage(
        name="register",
        record=Lock,
        reads=(Trace, Inventory),
        depends=("device", "implementations", "choices"),
        make="day0.cli.make:make_lock",
        verdict="day0.cli.verdicts:of_lock",
    ),
    Stage(
        name="check",
        record=NumericsReport,
        reads=(Trace, Lock),
        depends=("device", "cases", "versions"),
        make="day0.cli.check:make_numerics",
        verdict="day0.cli.verdicts:of_numerics",
        after="day0.cli.make:record_evidence",
    ),
    Stage(
        name="canary",
        record=CanaryReport,
        reads=(Trace, Lock, NumericsReport),
        depends=("model", "device", "gates"),
        make="day0.cli.canary:make_report",
        verdict="day0.cli.verdicts:of_canary",
        after="day0.cli.canary_history:keep_history",
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of one stage in this command."""

    stage: str
    record: Record
    freshness: Freshness
    seconds: float
    passed: bool
    summary: str
    """One line for people."""
    problems: tuple[str, ...] = ()
    """What has to be repaired, most important first."""


def refresh(stage: Stage, session: Session) -> list[Outcome]:
    """Make the stages before this one again where they are there but stale, so that it does not build on old records."""
    made = []
    for earlier in STAGES[: STAGES.index(stage)]:
        if not session.folder.has(earlier.record):
            break
        session.folder.need(earlier.record)  # a damaged record is the user's to look at, not ours to replace unasked
        if not session.folder.freshness(earlier.record, inputs_of(earlier, session)).fresh:
            made.append(perform(earlier, session))
    return made


def perform(stage: Stage, session: Session, *, force: bool = False) -> Outcome:
    """Bring one stage up to date: read it if it is fresh, else make it and write it."""
    inputs = inputs_of(stage, session)
    fresh = session.folder.freshness(stage.record, inputs)
    if stage.record is Lock and session.lock_mode != "update":
        fresh = hold_lock(session, fresh)
    verdict = _call(stage.verdict)
    with stopwatch() as seconds:
        record: Record | None = session.folder.need(stage.record).record if fresh.fresh else None
        if record is not None and force:
            record, fresh = None, Freshness(fresh=False, reason="--force")
        if record is not None and not verdict(record)[0] and not (stage.record is Lock and fresh.held):
            # What failed may have been repaired outside of anything that is hashed: a driver, a full disk.
            record, fresh = None, Freshness(fresh=False, reason="it failed the last time")
        if record is None:
            # Records name our operators; torch has to know them even if no model of ours was built.
            _call("day0.reference_ops.torch_ops:register_operators")()
            with session.planting(stage.name) as plantings:
                record = _call(stage.make)(session)
            session.folder.write(record, inputs=inputs, environment={**session.environment, **_planted(plantings)})
        if stage.after:
            _call(stage.after)(session)
    if not fresh.fresh:
        note_seconds(session.folder, stage.name, seconds[0])
    passed, summary, problems = verdict(record)
    planted = session.folder.need(stage.record).environment.get("planted")
    summary = f"{summary}; planted: {planted}" if planted else summary
    return Outcome(
        stage=stage.name,
        record=record,
        freshness=fresh,
        seconds=seconds[0],
        passed=passed,
        summary=summary,
        problems=problems,
    )


def inputs_of(stage: Stage, session: Session) -> dict[str, str]:
    """Return the hashes of everything a stage depends on, by name."""
    names = {kind: name for name, kind in ((one.name, one.record) for one in STAGES)}
    records = {names[kind]: session.folder.need(kind).digest for kind in stage.reads}
    # Only where there are any: a real run and a planted one are never taken for each other.
    plants = {"planted": hash_json(session.plants_in(stage.name))} if session.plants_in(stage.name) else {}
    # A canary of some stages is never taken for a whole one.
    ask = session.ask
    some = {"stages": hash_json([list(ask.only), ask.first])} if stage.name == "canary" and ask.selected else {}
    return {**records, **{name: session.hash_of(name) for name in stage.depends}, **plants, **some}


def _planted(plantings: tuple[Planting, ...]) -> dict[str, str]:
    """Return what the record says of planted faults; that one was never reached explains why nobody caught it."""
    names = [one.name if one.reached else f"{one.name} (its operators were never called)" for one in plantings]
    return {"planted": ", ".join(names)} if names else {}


def _call(path: str) -> Callable[..., Any]:
    from pkgutil import resolve_name

    function: Callable[..., Any] = resolve_name(path)
    return function
