"""Calls that come out wrong without any planted fault: torch's own composite kernels have bugs too."""

from __future__ import annotations

from day0.devices.profile import DeviceProfile
from day0.devices.verdict import classify
from day0.records import Signature
from day0.reference_ops.signatures import tensor_values

__all__ = ["defect_of"]


def defect_of(signature: Signature, profile: DeviceProfile) -> str:
    """Return what is wrong with a call on a device that nothing is planted on; nothing for nearly all.

    A check that reports such a call is right, so it is neither a false alarm nor a find.
    """
    dtypes = {one.dtype for one in tensor_values(signature)}
    if signature.op != "aten::native_layer_norm" or len(dtypes) < 2:
        return ""
    if classify(profile, signature).verdict not in ("decomposes", "decomposes_with_sync"):
        return ""
    return (
        "torch's composite layer norm returns the dtype of the weights, where its meta kernel, the CPU and CUDA return "
        "that of the input"
    )
