"""PyTorch's own operator samples on `sim` agree with the CPU, but for a strict list of exceptions with reasons."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from day0.devices.opinfo import Outcome, judge_operators, operator_samples, run_operator
from day0.devices.profile import load_profile
from day0.devices.sim.device import open_sim
from day0.errors import Day0Error
from tests.devices.traces import traced_operators

pytest.importorskip("expecttest", reason="PyTorch's test samples need it; it is in the extra `dev`")

EXPECTED: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("opinfo.yaml").read_text())
FEW = 1
"""Samples of each dtype and variant in the quick test."""


@pytest.fixture(scope="module")
def samples() -> tuple[Any, ...]:
    """Return all entries."""
    return operator_samples()


def run(infos: Iterable[Any], most: int | None) -> list[Outcome]:
    """Run entries on the device with nothing missing."""
    open_sim(load_profile("null"))
    torch.set_num_threads(1)
    return [outcome for info in infos for outcome in run_operator(info, seconds=20, most=most)]


def unexpected(outcomes: Iterable[Outcome], *, strict: bool) -> list[str]:
    """Return what is wrong and not in the list; with `strict`, also what is in the list and not wrong."""
    listed = {(one["operator"], one["variant"], one["dtype"]): one["reason"] for one in EXPECTED["exceptions"]}
    failing: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for one in outcomes:
        if one.status in ("differs", "refused"):
            failing[one.operator, one.variant, one.dtype].append(f"{one.label} {one.status}: {one.detail}")
    wrong = [line for key, lines in failing.items() if key not in listed for line in lines]
    if strict:
        wrong += [f"{' '.join(key)} agrees again: take it off the list" for key in listed if key not in failing]
    return wrong


def test_traced_operators_agree_on_a_few_samples(samples: tuple[Any, ...]) -> None:
    bases = {name.removeprefix("aten::").partition(".")[0].removesuffix("_") for name in EXPECTED["traced"]}
    infos = [info for info in samples if {info.name, info.aten_name} & bases]
    assert len(infos) > 60
    outcomes = run(infos[::6], FEW)  # all of them, with all samples, in the long suite
    assert not unexpected(outcomes, strict=False)
    assert sum(one.status == "agrees" for one in outcomes) > 75


def test_variants_and_dtypes_are_all_tried(samples: tuple[Any, ...]) -> None:
    outcomes = run([info for info in samples if info.formatted_name == "mul"], FEW)
    assert {one.variant for one in outcomes} == {"call", "noncontiguous", "inplace", "out", "backward"}
    assert {one.dtype for one in outcomes} == {"float32", "int64", "bool", "bfloat16"}
    assert any("aten::mul.Tensor" in one.reached for one in outcomes)


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        (lambda result: result + 1, "not close"),
        (lambda result: result.double(), "dtype"),
        (lambda result: result.unsqueeze(0), "shape"),
        (lambda result: result.cpu(), "result is on cpu"),
        (lambda result: torch.stack([result, result], -1)[..., 0], "strides"),
    ],
)
def test_a_wrong_kernel_is_seen(
    fault: Any, word: str, samples: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    (info,) = [info for info in samples if info.formatted_name == "sigmoid"]
    sound = info.op

    def planted(one: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = sound(one, *args, **kwargs)
        return fault(result) if one.device.type == "sim" else result

    monkeypatch.setattr(info, "op", planted)
    outcomes = run([info], 2)
    calls = [one for one in outcomes if one.variant == "call" and one.dtype == "float32"]
    assert any(one.status == "differs" and word in one.detail for one in calls)


def test_what_the_device_lacks_is_refused(samples: tuple[Any, ...]) -> None:
    open_sim(load_profile("sim"))
    (info,) = [info for info in samples if info.formatted_name == "rsqrt"]
    outcomes = list(run_operator(info, most=1))
    assert any(one.status == "refused" and "aten::rsqrt" in one.detail for one in outcomes)
    reasons = judge_operators(["aten::rsqrt", "aten::topk"], outcomes)
    assert "rsqrt" in reasons["aten::rsqrt"]
    assert reasons["aten::topk"] == "no sample asks for it"


def test_missing_package_of_the_samples_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.testing._internal.common_methods_invocations", None)
    with pytest.raises(Day0Error, match="need the package"):
        operator_samples()


@pytest.mark.slow
def test_all_samples_agree(samples: tuple[Any, ...]) -> None:
    outcomes = run(samples, None)
    assert not unexpected(outcomes, strict=True)
    reasons = judge_operators(EXPECTED["traced"], outcomes)
    assert {name for name, reason in reasons.items() if reason} == set(EXPECTED["not_passing"])


@pytest.mark.slow
def test_the_list_of_traced_operators_is_what_models_call() -> None:
    assert traced_operators() == set(EXPECTED["traced"])
