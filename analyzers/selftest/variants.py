"""A device that could have a bug, where the one that was asked for lacks a dtype that the bug needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from day0.analyzers.cases.forms._values import changed
from day0.devices.faults._fault import Fault
from day0.devices.profile import DeviceProfile
from day0.records import Signature, TensorValue
from day0.reference_ops.signatures import signature_id

__all__ = ["variant_for"]


def variant_for(
    fault: Fault, profile: DeviceProfile, signatures: Sequence[Signature]
) -> tuple[DeviceProfile, tuple[Signature, ...]]:
    """Return the device with the dtypes that a fault needs, and the float32 calls of its operators in those dtypes."""
    lacking = [one for one in fault.needs if one not in profile.dtypes]
    wider = profile.model_copy(update={"dtypes": (*profile.dtypes, *lacking)})
    calls = (one for dtype in lacking for one in _in_dtype(fault.operators, signatures, dtype))
    return wider, tuple({signature_id(one): one for one in calls}.values())


def _in_dtype(operators: Iterable[str], signatures: Sequence[Signature], dtype: str) -> Iterable[Signature]:
    wanted = set(operators)

    def cast(value: TensorValue) -> TensorValue:
        return value.model_copy(update={"dtype": dtype}) if value.dtype == "float32" else value

    for one in signatures:
        made = changed(one, cast) if wanted & {one.op, one.op.partition(".")[0]} else one
        if made != one:
            yield made
