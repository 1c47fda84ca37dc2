"""Every planted fault that one call shows is caught by a rule, and no legitimate difference is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.cases.copies import copy_to, copy_with_storages
from day0.analyzers.judging.compare import compare_results
from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.reference import RUN_ERRORS, references
from day0.analyzers.judging.results import results, side_effects
from day0.devices.faults._fault import Fault
from day0.devices.faults.load import load_faults, planted
from day0.devices.faults.observe import lent_kernels
from day0.devices.open import open_torch_device
from day0.devices.profile import load_profile
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import describe, resolve

CPU = torch.device("cpu")

ANOTHER_WAY = {
    "float64_computed_in_float32": "the device holds no float64",
    "replacement_never_runs": "the values are right; that the kernel ran is asked elsewhere",
    "masked_rows_nan": "below a call that the CPU has a fused kernel for",
    "stale_pages": "shows in the second call",
    "convolution_products_rounded": "within what bfloat16 itself costs, over so few products",
    "matmul_not_reproducible": "shows between two calls",
    "linear_not_reproducible": "shows between two calls",
    "selection_order_varies": "shows in the second call",
    "selection_by_recency_when_replayed": "shows in the second call",
    "state_stale_when_replayed": "shows in the third call",
    "row_count_changes_order": "right in itself: another order of a sum",
}
"""Faults of values that no single call shows, and why."""


class Calls(TorchDispatchMode):
    """Keeps copies of the arguments of some operators."""

    def __init__(self, operators: tuple[str, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
        self.operators = operators
        self.made: list[tuple[str, CaseInputs]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        if name in self.operators or name.partition(".")[0] in self.operators:
            self.made.append((name, copy_to(CaseInputs(args=tuple(args), kwargs=kwargs or {}), CPU)))
        return func(*args, **(kwargs or {}))


def calls_of(fault: Fault) -> list[tuple[str, CaseInputs]]:
    calls = Calls(fault.operators)
    with calls:
        fault.minimal.run(CPU)
    return calls.made


def judge(op: str, inputs: CaseInputs) -> Judgement:
    contract = load_operators().get(op.partition(".")[0])
    signature, device = describe(op, inputs.args, inputs.kwargs), open_torch_device(load_profile("sim"))
    reference = references(signature, inputs, contract)
    moved, storages = copy_with_storages(inputs, device)
    try:
        got = tuple(results(resolve(op), resolve(op)(*moved.args, **moved.kwargs), moved))
    except RUN_ERRORS as error:
        return Judgement(passed=False, rule="raised", reason=str(error))
    found = compare_results(signature, inputs, got, reference, contract, device, moved=moved)
    return (side_effects(resolve(op), inputs, storages) or found) if found.passed else found


@pytest.fixture(scope="module", autouse=True)
def kernels() -> Iterator[None]:
    with lent_kernels():
        yield


SHOWN = sorted(
    name
    for name, one in load_faults().items()
    if one.minimal.shows & {"values", "strides", "dtypes"} and name not in ANOTHER_WAY and one.family != "reported"
)


@pytest.mark.parametrize("name", SHOWN)
def test_the_smallest_call_of_each_fault(name: str) -> None:
    fault = load_faults()[name]
    made = calls_of(fault)
    assert made, "the smallest call of the fault does not call its operators on the CPU"
    with planted(name):
        found = [judge(op, inputs) for op, inputs in made]
    failed = [one for one in found if not one.passed]
    if fault.is_fault:
        assert failed, found
    else:
        assert all(one.rule == "raised" for one in failed), failed
    if all(one.rule != "raised" for one in found):
        clean = [judge(op, inputs) for op, inputs in made]
        assert all(one.passed for one in clean), clean


def test_a_softmax_without_a_guard_for_closed_rows() -> None:
    inputs = CaseInputs(args=(torch.tensor([[1.0, 2.0], [float("-inf")] * 2]), -1), kwargs={})
    assert judge("aten::_safe_softmax", inputs).passed
    with planted("masked_rows_nan"):
        found = judge("aten::_safe_softmax", inputs)
    assert (found.passed, found.rule) == (False, "non_finite")


def test_the_exceptions_are_faults_of_today() -> None:
    assert set(ANOTHER_WAY) <= set(load_faults())
