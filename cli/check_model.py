"""The model level of the check, for a run folder: when it is made, and what it counts for."""

from __future__ import annotations

from day0.analyzers.modules.check import check_model
from day0.cli.session import Session
from day0.records import ModelCheck, Trace

__all__ = ["model_level", "wants_operators"]


def wants_operators(session: Session) -> bool:
    """Say whether operators are checked one by one."""
    return session.plan.check.level in ("ops", "all")


def model_level(session: Session, trace: Trace) -> ModelCheck | None:
    """Check the whole model under the lock that is active; None where the plan asks for operators alone.

    A run that has no model, or a larger one than the plan allows, says so in a check that was skipped.
    """
    plan = session.plan.check
    if plan.level == "ops":
        return None
    reason = _why_not(session, trace)
    if reason:
        return ModelCheck(status="skipped", reason=reason, seed=plan.seed)
    return check_model(
        session.spec,
        session.device,
        plan.model,
        seed=plan.seed,
        decode=any(phase.context for phase in trace.phases),
        pictures=any(phase.images for phase in trace.phases),
        progress=session.talk.progress,
    )


def _why_not(session: Session, trace: Trace) -> str:
    if trace.imported is not None:
        return "the trace was imported from a text: it has calls and no model"
    if session.plan.workload.world_size > 1:
        return f"the trace is that of one rank of {session.plan.workload.world_size}, which does not run alone"
    limit = session.plan.check.model.max_mib
    size = trace.model.parameter_bytes / 2**20
    if size > limit:
        return (
            f"its weights take {size:,.0f} MiB, and the model level builds three copies of at most {limit} MiB: "
            "trace with --shrink, or raise check.model.max_mib in the playbook"
        )
    return ""
