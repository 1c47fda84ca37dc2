"""Can a reference run on a device? Only if the device has every operator that it calls."""

from __future__ import annotations

from day0.devices.leaves import calls_below
from day0.devices.profile import DeviceProfile
from day0.devices.verdict import classify
from day0.errors import USER_ERRORS, Day0Error
from day0.implementation import Implementation
from day0.records import GAP_VERDICTS, Signature
from day0.reference_ops.signatures import materialise

__all__ = ["refuse_leaves"]


def refuse_leaves(one: Implementation, signature: Signature, profile: DeviceProfile) -> str:
    """Say what the device lacks for running an implementation's code, or return an empty text.

    The code runs on meta, so nothing is computed; code that reads values there cannot be judged and is refused.
    """
    try:
        args, kwargs = materialise(signature, "meta")
        calls = calls_below(one.run, args, kwargs)
    except Day0Error as error:
        return f"it refuses the call: {error.what}"
    except USER_ERRORS as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        return f"it reads values on the host or needs what meta lacks: {first}"
    for call in calls:
        found = classify(profile, call)
        if found.verdict in GAP_VERDICTS:
            return f"it calls {call.op}, which the device lacks: {found.reason}"
    return ""
