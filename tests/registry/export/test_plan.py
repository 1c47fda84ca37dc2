"""What of a lock goes where in an engine, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from day0.errors import Day0Error
from day0.records import Lock
from day0.registry.collect import collect
from day0.registry.export.adapters import adapters, choose_adapter
from day0.registry.export.plan import ExportPlan, Options, make_plan
from tests.registry.export.conftest import lock_of

OPTIONS = Options(allow_unverified=True)


def plan_of(lock: Lock, kernels: Path, options: Options = OPTIONS) -> ExportPlan:
    return make_plan(lock, collect((kernels,)), choose_adapter("vllm"), options)


def verified(source_hash: str, device: str) -> dict[str, object]:
    return {"report": "sha256:1", "source_hash": source_hash, "device": device, "environment": {}, "cases": 1}


def refused(plan: ExportPlan) -> str:
    with pytest.raises(Day0Error) as caught:
        plan.raise_refusals()
    return " ".join((str(caught.value), *caught.value.facts, caught.value.hint))


def test_an_entry_goes_through_every_target_that_calls_its_operator(kernels: Path) -> None:
    plan = plan_of(lock_of(kernels, "day0::rms_norm", "aten::erfinv"), kernels)
    plan.raise_refusals()
    assert [[target.name for target in route.targets] for route in plan.routes] == [
        ["RMSNorm", "hw_agnostic.RMSNorm"],
        [],
    ]
    assert [route.is_aten for route in plan.routes] == [False, True]


def test_an_operator_without_a_target_is_an_error_that_names_it_unless_skipped(kernels: Path) -> None:
    lock = lock_of(kernels, "day0::rms_norm")
    entry = lock.entries[0]
    other = entry.model_copy(
        update={
            "operator": "day0::hadamard",
            "identity": entry.identity.model_copy(update={"operator": "day0::hadamard"}),
        }
    )
    reference = next(one for one in collect() if one.operator == "day0::hadamard")
    other = other.model_copy(update={"identity": reference.identity, "source_hash": reference.source_hash})
    both = lock.model_copy(update={"entries": (entry, other)})
    said = refused(plan_of(both, kernels))
    assert "day0::hadamard@1 base:reference==1.0: nothing in vllm >=0.32.0,<0.33 is a target" in said
    assert "--skip day0::hadamard" in said
    left = plan_of(both, kernels, Options(allow_unverified=True, skip=("day0::hadamard",)))
    left.raise_refusals()
    assert [one.asked for one in left.refusals] == [True]


def test_a_skip_that_the_lock_does_not_have_is_refused_with_near_names(kernels: Path) -> None:
    with pytest.raises(Day0Error, match="the lock has no operator 'day0::rms_nrom'") as caught:
        plan_of(lock_of(kernels, "day0::rms_norm"), kernels, Options(skip=("day0::rms_nrom",)))
    assert "did you mean day0::rms_norm?" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({}, Options(), "no numerics report has verified it"),
        (
            {"verified": verified("sha256:0", "cpu")},
            Options(),
            "what was verified is another source, sha256:0, not sha256:",
        ),
        ({"kind": "cpu_fallback"}, OPTIONS, "a fallback to the CPU is no implementation to serve with"),
        ({"kind": "reference"}, OPTIONS, "allow it with --allow-reference"),
        ({"source_hash": "sha256:" + "0" * 64}, OPTIONS, "its source has changed since it was locked"),
    ],
)
def test_what_must_not_serve_is_refused(kernels: Path, change: dict[str, object], options: Options, said: str) -> None:
    assert said in refused(plan_of(lock_of(kernels, "day0::rms_norm", **change), kernels, options))


def test_an_implementation_that_is_not_there_is_refused_with_its_origin(kernels: Path) -> None:
    plan = make_plan(lock_of(kernels, "day0::rms_norm"), collect(), choose_adapter("vllm"), OPTIONS)
    said = refused(plan)
    assert "it is not there; it came from" in said
    assert "--with" in said


def test_a_lock_of_which_nothing_is_left_is_an_error(kernels: Path) -> None:
    options = Options(allow_unverified=True, skip=("day0::rms_norm",))
    assert "no entry of the lock is left" in refused(plan_of(lock_of(kernels, "day0::rms_norm"), kernels, options))


def test_adapters_are_chosen_by_engine_and_release() -> None:
    assert choose_adapter("vllm", "0.32.4").name == "vllm_0_32"
    with pytest.raises(Day0Error, match="there is no adapter for an engine 'vlm'") as caught:
        choose_adapter("vlm")
    assert "did you mean vllm?" in caught.value.hint
    with pytest.raises(Day0Error, match="no adapter was tested with this release") as caught:
        choose_adapter("vllm", "0.34.0")
    assert caught.value.facts == ("vllm_0_32: >=0.32.0,<0.33",)


def test_every_adapter_names_operators_that_exist_and_its_targets_once() -> None:
    from day0.reference_ops.load import load_operators

    known = load_operators()
    for found in adapters():
        names = [target.name for target in found.adapter.targets]
        assert len(names) == len(set(names)), found.name
        unknown = {op for target in found.adapter.targets for op in target.operators} - set(known)
        assert not unknown, f"{found.name}: {unknown}"


def test_an_entry_that_was_verified_on_the_locks_device_needs_no_leave(kernels: Path) -> None:
    (entry,) = lock_of(kernels, "day0::rms_norm").entries
    good = lock_of(kernels, "day0::rms_norm", verified=verified(entry.source_hash, "cpu"))
    plan_of(good, kernels, Options()).raise_refusals()
    elsewhere = lock_of(kernels, "day0::rms_norm", verified=verified(entry.source_hash, "sim"))
    assert "it was verified on sim, and the lock is for cpu" in refused(plan_of(elsewhere, kernels, Options()))
