"""What a device says by itself about one call, by static evidence: the verdict ladder of the design.

Each step is what torch's dispatcher would do, asked of the profile and of raw registrations:

1. The profile says that the call crashes or hangs: `crashes`. That it gives wrong results: `missing`.
2. A kernel of the device is registered and takes the call: `native`. It is registered and refuses: `missing`, since
   torch puts neither a composite nor a fallback in the place of a kernel that is there.
3. No kernel, but a composite one: its code is run on meta (or on the CPU, if it reads values) to see what it calls,
   and those calls are asked in turn: `out_wrapper`, `decomposes`, `decomposes_with_sync`, or as the first call below
   that ends it.
4. Neither: `cpu_fallback` if the device falls back and the CPU has a kernel for it, else `missing`.
5. What cannot be found out is `unknown`: an operator that torch does not have here, a composite that stops while it
   is watched, other people's operators on a device whose kernels this build of torch does not hold.

Calls are taken to stand in a module's forward, as traced ones do.
"""

from __future__ import annotations

from dataclasses import dataclass

from day0.devices.leaves import (
    Expansion,
    details_of,
    expand,
    is_plumbing,
    leaf_dtypes,
    leaf_ranks,
    result_dtypes,
    wait_of,
    writes_out,
)
from day0.devices.profile import DTYPES, DeviceProfile, cpu_profile
from day0.devices.support import Support, call_text, operator_exists, supports
from day0.records import GAP_VERDICTS, Evidence, Leaf, Signature, Verdict

__all__ = ["Classified", "classify"]

MAX_DEPTH = 6
"""Composites of composites: deeper than any in torch."""

_WEAKEST: tuple[Evidence, ...] = ("claimed", "static", "probed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Classified:
    """What the device says by itself about one call."""

    verdict: Verdict
    reason: str
    evidence: Evidence
    leaves: tuple[Leaf, ...] = ()
    """For a composite: the calls at the bottom, in the order of their first call, each with its own verdict."""


def classify(profile: DeviceProfile, signature: Signature, above: frozenset[str] = frozenset()) -> Classified:
    """Say what the device alone does with one call. `above` are the calls that this one stands below, as texts."""
    if not operator_exists(signature.op):
        reason = "torch has no operator of that name here: import the package that brings it"
        return Classified(verdict="unknown", reason=reason, evidence=profile.evidence)
    details = details_of(signature) if profile.has_details else None
    support = supports(profile, signature.op, leaf_dtypes(signature), leaf_ranks(signature), details)
    if support.supported:
        return _native(profile, signature, support)
    if support.effect in ("crashes", "hangs"):
        # The kernel is registered, so torch takes it, and no composite in its place.
        return Classified(verdict="crashes", reason=support.reason, evidence=support.evidence)
    if support.effect == "wrong":
        reason = f"it runs, and gives wrong results: {support.reason}"
        return Classified(verdict="missing", reason=reason, evidence=support.evidence)
    if support.registered:
        return Classified(verdict="missing", reason=support.reason, evidence=support.evidence)
    return _without_kernel(profile, signature, support, above)


def _native(profile: DeviceProfile, signature: Signature, support: Support) -> Classified:
    """The kernel takes the arguments; what it returns may be too much for the device all the same."""
    wait = wait_of(signature)
    if wait in profile.forward_refuses:
        reason = f"{profile.name} refuses it inside forward: the host would wait for {_WAITS_FOR[wait]}"
        return Classified(verdict="missing", reason=reason, evidence=profile.evidence)
    if len(profile.dtypes) < len(DTYPES):
        strange = next((dtype for dtype in result_dtypes(signature) if dtype not in profile.dtypes), None)
        if strange is not None:
            reason = f"its result is in {strange}, which {profile.name} does not hold"
            return Classified(verdict="missing", reason=reason, evidence=profile.evidence)
    return Classified(verdict="native", reason=support.reason, evidence=support.evidence)


_WAITS_FOR = {"item": "a value", "nonzero": "a size that depends on values"}


def _without_kernel(
    profile: DeviceProfile, signature: Signature, support: Support, above: frozenset[str]
) -> Classified:
    text = _text(signature)
    on_cpu = profile.torch_device == "cpu"
    expansion = expand(signature, "cpu" if on_cpu else "meta", same_sizes=profile.has_details)
    if expansion is None:
        return _without_composite(profile, signature, support)
    why = "" if text not in above and len(above) < MAX_DEPTH else "it calls itself"
    why = why or (f"it stopped while it was watched: {expansion.failure}" if expansion.failure else "")
    if not why and wait_of(signature) in profile.forward_refuses:
        reason = f"{support.reason}; its composite kernel waits for the host, which {profile.name} refuses in forward"
        return Classified(verdict="leaf_missing", reason=reason, evidence=support.evidence)
    if why:
        reason = f"{support.reason}; torch has a composite kernel, but what that calls is not known: {why}"
        return Classified(verdict="unknown", reason=reason, evidence=support.evidence)
    return _from_leaves(profile, signature, expansion, support, above | {text})


def _text(signature: Signature) -> str:
    return f"{signature.op} {call_text(leaf_dtypes(signature), leaf_ranks(signature))}"


def _without_composite(profile: DeviceProfile, signature: Signature, support: Support) -> Classified:
    if not support.known:
        return Classified(verdict="unknown", reason=support.reason, evidence=support.evidence)
    if profile.fallback == "raise":
        return Classified(verdict="missing", reason=support.reason, evidence=support.evidence)
    on_cpu = supports(cpu_profile(), signature.op, leaf_dtypes(signature), leaf_ranks(signature))
    if on_cpu.supported:
        reason = f"{support.reason}; the device falls back to the CPU"
        return Classified(verdict="cpu_fallback", reason=reason, evidence=support.evidence)
    reason = f"{support.reason}; the device falls back to the CPU, which lacks it too: {on_cpu.reason}"
    return Classified(verdict="missing", reason=reason, evidence=support.evidence)


def _from_leaves(
    profile: DeviceProfile, signature: Signature, expansion: Expansion, support: Support, above: frozenset[str]
) -> Classified:
    found = [(one, classify(profile, one, above)) for one in expansion.leaves]
    leaves = tuple(leaf for one, below in found for leaf in _bottom(one, below))
    evidence = min((support.evidence, *(below.evidence for _, below in found)), key=_WEAKEST.index)
    verdict, reason = _of_leaves(signature, [leaf for leaf in leaves if not is_plumbing(leaf.op)], leaves)
    return Classified(verdict=verdict, reason=f"{support.reason}; {reason}", evidence=evidence, leaves=leaves)


def _bottom(signature: Signature, found: Classified) -> tuple[Leaf, ...]:
    """Return the leaves of a leaf that is itself composed, else the leaf.

    A composite below which nothing computes does its work by itself.
    """
    composed = found.verdict in ("decomposes", "decomposes_with_sync", "leaf_missing")
    if composed and any(not is_plumbing(leaf.op) for leaf in found.leaves):
        return found.leaves
    leaf = Leaf(
        op=signature.op,
        supported=found.verdict not in GAP_VERDICTS,
        reason=found.reason,
        host_sync=bool(wait_of(signature)),
        verdict=found.verdict,
        call=call_text(leaf_dtypes(signature), leaf_ranks(signature)),
    )
    return (leaf,)


def _of_leaves(signature: Signature, computing: list[Leaf], leaves: tuple[Leaf, ...]) -> tuple[Verdict, str]:
    """Say what a composite comes to. The first call below it that cannot run ends it, and no later one matters."""
    alone = computing[0] if len(computing) == 1 and _is_out_form(signature, computing[0]) else None
    ends = next((leaf for leaf in leaves if leaf.verdict in GAP_VERDICTS and leaf.verdict != "cpu_fallback"), None)
    if ends is not None:
        # In another form, into `out` or in place, it is the operator itself that is missing, not a part of it.
        part: Verdict = "missing" if _same(signature, ends) else "leaf_missing"
        names = ", ".join(dict.fromkeys(leaf.op for leaf in leaves if leaf.verdict in GAP_VERDICTS))
        return ends.verdict if ends.verdict in ("crashes", "unknown") else part, f"below it {names}: {ends.reason}"
    fallen = [leaf.op for leaf in leaves if leaf.verdict == "cpu_fallback"]
    if fallen:
        return "cpu_fallback", f"its composite kernel runs, with {', '.join(dict.fromkeys(fallen))} on the CPU"
    if alone is not None:
        return "out_wrapper", f"it allocates, then calls {alone.op}"
    own = (signature.op,) if wait_of(signature) else ()  # on meta some leave out what they read
    waits = [*own, *(leaf.op for leaf in leaves if leaf.host_sync)]
    if waits:
        places = ", ".join(dict.fromkeys(waits))
        return "decomposes_with_sync", f"its composite kernel runs, but waits for the host in {places}"
    names = ", ".join(dict.fromkeys(leaf.op for leaf in leaves)) or "nothing that the device has to run"
    return "decomposes", f"its composite kernel comes down to {names}"


def _is_out_form(signature: Signature, leaf: Leaf) -> bool:
    """Say whether a leaf is the same operator, writing into what the wrapper allocates."""
    return _same(signature, leaf) and (writes_out(leaf.op) or leaf.verdict == "out_wrapper")


def _same(signature: Signature, leaf: Leaf) -> bool:
    return leaf.op.partition(".")[0].removesuffix("_") == signature.op.partition(".")[0].removesuffix("_")
