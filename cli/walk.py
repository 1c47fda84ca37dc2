"""The stages of one run in their order: what would be made, and making it."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from day0.cli import show, show_canary
from day0.cli.session import Session
from day0.cli.stages import STAGES, Outcome, inputs_of, perform
from day0.records import CanaryReport

__all__ = ["Planned", "plan_of", "preflight", "walk"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """Whether the record of one stage can stay, and why."""

    stage: str
    fresh: bool
    reason: str


def preflight(session: Session) -> None:
    """Open what the stages will need, so that a mistake in the last one's input does not cost the first ones' time."""
    # Named, not imported: showing a plan does not load torch.
    pkgutil.resolve_name("day0.cli.canary:preflight")(session)
    # Each of these raises for what is wrong with it.
    for _ in (session.profile, session.namespaces, session.implementations):
        continue
    if session.profile.torch_device == "sim":
        # torch counts devices once, at its first backward pass, and a trace on the CPU may run one.
        pkgutil.resolve_name("day0.devices.open:open_torch_device")(session.profile)


def plan_of(session: Session, *, because: str = "will be made again") -> list[Planned]:
    """Say of each stage whether its record is fresh; those after a stale one are not, `because` of it."""
    rows: list[Planned] = []
    for one in STAGES:
        before = next((row.stage for row in rows if not row.fresh), "")
        if before:
            rows.append(Planned(stage=one.name, fresh=False, reason=f"{before} {because}"))
        elif "device" in one.depends and not session.plan.device:
            rows.append(Planned(stage=one.name, fresh=False, reason="no device was named yet"))
        else:
            found = session.folder.freshness(one.record, inputs_of(one, session))
            fresh = found.fresh and not session.force
            rows.append(
                Planned(stage=one.name, fresh=fresh, reason=found.reason if not found.fresh or fresh else "--force")
            )
    return rows


def walk(session: Session, tell: Callable[[Outcome], None]) -> list[Outcome]:
    """Perform the stages in order and stop after the first that fails: its followers would build on sand.

    `tell` hears of each stage when it has ended.
    """
    outcomes: list[Outcome] = []
    for number, one in enumerate(STAGES, start=1):
        if outcomes and not outcomes[-1].passed and not session.allow_unverified:
            show.not_run(session.talk, number, one.name, outcomes[-1].stage)
            continue
        with session.talk.busy(one.name):
            outcome = perform(one, session, force=session.force)
        outcomes.append(outcome)
        show.outcome(session.talk, number, outcome)
        tell(outcome)
        if isinstance(outcome.record, CanaryReport):
            show_canary.way_on(session.talk, outcome.record, session.folder.path)
    return outcomes
