"""From the records of a run to its summary: can the model run, why, and what to do next."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from day0.reports.actions import plan_actions
from day0.reports.beside import beside
from day0.reports.bundle import Bundle
from day0.reports.cases import canary_steps, check_counts, failed_cases, nearest_cases, skipped_cases
from day0.reports.figures import counted, joined, share_text
from day0.reports.findings import Weights, choices, open_gaps, operators, verdict_lines, weigh
from day0.reports.judged import how_right, operator_errors, warned_operators
from day0.reports.performance import how_fast, points
from day0.reports.stages import judge_stages
from day0.reports.summary import Choice, Stage, Summary

__all__ = ["PLANTED", "summarise"]

PLANTED = "faults planted in "
"""How an entry of the environment begins that names faults."""

ACTIONS = 3
"""More than three things to do first is nothing to do first."""


@lru_cache(maxsize=1)
def summarise(bundle: Bundle) -> Summary:
    """Return the summary of a run, complete or not. Pure: the same records give the same summary."""
    model, weights, stages = bundle.trace.model, weigh(bundle), judge_stages(bundle)
    gaps, chosen = open_gaps(bundle, weights), choices(bundle, weights)
    failures, steps = failed_cases(bundle, weights), canary_steps(bundle)
    actions = plan_actions(bundle, weights, stages=stages, gaps=gaps, failures=failures, chosen=chosen, steps=steps)
    return Summary(
        name=bundle.name,
        model=model.source,
        model_class=model.class_name,
        dtype=model.dtype,
        parameters=model.parameters,
        parameter_bytes=model.parameter_bytes,
        fingerprint=model.fingerprint,
        overrides=model.overrides,
        adapted=model.adapted,
        device=bundle.device,
        can_run=all(stage.status == "pass" for stage in stages),
        why=_why(bundle, stages),
        caveats=_caveats(bundle, weights, chosen),
        stages=stages,
        weighted_by=weights.by,
        verdicts=verdict_lines(bundle, weights),
        operators=operators(bundle, weights),
        gaps=gaps,
        replacements=chosen,
        checks=check_counts(bundle),
        failures=failures,
        nearest=nearest_cases(bundle, weights),
        skipped=skipped_cases(bundle),
        canary=steps,
        next=actions[:ACTIONS],
        more_actions=max(0, len(actions) - ACTIONS),
        right=how_right(bundle),
        errors=operator_errors(bundle),
        warned=warned_operators(bundle),
        fast=how_fast(bundle),
        points=points(bundle),
        beside=beside(bundle),
    )


def _why(bundle: Bundle, stages: tuple[Stage, ...]) -> str:
    broken = [stage for stage in stages if stage.status != "pass"]
    if broken:
        # Stages that only wait for an earlier one say nothing new.
        own = [stage for stage in broken if stage.status != "missing" or not stage.blocked_by]
        return "; ".join(f"{stage.name}: {stage.headline}" for stage in own)
    counts = check_counts(bundle)
    away = counts.get("fell_back", 0)
    held = counted(counts.get("pass", 0), "numerics case") + (
        f" held on the device, {away:,} on the CPU" if away else " held"
    )
    passed = [stage for stage in bundle.canary.stages if stage.status == "pass"] if bundle.canary else []
    undecided = sum(len(stage.warnings) for stage in passed)
    steps = counted(len(passed), "canary stage") if passed else "no canary stage"
    met = (
        f"{steps} met their gates, {counted(undecided, 'gate')} not decided" if undecided else f"{steps} met every gate"
    )
    signatures = counted(len(bundle.trace.entries), "signature")
    return f"all {signatures} have an implementation on {bundle.device}, {held}, and {met}"


def _caveats(bundle: Bundle, weights: Weights, chosen: tuple[Choice, ...]) -> tuple[str, ...]:
    planted = [f"{name}: {value}" for name, value in bundle.environment.items() if name.startswith(PLANTED)]
    lines = [f"{text}: such a run says nothing about a device" for text in planted]
    lines += [*_phases_left_out(bundle), *_unchecked(bundle, weights), *_on_the_cpu(chosen), *_never_ran(chosen)]
    if bundle.canary is not None and bundle.canary.allow_unverified:
        lines.append("the canary was entered with --allow-unverified: the numerics of its lock need not have passed")
    claimed = [entry for entry in bundle.inventory.entries if entry.evidence == "claimed"] if bundle.inventory else []
    if claimed:
        lines.append(f"{counted(len(claimed), 'verdict')} of the inventory rest on a data sheet, not on a probe")
    return tuple(lines)


def _phases_left_out(bundle: Bundle) -> list[str]:
    return [
        f"phase {phase.name} was not traced: {phase.reason or 'it made no call'}"
        for phase in bundle.trace.phases
        if not phase.calls
    ]


def _unchecked(bundle: Bundle, weights: Weights) -> list[str]:
    if bundle.numerics is None:
        return []
    judged = {case.signature for case in bundle.numerics.cases if case.status != "skipped"}
    left = sorted({case.signature for case in bundle.numerics.cases} - judged)
    known = Counter(case.status for case in bundle.numerics.cases)["xfail"]
    lines = []
    if left:
        calls, share = weights.of(left)
        worth = f", {share_text(share)} of the roofline time" if share else ""
        lines.append(
            f"the numbers of {counted(len(left), 'signature')} were not checked ({counted(calls, 'call')}{worth})"
        )
    if known:
        lines.append(f"{counted(known, 'case fails', 'cases fail')} as listed among the known failures")
    return lines


def _on_the_cpu(chosen: tuple[Choice, ...]) -> list[str]:
    away = [one for one in chosen if one.kind == "cpu_fallback"]
    if not away:
        return []
    share = sum(one.share for one in away)
    worth = f", {share_text(share)} of the roofline time" if share else ""
    names = {one.operator for one in away}
    verb = "runs" if len(names) == 1 else "run"
    return [
        f"{counted(len(names), 'operator')} {verb} on the CPU ({counted(sum(one.calls for one in away), 'call')}{worth})"
    ]


def _never_ran(chosen: tuple[Choice, ...]) -> list[str]:
    idle = [f"{one.implementation} for {one.operator}" for one in chosen if one.ran == 0]
    if not idle:
        return []
    return [f"{counted(len(idle), 'locked implementation')} never ran in the canary: {joined(idle)}"]
