"""`day0 register --check`: say whether the lock is what would be chosen now."""

from __future__ import annotations

import json as jsonlib

from day0.cli.held_lock import drift
from day0.cli.session import Session
from day0.cli.stages import STAGES, inputs_of
from day0.cli.talk import safe
from day0.errors import ExitCode
from day0.records import Lock

__all__ = ["check_lock"]


def check_lock(session: Session, *, json: bool) -> int:
    """`day0 register --check`: write nothing; exit code 1 if the lock is not what would be chosen now."""
    session.folder.need(Lock)
    trace = STAGES[0]
    found = session.folder.freshness(trace.record, inputs_of(trace, session))
    changes = drift(session) if found.fresh else (f"{trace.name} is stale: {found.reason}",)
    for text in changes:
        session.talk.say(safe(text))
    session.talk.say("the lock would change" if changes else "the lock is what would be chosen now")
    if json:
        print(jsonlib.dumps({"current": not changes, "changes": list(changes)}, indent=1))
    return int(ExitCode.GATE_FAILED if changes else ExitCode.OK)
