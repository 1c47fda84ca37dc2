"""A run folder that is ready for a canary, in seconds: with a check that has nothing to say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from day0.cli import commands
from day0.cli.canary_ask import CanaryAsk
from day0.cli.rundir import RunFolder
from day0.cli.session import Session
from day0.cli.stages import STAGES, inputs_of
from day0.cli.talk import Talk
from day0.codec import body_hash
from day0.playbook import CanaryPlan, StagePlan
from day0.records import Lock, NumericsReport

__all__ = ["canary", "make_ready", "session_of", "stages_of", "without_check"]


def make_ready(
    run: Path,
    device: str,
    phases: list[str],
    stages: tuple[str, ...],
    *,
    model: str = "toy",
    dtype: str = "float32",
    batch: int = 1,
    **sizes: int,
) -> None:
    """Trace the toy or a small version of another model, take the inventory, lock; and plan a canary of some stages."""
    commands.trace(
        model=model, run=run, sets=[], dtype=dtype, mode="auto", shrink=model != "toy", batch=batch, phases=phases,
        trust_remote_code=False, force=False, json=False,
    )  # fmt: skip
    commands.stage(name="inventory", run=run, force=False, json=False, device=device)
    commands.stage(name="register", run=run, force=False, json=False)
    folder = RunFolder(run)
    plan = folder.read_plan()
    assert plan is not None
    canary_plan = CanaryPlan(stages={name: StagePlan() for name in stages}, **sizes)
    folder.write_plan(plan.model_copy(update={"canary": canary_plan}))
    without_check(run)


def without_check(run: Path) -> None:
    """Write a numerics report without cases, as fresh as a real one: a canary enters with --allow-unverified."""
    session = session_of(run)
    lock = session.folder.need(Lock).record
    report = NumericsReport(device=lock.device, lock=body_hash(lock), seed=0, cases=())
    check = next(one for one in STAGES if one.name == "check")
    session.folder.write(report, inputs=inputs_of(check, session), environment=session.environment)


def session_of(run: Path) -> Session:
    """Open a run folder."""
    folder = RunFolder(run)
    plan = folder.read_plan()
    assert plan is not None
    return Session(plan=plan, folder=folder, talk=Talk(as_json=True))


def canary(run: Path, *, plant: list[str] | None = None, dry_run: bool = False, **asked: Any) -> int:
    """`day0 canary --allow-unverified`, with what else is asked for."""
    return commands.stage(
        name="canary", run=run, force=False, json=False, allow_unverified=True, plant=plant or [],
        ask=CanaryAsk(**asked), dry_run=dry_run,
    )  # fmt: skip


def stages_of(run: Path, file: str = "canary.json") -> dict[str, dict[str, Any]]:
    """Return the stages of a canary by name."""
    return {stage["name"]: stage for stage in json.loads((run / file).read_text())["body"]["stages"]}
