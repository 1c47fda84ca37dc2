"""Does a device have a kernel for a call? By overload, dtype and rank, from the profile and raw registrations."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from day0.devices.leaves import is_metadata_view
from day0.devices.profile import ALWAYS_ON_DEVICE, DeviceProfile
from day0.devices.profile_parts import Details, Effect
from day0.records import Evidence

__all__ = ["Support", "call_text", "supports"]

_OUT_OF_TREE = frozenset({"aten::convolution_overrideable", "aten::convolution_backward_overrideable"})
"""What torch calls on a device of its own instead of a convolution of the CPU's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Support:
    """The answer for one call, with how one knows."""

    supported: bool
    reason: str
    evidence: Evidence
    effect: Effect = "refuses"
    """What happens to a call that is not supported."""


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
        return Support(supported=False, reason=f"{profile.name} does not hold {strange[0]}", evidence=profile.evidence)
    lack = profile.lack_of(op, dtypes, ranks, details)
    if lack is not None:
        known = lack.evidence or profile.evidence
        return Support(supported=False, reason=lack.reason, evidence=known, effect=lack.effect)
    grant = profile.operators.get(op)
    if grant is not None and call_text(dtypes, ranks) in grant.ran:
        return Support(supported=True, reason="it was run on the device and agreed with the CPU", evidence="probed")
    if op.partition(".")[0] in ALWAYS_ON_DEVICE:
        return Support(supported=True, reason="every device can hold and copy a tensor", evidence="static")
    if op.startswith("aten::") and is_metadata_view(op):
        return Support(supported=True, reason="a view: sizes and strides only, nothing runs", evidence="static")
    return _registered(profile, op)


def call_text(dtypes: tuple[str, ...], ranks: tuple[int, ...]) -> str:
    """Return dtype and rank of each tensor, then dtype arguments: `float32[2] int64[1] bfloat16`."""
    asked = dtypes[len(ranks) :]
    return " ".join((*(f"{dtype}[{rank}]" for dtype, rank in zip(dtypes, ranks, strict=False)), *asked)) or "no tensors"


def _registered(profile: DeviceProfile, op: str) -> Support:
    key, evidence = profile.kernels, profile.evidence
    if profile.torch_device == "sim" and op in _OUT_OF_TREE:
        return Support(supported=True, reason="the simulated device has its own", evidence=evidence)
    if not op.startswith("aten::"):
        # A simulated device borrows the CPU's aten kernels, but nobody has written ours for it.
        key = "PrivateUse1" if profile.torch_device == "sim" else key
    elif not _key_in_build(key):
        key, evidence = "CPU", "claimed"
    if torch._C._dispatch_has_kernel_for_dispatch_key(op, key):
        note = "" if key == profile.kernels else f"; this build of torch has no {profile.kernels} kernels to ask"
        return Support(supported=True, reason=f"a {key} kernel is registered{note}", evidence=evidence)
    return Support(supported=False, reason=f"no {profile.kernels} kernel is registered for it", evidence=evidence)


def _key_in_build(key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key("aten::mm", key))
