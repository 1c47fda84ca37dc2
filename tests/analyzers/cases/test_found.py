"""Faults that one kind of case finds and plain cases let pass; and right kernels that no kind of case complains about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from day0.analyzers.cases.case import Case
from day0.analyzers.cases.plan import plan_signature
from day0.analyzers.checking.case import check_case
from day0.devices.faults.load import planted
from day0.devices.faults.observe import lent_kernels
from day0.devices.profile import load_profile
from day0.devices.sim.device import open_sim
from day0.playbook import CheckPlan
from day0.records import CaseResult, Lock, Signature
from day0.reference_ops.signatures import describe, signature_id

EMPTY = Lock(device="sim", namespace="base", model="x", entries=())


@pytest.fixture(scope="module")
def device() -> Iterator[torch.device]:
    opened = open_sim(load_profile("null"))
    with lent_kernels():
        yield opened


def _failed(
    signature: Signature, device: torch.device, *faults: str, plan: CheckPlan | None = None
) -> list[CaseResult]:
    failed = []
    for case in plan_signature(signature, signature_id(signature), plan or CheckPlan(), devices=2):
        with planted(*faults):
            result = check_case(case, device, None, EMPTY, max_bytes=1 << 24)
        if result.status not in ("pass", "skipped"):
            failed.append(result)
    return failed


def _names(results: list[CaseResult]) -> set[str]:
    return {result.case.split("-", 3)[-1] if result.case.count("-") > 2 else result.regime for result in results}


X = torch.zeros(6, 4)
TABLE, LENGTHS = torch.zeros(2, 2, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)

FOUND: dict[str, tuple[str, Signature, str]] = {
    "offsets": ("offset_ignored", describe("aten::sigmoid", (X,), {}), "offset"),
    "memory order": ("matmul_strides_ignored", describe("aten::mm", (X, torch.zeros(4, 5)), {}), "transposed"),
    "writes into a view": ("clamp_not_written_back", describe("aten::clamp", (X, 0.0), {}), "inplace.strided"),
    "repeated calls": ("selection_order_varies", describe("day0::topk_tokens", (torch.zeros(1, 3, 9), 4), {}), "way."),
    "rewritten memory": (
        "stale_pages",
        describe(
            "day0::paged_kv_gather",
            (torch.zeros(4, 3, 8), TABLE, LENGTHS, 5, 8, 6, torch.float32),
            {},
        ),
        "way.rewritten",
    ),
    "masks": ("mask_inverted", describe("aten::where.self", (X > 0, X, X.clone()), {}), "broadcast.value"),
    "rows that are not read": (
        "unselected_nan_leaks",
        describe(
            "day0::sparse_mla_prefill",
            (torch.zeros(1, 2, 2, 8), torch.zeros(1, 24, 8), torch.zeros(1, 2, 4, dtype=torch.int32), 6, 0.5),
            {},
        ),
        "unread",
    ),
    "what a factor of 0 leaves out": (
        "beta_zero_keeps_nan",
        describe("aten::addmm", (torch.zeros(5), X, torch.zeros(4, 5)), {}),
        "scalars.beta0",
    ),
    "sums that overflow on the way": (
        "half_sums_in_half",
        describe("aten::sum.dim_IntList", (X.half(), [0]), {}),
        "partial_overflow",
    ),
    "another rank": ("hadamard_on_one_side", describe("day0::hadamard", (torch.zeros(2, 3, 5, 4),), {}), "ranks.fewer"),
    "samples of the contract": (
        "padding_scanned",
        describe(
            "day0::kda_recurrent",
            (
                *(torch.zeros(1, 3, 2, 4) for _ in range(4)),
                torch.zeros(1, 3, 2),
                torch.zeros(1, 2, 4, 4),
            ),
            {},
        ),
        "own_sample",
    ),
    "biases far above the scores": (
        "router_bias_swallows_scores",
        describe("day0::moe_router", (torch.zeros(3, 8), torch.zeros(8), 2, 1.0), {}),
        "large",
    ),
    "chosen rows behind entries that are none": (
        "leading_tile_poisons",
        describe(
            "day0::sparse_mla_prefill",
            (torch.zeros(1, 4, 2, 8), torch.zeros(1, 24, 8), torch.zeros(1, 4, 5, dtype=torch.int32), 6, 0.5),
            {},
        ),
        "sizes.5to65",
    ),
    "long rows": ("sort_blocks_not_merged", describe("aten::sort", (X,), {}), "sizes.4to65"),
    "indices out of range": (
        "index_select_clamped",
        describe("aten::index_select", (X, 0, torch.zeros(2, dtype=torch.int64)), {}),
        "refused.index_out_of_range",
    ),
    "two devices": (
        "mismatch_of_wrong_class",
        describe("aten::add.Tensor", (X, X.clone()), {}),
        "refused.other_device",
    ),
    "large integers": (
        "int64_through_float32",
        describe("aten::cumsum", (torch.zeros(8, dtype=torch.int64), 0), {}),
        "large_integers",
    ),
    "a shared destination": ("overlap_not_refused", describe("aten::copy_", (X, X.clone()), {}), "refused.shared"),
}


MORE: dict[str, Signature] = {
    "complex numbers": describe("aten::mul.Tensor", (X.to(torch.complex64), X.to(torch.complex64)), {}),
    "rows that do not vary": describe("aten::native_layer_norm", (X, [4], X[0].clone(), X[1].clone(), 1e-5), {}),
}
"""Right kernels that kinds of cases were wrong about before."""


@pytest.mark.parametrize("name", FOUND)
def test_a_kind_of_case_finds_what_it_is_for(name: str, device: torch.device) -> None:
    fault, signature, kind = FOUND[name]
    names = _names(_failed(signature, device, fault))
    assert any(kind in one for one in names), names
    assert "ordinary" not in names  # a plain case does not see it: the kind is what finds it


@pytest.mark.parametrize("seed", [0, *(pytest.param(one, marks=pytest.mark.slow) for one in (1, 2))])
@pytest.mark.parametrize("name", [*FOUND, *MORE])
def test_a_right_kernel_passes_every_kind_of_case(name: str, seed: int, device: torch.device) -> None:
    signature = MORE[name] if name in MORE else FOUND[name][1]
    failed = _failed(signature, device, plan=CheckPlan(seed=seed))
    assert not failed, [(one.case, one.reason) for one in failed]


def test_rows_that_differ_by_their_number_are_a_warning_and_no_failure(device: torch.device) -> None:
    signature = describe("aten::mm", (torch.zeros(48, 96), torch.zeros(96, 18)), {})
    case = Case(signature_id="x", signature=signature, regime="ordinary", seed=0, way="more_rows")
    clean = check_case(case, device, None, EMPTY, max_bytes=1 << 24)
    assert (clean.status, clean.warnings) == ("pass", ())
    with planted("row_count_changes_order"):
        warned = check_case(case, device, None, EMPTY, max_bytes=1 << 24)
    assert (warned.status, warned.failed) == ("pass", False)
    assert "sums in another order, within the operator's own limit" in warned.warnings[0]


def test_rows_that_are_wrong_where_there_are_many_are_a_failure(device: torch.device) -> None:
    signature = describe("day0::rms_norm", (torch.zeros(6, 4), torch.zeros(4), 1e-6), {})
    case = Case(signature_id="x", signature=signature, regime="ordinary", seed=0, way="more_rows")
    assert check_case(case, device, None, EMPTY, max_bytes=1 << 24).status == "pass"
    with planted("norm_rows_past_grid"):
        failed = check_case(case, device, None, EMPTY, max_bytes=1 << 24)
    assert (failed.status, failed.warnings) == ("fail", ())


def test_a_second_device_is_a_device_of_its_own(device: torch.device) -> None:
    signature = describe("aten::silu", (X,), {})
    case = Case(signature_id="x", signature=signature, regime="ordinary", seed=0, way="second_device")
    result = check_case(case, device, None, EMPTY, max_bytes=1 << 24)
    assert result.status in ("pass", "skipped")
    cpu = check_case(case, torch.device("cpu"), None, EMPTY, max_bytes=1 << 24)
    assert cpu.status == "skipped"
    assert cpu.reason == "there is one cpu device only"


def test_a_call_that_the_cpu_takes_is_not_to_be_refused(device: torch.device) -> None:
    signature = describe("aten::topk", (X, 3), {})
    case = Case(signature_id="x", signature=signature, regime="ordinary", seed=0, refusal="too_many_asked")
    result = check_case(replace(case), device, None, EMPTY, max_bytes=1 << 24)
    assert result.status == "skipped"
    assert result.reason == "the CPU does not refuse the call"
