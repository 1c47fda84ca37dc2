"""From what a device answered to a profile of it, with the evidence for each line."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import yaml

from day0 import __version__
from day0.devices.leaves import composite_kind, leaf_dtypes, leaf_ranks
from day0.devices.probe import Probed
from day0.devices.probe_record import Measured, ProbedCall
from day0.devices.profile import DeviceProfile
from day0.devices.profile_parts import Basis, Effect, Grant, Lack, MatmulRule, ProbedWith
from day0.devices.support import call_text
from day0.reference_ops.signatures import resolve

__all__ = ["probed_profile", "profile_yaml", "undescribed"]

_EFFECTS: dict[str, Effect] = {"refused": "refuses", "wrong": "wrong", "crashed": "crashes", "hung": "hangs"}
_ORDER = ("crashed", "hung", "wrong", "refused")
"""Worst first: where calls of an operator end in several ways, the line says the worst."""


@dataclass(kw_only=True, slots=True)
class _Seen:
    """What became of the calls of one operator, all overloads together."""

    good: list[ProbedCall] = field(default_factory=list)
    bad: list[ProbedCall] = field(default_factory=list)
    stand_in: list[ProbedCall] = field(default_factory=list)
    """Those that ran by a composite kernel, where the device could have had one of its own."""


def probed_profile(base: DeviceProfile, probed: Probed, *, date: str) -> DeviceProfile:
    """Return the profile that the answers add up to. Figures that were not measured are those of `base`, as it says.

    What was not tried is neither lacking nor granted: what the dispatcher says of it counts, as for any profile.
    """
    held = [one for one in probed.dtypes if one.result.status == "ran"]
    figures = _figures(base, probed)
    plain = base.model_copy(
        update={
            **figures,
            "evidence": "probed",
            "source": f"probed on {date} on {probed.facts.name} with torch {probed.facts.torch}; see `probed`",
            "dtypes": tuple(one.name for one in held),
            "storage_dtypes": tuple(one.name for one in held if one.result.way == "storage"),
            "fallback": "cpu" if any(one.result.way == "fallback" for one in probed.calls) else "raise",
            "devices": probed.facts.devices,
            "operators": {},
            "lacks": {},
            "probed": _with(probed, date),
            "basis": _basis(base, figures),
        }
    )
    lacks = dict(sorted(_lacks(base, _by_operator(plain, probed.calls)).items()))
    return plain.model_copy(update={"lacks": lacks, "operators": _ran(probed.calls)})


def undescribed(name: str, imports: tuple[str, ...]) -> DeviceProfile | None:
    """Return a profile to begin with for a device of torch that nobody has described; None if torch has none such.

    A device that a package registers is known only in the worker, which imports that: there the name is believed.
    """
    module = next((one for one in imports if not one.endswith(".py")), None)
    kernels = {"xpu": "XPU", "mps": "MPS", "hpu": "HPU", "mtia": "MTIA", "cpu": "CPU", "cuda": "CUDA"}
    if not name.isidentifier() or (name not in kernels and not imports):
        return None
    return DeviceProfile.model_validate(
        {
            "schema": "day0.device/1",
            "name": name,
            "title": f"torch's device {name}",
            "torch_device": name,
            "import_module": module,
            "kernels": kernels.get(name, "PrivateUse1"),
            "evidence": "claimed",
            "source": "a guess, where it was not probed",
            "dtypes": [],
            "memory_gib": 1.0,
            "bandwidth_gb_s": 100.0,
        }
    )


def _figures(base: DeviceProfile, probed: Probed) -> dict[str, Any]:
    """Return the figures that were measured, by field of the profile."""
    found = probed.measured
    figures: dict[str, Any] = {
        name: getattr(found, name)
        for name in ("bandwidth_gb_s", "link_gb_s", "launch_us", "sync_us", "subnormals")
        if getattr(found, name) is not None
    }
    if probed.facts.memory_bytes:
        figures["memory_gib"] = round(probed.facts.memory_bytes / 2**30, 3)
    if found.tflops:
        figures["tflops"] = {**base.tflops, **found.tflops}
    figures["matmul"] = _matmul(base, found)
    return figures


def _matmul(base: DeviceProfile, found: Measured) -> dict[str, MatmulRule]:
    """Return a rule for each dtype in which matrices are not multiplied as the CPU does."""
    rules: dict[str, dict[str, str]] = {}
    if found.matmul_inputs is not None and found.matmul_inputs != "exact":
        rules["float32"] = {"inputs": found.matmul_inputs}
    rules |= {name: {"accumulate": sums} for name, sums in found.accumulate.items() if sums != "float32"}
    told = {name: base.matmul[name].model_dump() if name in base.matmul else {} for name in rules}
    return {name: MatmulRule.model_validate({**told[name], **rule}) for name, rule in rules.items()}


def _with(probed: Probed, date: str) -> ProbedWith:
    facts = probed.facts
    outcomes = Counter(one.result.status for one in probed.calls)
    return ProbedWith(
        date=date,
        device=facts.name,
        driver=facts.driver,
        torch=facts.torch,
        python=facts.python,
        platform=facts.platform,
        day0=__version__,
        calls=len(probed.calls),
        outcomes=dict(sorted(outcomes.items())),
    )


_HOW = {
    "bandwidth_gb_s": "the best of five copies within its memory",
    "dtypes": "a copy there and back keeps all bits",
    "fallback": "whether calls without any kernel of the device ran nevertheless",
    "launch_us": "200 additions of one number",
    "link_gb_s": "the best of five copies from the host",
    "matmul": "products and sums whose last bits a narrower dtype does not hold",
    "memory_gib": "what the device says of itself",
    "storage_dtypes": "held, but neither added nor summed",
    "subnormals": "the product of a subnormal number with one",
    "sync_us": "50 numbers read back, less their launches",
    "tflops": "the best of five products of square matrices, for the dtypes torch multiplies; see the base for others",
}
"""What a probed field rests on."""


def _basis(base: DeviceProfile, figures: dict[str, Any]) -> dict[str, Basis]:
    """Say of each field by what it was probed, or how the base knows it."""
    probed = {*figures, "dtypes", "storage_dtypes", "fallback"}
    basis = {}
    for name in sorted({*_HOW, "forward_refuses"}):
        if name in probed:
            basis[name] = Basis(evidence="probed", source=_HOW[name])
        elif name in base.model_fields_set:
            basis[name] = base.basis.get(name, Basis(evidence=base.evidence, source=base.source))
    return basis


def _by_operator(plain: DeviceProfile, calls: Iterable[ProbedCall]) -> dict[str, _Seen]:
    seen: dict[str, _Seen] = defaultdict(_Seen)
    for one in calls:
        op, result = one.signature.op, one.result
        dtypes, ranks = leaf_dtypes(one.signature), leaf_ranks(one.signature)
        if result.status == "skipped" or _asks_for_ours(one):
            continue
        if set(dtypes) - set(plain.dtypes) or plain.lack_of(op, dtypes, ranks) is not None:
            continue  # the dtypes say so already
        base = op.partition(".")[0]
        if result.status != "ran":
            leaf = result.leaf
            seen[leaf if leaf and leaf != base else base].bad.append(one)
            if leaf and leaf != base and _could_have_own(op):
                seen[base].stand_in.append(one)
        elif result.way in ("composite", "composite_with_sync") and (
            result.way == "composite_with_sync" or _could_have_own(op)
        ):
            seen[base].stand_in.append(one)
        elif result.way == "fallback":
            seen[result.leaf].bad.append(one)
        else:
            seen[base].good.append(one)
    return seen


def _asks_for_ours(call: ProbedCall) -> bool:
    """Say whether nobody has written this operator, which is not torch's, for the device: no lack of the device."""
    return not call.signature.op.startswith("aten::") and bool(call.result.leaf)


def _could_have_own(op: str) -> bool:
    """Say whether torch's CPU has a kernel of its own where a composite one would do, too.

    An operator that allocates and calls its out form is not among them: there the out form is the kernel.
    """
    if not torch._C._dispatch_has_kernel_for_dispatch_key(op, "CPU") or resolve(op).is_view:
        return False
    return composite_kind(op) in ("explicit", "implicit")


def _lacks(base: DeviceProfile, seen: dict[str, _Seen]) -> dict[str, Lack]:
    lacks: dict[str, Lack] = {}
    for name, one in seen.items():
        if one.bad:
            lacks |= _from_bad(name, one)
        if one.stand_in and not one.good and name not in lacks:
            reason = one.stand_in[0].result.reason or "no kernel of its own; torch's composite kernel stands in"
            if one.stand_in[0].result.status != "ran":
                reason = "no kernel of its own; its composite kernel fails"
            lacks[name] = Lack(reason=reason, evidence="probed")
    return {name: _with_words(base, name, lack) for name, lack in lacks.items()}


def _with_words(base: DeviceProfile, name: str, lack: Lack) -> Lack:
    """Keep the reason that the base gives for the same lack, before what was seen."""
    known = base.lacks.get(name)
    if known is None or base.probed is not None:
        return lack
    return lack.model_copy(update={"reason": f"{known.reason}; probed: {lack.reason}"})


def _from_bad(name: str, seen: _Seen) -> dict[str, Lack]:
    """Return the lines for an operator of which calls failed: all of it, some overloads, dtypes, ranks or layouts."""
    own = [one for one in seen.bad if one.signature.op.partition(".")[0] == name]
    elsewhere = [one for one in seen.bad if one not in own]
    if not seen.good and (elsewhere or _says_missing(own) or _many(own)):
        return {name: _line([*own, *elsewhere])}
    lacks: dict[str, Lack] = {}
    overloads = {one.signature.op for one in own}
    for op in overloads:
        bad = [one for one in own if one.signature.op == op]
        good = [one for one in seen.good if one.signature.op == op]
        alone = len(overloads) == 1 and not [one for one in seen.good if one.signature.op != op]
        key = name if alone else op
        lacks[key] = _line(bad) if not good and _says_missing(bad) else _line(bad, **_narrowed(bad, good))
    return lacks


def _says_missing(calls: list[ProbedCall]) -> bool:
    return any(one.result.leaf or one.result.way == "fallback" for one in calls)


def _many(calls: list[ProbedCall]) -> bool:
    """Say whether failures of several dtypes and no success are enough to take the operator away."""
    dtypes = {dtype for one in calls for dtype in leaf_dtypes(one.signature)}
    return len(dtypes) > 2


def _narrowed(bad: list[ProbedCall], good: list[ProbedCall]) -> dict[str, tuple[Any, ...]]:
    """Find what only the failing calls have: a dtype, else a number of dimensions, else both."""
    worked = {dtype for one in good for dtype in leaf_dtypes(one.signature)}
    blamed = {dtype for one in bad for dtype in leaf_dtypes(one.signature)} - worked
    if all(set(leaf_dtypes(one.signature)) & blamed for one in bad):
        return {"dtypes": tuple(sorted(blamed))}
    worked_ranks = {rank for one in good for rank in leaf_ranks(one.signature)}
    ranks = {rank for one in bad for rank in leaf_ranks(one.signature)} - worked_ranks
    if all(set(leaf_ranks(one.signature)) & ranks for one in bad):
        return {"ranks": tuple(sorted(ranks))}
    # Neither alone explains it. Wider than what was seen, but a call too many looked at beats one that crashes.
    return {
        "dtypes": tuple(sorted({dtype for one in bad for dtype in leaf_dtypes(one.signature)[:1]})),
        "ranks": tuple(sorted({rank for one in bad for rank in leaf_ranks(one.signature)[:1]})),
    }


def _line(calls: list[ProbedCall], **narrowed: tuple[Any, ...]) -> Lack:
    worst = min(calls, key=lambda one: _ORDER.index(one.result.status) if one.result.status in _ORDER else len(_ORDER))
    effect = _EFFECTS.get(worst.result.status, "refuses")
    said = worst.result.reason.partition(" This could be because")[0]
    what = f"{said} ({call_text(leaf_dtypes(worst.signature), leaf_ranks(worst.signature))})"
    return Lack.model_validate({"reason": what, "effect": effect, "evidence": "probed", **narrowed})


def _ran(calls: Iterable[ProbedCall]) -> dict[str, Grant]:
    """List the calls that ran on the device by a kernel of its own and agreed, by overload."""
    found: dict[str, set[str]] = defaultdict(set)
    failed = {
        (one.signature.op, call_text(leaf_dtypes(one.signature), leaf_ranks(one.signature)))
        for one in calls
        if one.result.status not in ("ran", "skipped")
    }
    for one in calls:
        text = call_text(leaf_dtypes(one.signature), leaf_ranks(one.signature))
        native = one.result.status == "ran" and one.result.way == "native"
        if native and one.signature.op.startswith("aten::") and (one.signature.op, text) not in failed:
            found[one.signature.op].add(text)
    return {op: Grant(ran=tuple(sorted(texts)), evidence="probed") for op, texts in sorted(found.items())}


def profile_yaml(profile: DeviceProfile) -> str:
    """Return a profile as the text of a YAML file."""
    value = profile.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    value = {"schema": profile.schema_, "name": profile.name, **value}
    # Lists of plain words stand in one line, everything else in blocks.
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)
    return f"# {profile.title}. Written by `day0 device probe`.\n{text}"
