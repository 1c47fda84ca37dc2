"""Does a device have a kernel for a call? By overload, dtype and rank, from the profile and raw registrations."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from day0.devices.leaves import is_metadata_view
from day0.devices.profile import ALWAYS_ON_DEVICE, DeviceProfile
from day0.devices.profile_parts import Details, Effect, Lack
from day0.errors import Day0Error
from day0.records import Evidence
from day0.reference_ops.signatures import resolve

__all__ = ["Support", "call_text", "operator_exists", "supports"]

_CONVOLUTIONS = frozenset({"aten::convolution_overrideable", "aten::convolution_backward_overrideable"})
"""What torch's composite convolution calls on a device that torch does not know by name. For one that it knows, it
calls that device's own library."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Support:
    """The answer for one call, with how one knows."""

    supported: bool
    reason: str
    evidence: Evidence
    effect: Effect = "refuses"
    """What happens to a call that is not supported."""
    registered: bool = False
    """Whether a call that is not supported meets a kernel all the same: torch then puts nothing in its place."""
    known: bool = True
    """False where neither the profile nor this build of torch says whether there is a kernel."""


def supports(
    profile: DeviceProfile,
    op: str,
    dtypes: tuple[str, ...],
    ranks: tuple[int, ...],
    details: Details | None = None,
) -> Support:
    """Say whether the device has its own kernel for `namespace::name.overload` with tensors like these.

    Layouts and sizes count where `details` are given.
    """
    strange = [dtype for dtype in dtypes if dtype not in profile.dtypes]
    if strange:
        # Nothing that torch could put in its place would hold such a tensor either.
        reason = f"{profile.name} does not hold {strange[0]}"
        known = bool(profile.dtypes)
        reason = reason if known else f"the profile {profile.name} names no dtypes"
        return Support(supported=False, reason=reason, evidence=profile.evidence, registered=known, known=known)
    lack = profile.lack_of(op, dtypes, ranks, details)
    if lack is not None:
        return Support(
            supported=False,
            reason=lack.reason,
            evidence=lack.evidence or profile.evidence,
            effect=lack.effect,
            registered=_stays_registered(profile, op, lack),
        )
    grant = profile.operators.get(op)
    if grant is not None and call_text(dtypes, ranks) in grant.ran:
        return Support(supported=True, reason="it was run on the device and agreed with the CPU", evidence="probed")
    return _kernel_of(profile, op)


def call_text(dtypes: tuple[str, ...], ranks: tuple[int, ...]) -> str:
    """Return dtype and rank of each tensor, then dtype arguments: `float32[2] int64[1] bfloat16`."""
    asked = dtypes[len(ranks) :]
    return " ".join((*(f"{dtype}[{rank}]" for dtype, rank in zip(dtypes, ranks, strict=False)), *asked)) or "no tensors"


def operator_exists(op: str) -> bool:
    """Say whether torch has an operator of that name, with its overload, in this process."""
    try:
        schema = resolve(op)._schema
        torch._C._dispatch_find_schema_or_throw(schema.name, schema.overload_name)
    except (Day0Error, RuntimeError):
        return False  # RuntimeError: one of TorchScript alone, such as prim::Print, which the dispatcher does not know
    return True


def _stays_registered(profile: DeviceProfile, op: str, lack: Lack) -> bool:
    """Say whether a kernel is registered though a call runs into a lack.

    A simulated device does not register what it lacks as a whole. Of a device that is not here, that is believed.
    """
    if lack.is_whole and (profile.torch_device == "sim" or not _in_build(profile)):
        return False
    return _kernel_of(profile, op).supported


def _kernel_of(profile: DeviceProfile, op: str) -> Support:
    """Say whether the device has a kernel of an overload, or needs none."""
    if op.partition(".")[0] in ALWAYS_ON_DEVICE:
        return Support(supported=True, reason="every device can hold and copy a tensor", evidence="static")
    if op.startswith("aten::") and is_metadata_view(op):
        return Support(supported=True, reason="a view: sizes and strides only, nothing runs", evidence="static")
    return _registered(profile, op)


def _registered(profile: DeviceProfile, op: str) -> Support:
    if profile.torch_device == "sim":
        return _on_sim(profile, op)
    if op in _CONVOLUTIONS and profile.kernels != "PrivateUse1":
        reason = f"torch calls the convolution of its {profile.kernels} library instead"
        return Support(supported=True, reason=reason, evidence=profile.evidence)
    if not _in_build(profile):
        return _not_here(profile, op)
    if _has_kernel(op, profile.kernels):
        return Support(supported=True, reason=f"a {profile.kernels} kernel is registered", evidence=profile.evidence)
    return Support(supported=False, reason=_no_kernel(profile.kernels), evidence=profile.evidence)


def _on_sim(profile: DeviceProfile, op: str) -> Support:
    """Say what `sim` registers: its own kernels and the CPU's of aten. Nobody has written other kernels for it."""
    from day0.devices.sim.own import CLOSED_COMPOSITES, OWN_KERNELS  # nobody else's profile needs the device

    if op in OWN_KERNELS or op in CLOSED_COMPOSITES:
        return Support(supported=True, reason="the simulated device has its own", evidence=profile.evidence)
    here = torch._C._get_privateuse1_backend_name() == "sim"
    key = profile.kernels if op.startswith("aten::") else "PrivateUse1"
    if _has_kernel(op, key) and (here or key != "PrivateUse1"):
        return Support(supported=True, reason=f"a {key} kernel is registered", evidence=profile.evidence)
    return Support(supported=False, reason=_no_kernel(profile.kernels), evidence=profile.evidence)


def _not_here(profile: DeviceProfile, op: str) -> Support:
    """Answer for a device whose kernels this build of torch does not hold: what a profile does not name, it takes.

    That holds for what every backend begins with, the operators for which the CPU has a kernel. Of others nothing is
    known, but for ours: nobody else has kernels for those.
    """
    absent = f"this build of torch has no {profile.kernels} kernels of {profile.torch_device} to ask"
    if op.startswith("aten::") and (_has_kernel(op, "CPU") or op in _CONVOLUTIONS):
        reason = f"the profile does not name it, and the CPU has it; {absent}"
        return Support(supported=True, reason=reason, evidence="claimed")
    if op.startswith("day0::"):
        # Known without a device, and never measured on one.
        evidence: Evidence = "static" if profile.evidence == "probed" else profile.evidence
        return Support(supported=False, reason=f"{_no_kernel(profile.kernels)}; it is ours", evidence=evidence)
    reason = f"no kernel for it is known: the profile does not name it, the CPU has none, and {absent}"
    return Support(supported=False, reason=reason, evidence="claimed", known=False)


def _no_kernel(key: str) -> str:
    return f"no {key} kernel is registered for it"


def _has_kernel(op: str, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op, key))


def _in_build(profile: DeviceProfile) -> bool:
    """Say whether the kernels of the device can be asked here. PrivateUse1 is one key for all devices of vendors."""
    if profile.kernels == "PrivateUse1" and torch._C._get_privateuse1_backend_name() != profile.torch_device:
        return False
    return _has_kernel("aten::mm", profile.kernels)
