"""What a device says by itself about one call, by static evidence: the verdict ladder of the design."""

from __future__ import annotations

from dataclasses import dataclass

from day0.devices.leaves import Expansion, details_of, expand, leaf_dtypes, leaf_ranks, syncs
from day0.devices.profile import DeviceProfile, load_profile
from day0.devices.support import supports
from day0.records import GAP_VERDICTS, Evidence, Leaf, Signature, Verdict

__all__ = ["Classified", "classify"]

MAX_DEPTH = 6
"""Composites of composites: deeper than any in torch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Classified:
    """What the device says by itself about one call."""

    verdict: Verdict
    reason: str
    evidence: Evidence
    leaves: tuple[Leaf, ...] = ()


def classify(profile: DeviceProfile, signature: Signature, depth: int = 0) -> Classified:
    """Say what the device alone does with one call."""
    details = details_of(signature) if profile.has_details else None
    support = supports(profile, signature.op, leaf_dtypes(signature), leaf_ranks(signature), details)
    if support.effect in ("crashes", "hangs"):
        # The kernel is registered, so torch takes it, and no composite in its place.
        return Classified(verdict="crashes", reason=support.reason, evidence=support.evidence)
    if support.supported:
        return Classified(verdict="native", reason=support.reason, evidence=support.evidence)
    expansion = expand(signature) if depth < MAX_DEPTH else None
    if expansion is None:
        return _without_composite(profile, signature, support.reason, support.evidence)
    if expansion.failure:
        reason = f"{support.reason}; its composite kernel stopped while it was expanded: {expansion.failure}"
        return Classified(verdict="unknown", reason=reason, evidence=support.evidence)
    return _from_leaves(profile, signature, expansion, support.reason, support.evidence, depth)


def _without_composite(profile: DeviceProfile, signature: Signature, reason: str, evidence: Evidence) -> Classified:
    if profile.fallback == "cpu":
        on_cpu = supports(load_profile("cpu"), signature.op, leaf_dtypes(signature), leaf_ranks(signature))
        if on_cpu.supported:
            return Classified(verdict="cpu_fallback", reason=f"{reason}; the device falls back", evidence=evidence)
        reason = f"{reason}; the device falls back to the CPU, which lacks it too: {on_cpu.reason}"
        return Classified(verdict="crashes", reason=reason, evidence=evidence)
    return Classified(verdict="missing", reason=reason, evidence=evidence)


def _from_leaves(
    profile: DeviceProfile, signature: Signature, expansion: Expansion, reason: str, evidence: Evidence, depth: int
) -> Classified:
    leaves = tuple(_leaf(profile, leaf, depth) for leaf in expansion.leaves if leaf.op != signature.op)
    lacking = [leaf for leaf in leaves if not leaf.supported]
    if lacking:
        names = ", ".join(sorted({leaf.op for leaf in lacking}))
        # An out wrapper without its out form is the operator itself missing, not a part of it.
        verdict: Verdict = "missing" if expansion.kind == "out_wrapper" else "leaf_missing"
        return Classified(
            verdict=verdict, reason=f"{reason}; below it {names}: {lacking[0].reason}", evidence=evidence, leaves=leaves
        )
    if expansion.kind == "out_wrapper":
        names = ", ".join(leaf.op for leaf in leaves)
        return Classified(
            verdict="out_wrapper", reason=f"allocates, then calls {names}", evidence="static", leaves=leaves
        )
    waits = [leaf.op for leaf in leaves if leaf.host_sync]
    names = ", ".join(sorted({leaf.op for leaf in leaves})) or "nothing that the device has to run"
    if waits:
        text = f"{reason}; its composite kernel runs, but waits for the host in {', '.join(sorted(set(waits)))}"
        return Classified(verdict="decomposes_with_sync", reason=text, evidence="static", leaves=leaves)
    return Classified(verdict="decomposes", reason=f"comes down to {names}", evidence="static", leaves=leaves)


def _leaf(profile: DeviceProfile, signature: Signature, depth: int) -> Leaf:
    found = classify(profile, signature, depth + 1)
    inner = any(leaf.host_sync for leaf in found.leaves)
    return Leaf(
        op=signature.op,
        supported=found.verdict not in GAP_VERDICTS,
        reason=found.reason,
        host_sync=syncs(signature.op) or inner,
    )
