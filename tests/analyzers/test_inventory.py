"""The static verdicts, held against what the simulated device really does."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.cases.copies import copy_to
from day0.analyzers.cases.fill import make_inputs
from day0.analyzers.cases.plan import plan_cases
from day0.analyzers.inventory import take_inventory
from day0.analyzers.trace import trace_model
from day0.devices.open import open_torch_device
from day0.devices.profile import DeviceProfile, Lack, load_profile
from day0.devices.verdict import classify
from day0.models.source import open_model
from day0.models.workload import plan_phases
from day0.playbook import CheckPlan, ModelPlan, PhasePlan, WorkloadPlan
from day0.records import GAP_VERDICTS, Inventory, Trace
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import describe, resolve
from day0.reference_ops.torch_ops import register_operators
from day0.registry.collect import collect

PHASES = {"prefill": PhasePlan(tokens=12), "decode": PhasePlan(tokens=1, context=12)}


@cache
def toy_trace() -> Trace:
    spec = open_model(ModelPlan(source="toy", dtype="float32"))
    return trace_model(spec, plan_phases(spec, WorkloadPlan(phases=PHASES)), mode="meta")


def _inventory(profile: DeviceProfile) -> Inventory:
    return take_inventory(toy_trace(), profile, collect())


@pytest.mark.parametrize("name", ["sim", "null"])
def test_every_verdict_of_the_toy_is_what_the_device_does(name: str) -> None:
    profile = load_profile(name)
    device = open_torch_device(profile)
    gaps = {entry.id for entry in _inventory(profile).entries if entry.device_verdict in GAP_VERDICTS}
    wrong = []
    for case in plan_cases(toy_trace(), CheckPlan(regimes=("ordinary",), derived=False)):
        inputs = make_inputs(case, load_operators().get(case.signature.op.partition(".")[0]))
        assert isinstance(inputs, CaseInputs), inputs
        if _runs(case.signature.op, copy_to(inputs, device)) == (case.signature_id in gaps):
            wrong.append(case.signature.op)
    assert not wrong


def _runs(op: str, inputs: CaseInputs) -> bool:
    try:
        resolve(op)(*inputs.args, **inputs.kwargs)
    except NotImplementedError:
        return False
    return True


def test_the_gaps_of_the_toy_on_sim() -> None:
    entries = _inventory(load_profile("sim")).entries
    ours = {entry.op for entry in entries if entry.op.startswith("day0::")}
    assert ours <= set(load_operators()) and len(ours) > 6
    assert {entry.op for entry in entries if entry.is_gap} == {"aten::rsqrt", "aten::silu", *ours}


def test_shares_add_up_and_gaps_come_first() -> None:
    inventory = _inventory(load_profile("sim"))
    assert sum(entry.share for entry in inventory.entries) == pytest.approx(1.0)
    flags = [entry.is_gap for entry in inventory.entries]
    assert flags == sorted(flags, reverse=True)
    assert inventory.roofline_seconds > 0


def test_options_name_what_could_stand_in_best_first() -> None:
    inventory = take_inventory(toy_trace(), load_profile("sim"), collect(), namespaces=("kimi/k3.1", "base"))
    indexer = next(entry for entry in inventory.entries if entry.op == "day0::lightning_indexer")
    assert indexer.verdict == "replaced"
    assert indexer.device_verdict == "missing"
    assert [option.split(" ")[1].split(":")[0] for option in indexer.options] == ["kimi/k3.1", "base"]
    bare = take_inventory(toy_trace(), load_profile("sim"), (), namespaces=("kimi/k3.1", "base"))
    rsqrt = next(entry for entry in bare.entries if entry.op == "aten::rsqrt")
    assert (rsqrt.verdict, rsqrt.options) == ("missing", ())


def _with(profile: DeviceProfile, **lacks: Lack) -> DeviceProfile:
    return profile.model_copy(update={"lacks": {f"aten::{name}": lack for name, lack in lacks.items()}})


X = torch.zeros(3, 4, device="meta")
NULL = load_profile("null")
GONE = Lack(reason="gone")


@pytest.mark.parametrize(
    ("op", "args", "lacks", "verdict"),
    [
        ("aten::mm", (X, X.t()), {}, "native"),
        ("aten::mm", (X, X.t()), {"mm": GONE}, "missing"),
        ("aten::mm", (X, X.t()), {"mm": Lack(reason="r", dtypes=("bfloat16",))}, "native"),
        ("aten::mm", (X, X.t()), {"mm": Lack(reason="r", dtypes=("float32",))}, "missing"),
        ("aten::mm", (X, X.t()), {"mm": Lack(reason="r", ranks=(2,))}, "missing"),
        ("aten::linear", (X, X), {}, "decomposes"),
        ("aten::linear", (X, X), {"mm": GONE}, "leaf_missing"),
        ("aten::embedding", (X, torch.zeros(2, dtype=torch.int64, device="meta")), {}, "decomposes"),
        ("aten::transpose.int", (X, 0, 1), {}, "native"),
        ("aten::bincount", (torch.zeros(2, dtype=torch.int64, device="meta"),), {"bincount": GONE}, "missing"),
        ("day0::topk_tokens", (X[None], 2), {}, "missing"),
    ],
)
def test_the_ladder(op: str, args: tuple[object, ...], lacks: dict[str, Lack], verdict: str) -> None:
    register_operators()
    found = classify(_with(NULL, **lacks), describe(op, args, {}))
    assert found.verdict == verdict, found.reason
    assert found.reason


def test_a_composite_that_reads_values_waits_for_the_host() -> None:
    profile = _with(NULL, _grouped_mm=GONE)
    rows, mats = torch.zeros(4, 16, device="meta"), torch.zeros(2, 16, 16, device="meta")
    signature = describe("aten::_grouped_mm", (rows, mats, torch.zeros(2, dtype=torch.int32, device="meta")), {})
    found = classify(profile, signature)
    assert found.verdict == "decomposes_with_sync", found.reason
    assert any(leaf.host_sync for leaf in found.leaves)


def test_a_device_that_falls_back_by_itself_is_told_apart() -> None:
    profile = _with(NULL, silu=GONE, histc=GONE).model_copy(update={"fallback": "cpu"})
    assert classify(profile, describe("aten::silu", (X,), {})).verdict == "cpu_fallback"  # in its out form
    ints = torch.zeros(3, dtype=torch.int32, device="meta")
    found = classify(profile, describe("aten::histc", (ints,), {}))
    assert found.verdict == "missing"
    # Behind it stands what the CPU said when it was probed.
    assert found.reason.startswith(
        "gone; the device falls back to the CPU, which lacks it too: torch's CPU kernel takes floating-point values only"
    )


@pytest.mark.parametrize("op", ["vendor::gated_norm", "prim::Print"])
def test_an_operator_that_is_not_here_is_unknown_and_takes_nothing_with_it(op: str) -> None:
    trace = toy_trace()
    first = trace.entries[0]
    strange = first.model_copy(update={"signature": first.signature.model_copy(update={"op": op})})
    trace = trace.model_copy(update={"entries": (strange, *trace.entries[1:])})
    found = take_inventory(trace, load_profile("sim"), collect(()))
    assert len(found.entries) == len(trace.entries)
    entry = next(one for one in found.entries if one.id == first.id)
    assert (entry.is_gap, entry.effort) == (True, "unknown")


def test_a_call_that_our_operator_refuses_takes_nothing_with_it() -> None:
    trace = toy_trace()
    text = trace.model_dump_json().replace('"dtype":"uint8"', '"dtype":"complex128"')
    found = take_inventory(Trace.model_validate_json(text), load_profile("sim"), collect(()))
    assert len(found.entries) == len(trace.entries)


def test_what_was_never_run_on_a_probed_device_does_not_say_so() -> None:
    profile = load_profile("cuda")
    assert profile.evidence == "probed"
    absent = profile.model_copy(update={"kernels": "PrivateUse1", "torch_device": "elsewhere"})
    entry = next(one for one in toy_trace().entries if one.signature.op.startswith("day0::"))
    found = classify(absent, entry.signature)
    assert (found.verdict, found.evidence) == ("missing", "static")
