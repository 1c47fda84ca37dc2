"""Calls that the check is tried on: the toy's, those of the probe suite, of the contracts' samples, and ordinary ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from math import prod

import torch

from day0.analyzers.kernel_check import calls_of
from day0.analyzers.selftest.choosing import by_turns, dtypes_of
from day0.analyzers.selftest.defects import defect_of
from day0.analyzers.selftest.ordinary import ordinary_calls
from day0.analyzers.trace import trace_model
from day0.devices.probe_suite import suite
from day0.devices.profile import DeviceProfile
from day0.models.source import open_model
from day0.models.workload import plan_phases
from day0.playbook import ModelPlan, PhasePlan, WorkloadPlan
from day0.records import ModelInfo, Signature, Trace, TraceEntry
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import describe, dtype_of, signature_id, tensor_values

__all__ = ["collect_subjects", "trace_of"]

LARGEST = 1 << 18
"""Bytes of the arguments of one call: samples of whole models are for the tests of the references."""
EACH = 10
"""Calls of one operator from one origin, spread over their dtypes."""

WORKLOAD = WorkloadPlan(
    batch=2,
    phases={
        "prefill": PhasePlan(tokens=6),
        "decode": PhasePlan(tokens=1, context=6),
        "prefill_long": PhasePlan(tokens=24),
        "decode_long": PhasePlan(tokens=1, context=24),
    },
)
"""Below and beyond the toy's sparse top-k, as in the playbook that ships for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Origin:
    name: str
    calls: Iterable[Signature]


def collect_subjects(profile: DeviceProfile) -> tuple[Signature, ...]:
    """Return calls that the device can hold, and gets right, each once, in the order of their origins."""
    origins = (
        _Origin(name="toy", calls=_toy()),
        _Origin(name="contract", calls=_contracts()),
        _Origin(name="suite", calls=suite()),
        _Origin(name="ordinary", calls=ordinary_calls()),
    )
    kept = chain.from_iterable(_spread(one.calls, profile) for one in origins)
    return tuple({signature_id(one): one for one in kept if not defect_of(one, profile)}.values())


def trace_of(signatures: Iterable[Signature]) -> Trace:
    """Return calls as a trace of a model that makes them."""
    info = ModelInfo(source="selftest", dtype="", class_name="", parameters=0, parameter_bytes=0, fingerprint="")
    entries = tuple(
        TraceEntry(id=signature_id(one), signature=one, outputs=(), counts={"selftest": 1}) for one in signatures
    )
    return Trace(model=info, mode="meta", mode_reason="", device="meta", phases=(), entries=entries)


def _toy() -> Iterator[Signature]:
    for dtype in ("float32", "bfloat16"):
        spec = open_model(ModelPlan(source="toy", dtype=dtype))
        for entry in trace_model(spec, plan_phases(spec, WORKLOAD), mode="auto", progress=lambda *_: None).entries:
            yield entry.signature


def _contracts() -> Iterator[Signature]:
    for name in load_operators():
        for args, kwargs in calls_of(name):
            overload = torch._C._jit_resolve_packet(name, *args, **kwargs)
            yield describe(name if overload == "default" else f"{name}.{overload}", args, kwargs)


def _spread(calls: Iterable[Signature], profile: DeviceProfile) -> Iterator[Signature]:
    """Keep few calls of each operator, in turn one of each tuple of dtypes."""
    by_operator: dict[str, dict[str, Signature]] = {}
    for one in calls:
        if _fits(one, profile):
            by_operator.setdefault(one.op, {})[signature_id(one)] = one
    for found in by_operator.values():
        yield from by_turns(found.values(), dtypes_of, EACH)


def _fits(signature: Signature, profile: DeviceProfile) -> bool:
    values = list(tensor_values(signature))
    size = sum(prod(one.shape) * dtype_of(one.dtype).itemsize for one in values)
    return size <= LARGEST and all(one.dtype in profile.dtypes for one in values)
