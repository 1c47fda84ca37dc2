"""Effort classes and prices of gaps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from day0.analyzers.effort import EFFORTS, Pricer, effort_of
from day0.analyzers.inventory import roofline_seconds
from day0.devices.profile import DeviceProfile, Lack, load_profile
from day0.implementation import Implementation
from day0.records import TraceEntry
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import describe
from day0.reference_ops.torch_ops import register_operators

NULL = load_profile("null")
X = torch.zeros(4, 8, device="meta")
INDEX = torch.zeros(4, 1, dtype=torch.int64, device="meta")


def _entry(op: str, *args: Any, bytes_: int = 512) -> TraceEntry:
    return TraceEntry(id="0" * 16, signature=describe(op, args, {}), outputs=(), counts={"p": 3}, bytes=bytes_)


def _without(*names: str) -> DeviceProfile:
    return NULL.model_copy(update={"lacks": {f"aten::{name}": Lack(reason="gone") for name in names}})


@pytest.mark.parametrize(
    ("op", "args", "effort"),
    [
        ("aten::silu", (X,), "elementwise"),
        ("aten::mm", (X, X.t()), "gemm"),
        ("aten::_grouped_mm", (X, X), "gemm"),
        ("aten::amax", (X, [1]), "reduction"),
        ("aten::gather", (X, 1, INDEX), "gather_scatter"),
        ("aten::topk", (X, 2), "gather_scatter"),
        ("aten::nonzero", (X,), "host_sync"),
        ("aten::_scaled_dot_product_flash_attention", (X, X, X), "attention"),
        ("aten::transpose.int", (X, 0, 1), "alias"),
        ("aten::native_dropout", (X, 0.5, True), "decomposition"),
        ("day0::kda_recurrent", (X,), "recurrence"),
        ("day0::rope", (X,), "elementwise"),
        ("prims::add", (X, X), "unknown"),
        ("aten::_cdist_forward", (X, X, 2.0, None), "unknown"),
    ],
)
def test_the_class_of_an_operator(op: str, args: tuple[Any, ...], effort: str) -> None:
    register_operators()
    base = op.removeprefix("aten::").partition(".")[0]
    found, why = effort_of(_entry(op, *args), (), _without(base, f"{base}_"))
    assert found == effort, why
    assert why and found in EFFORTS


def test_an_operator_whose_other_form_is_there_is_trivial() -> None:
    found, why = effort_of(_entry("aten::silu_", X), (), _without("silu_"))
    assert (found, "aten::silu" in why) == ("alias", True)
    assert effort_of(_entry("aten::silu_", X), (), _without("silu_", "silu"))[0] == "elementwise"
    # nobody has said that the in-place form is there: it is not named, which is no evidence
    assert effort_of(_entry("aten::silu", X), (), _without("silu"))[0] == "elementwise"


def test_every_operator_of_ours_has_a_class() -> None:
    register_operators()
    for name in load_operators():
        if name.startswith("day0::"):
            assert effort_of(_entry(name, X), (), NULL)[0] != "unknown", name


def _pricer(profile: DeviceProfile = NULL) -> Pricer:
    return Pricer(profile, lambda entry: roofline_seconds(entry, profile))


def _way(run: Any, kind: Any = "decomposition") -> Implementation:
    return Implementation(operator="aten::silu", contract=1, id="x", version="1", kind=kind, run=run, why="")


def test_a_decomposition_costs_what_it_calls() -> None:
    entry = _entry("aten::silu", X, bytes_=2 * X.nbytes)
    own, other = _pricer().ways(entry, [_way(torch.neg, "kernel"), _way(lambda x: torch.neg(torch.neg(x)))])[:2]
    assert own.seconds is not None and other.seconds is not None
    assert other.seconds == pytest.approx(2 * own.seconds)
    assert other.note == "2 calls of its own for each"


def test_the_price_of_one_signature_is_scaled_to_the_others() -> None:
    pricer, calls = _pricer(), []

    def run(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.shape)
        return x * torch.sigmoid(x)

    small = pricer.ways(_entry("aten::silu", X), [_way(run)])[0]
    large = pricer.ways(_entry("aten::silu", torch.zeros(400, 8, device="meta"), bytes_=51200), [_way(run)])[0]
    assert len(calls) == 1
    assert small.seconds is not None and large.seconds is not None and large.seconds > small.seconds


def test_a_cost_that_depends_on_values_is_not_made_up() -> None:
    found = _pricer().ways(_entry("aten::silu", X), [_way(lambda x: x.sum().item())])[0]
    assert found.seconds is None
    assert "depends on values" in found.note


def test_torchs_decomposition_is_offered_only_where_the_device_has_what_it_calls() -> None:
    entry = _entry("aten::silu", X)
    names = [way.name for way in _pricer(_without("silu")).ways(entry, [])]
    assert names == ["torch._decomp", "CPU with transfers"]
    lacking = _without("silu", "sigmoid", "sigmoid.out")
    assert [way.name for way in _pricer(lacking).ways(entry, [])] == ["CPU with transfers"]


def test_the_cpu_costs_its_transfers_where_the_link_is_known() -> None:
    entry = _entry("aten::silu", X, bytes_=1000)
    unknown = _pricer(NULL.model_copy(update={"link_gb_s": None})).ways(entry, [])[-1]
    assert unknown.seconds is None and "does not give" in unknown.note
    known = _pricer(NULL.model_copy(update={"link_gb_s": 1.0, "sync_us": 0.0})).ways(entry, [])[-1]
    assert known.seconds == pytest.approx(3e-6)
