"""The CPU fallback: what an operator writes in place has to come back to the device."""

from __future__ import annotations

import pytest
import torch

from day0.analyzers.cases.case import Case
from day0.analyzers.checking.case import check_case
from day0.analyzers.recorder import Recorder
from day0.devices.open import open_torch_device
from day0.devices.profile import load_profile
from day0.records import Lock, LockEntry, TraceEntry
from day0.reference_ops import paged_kv_write
from day0.reference_ops.signatures import dtype_name, tensors_in
from day0.reference_ops.torch_ops import register_operators
from day0.registry.dispatch import activate
from day0.registry.fallback import cpu_fallback, refuse_fallback

NAME = paged_kv_write.NAME


def locked(*args: object, signatures: tuple[str, ...] = ()) -> Lock:
    one = cpu_fallback(NAME)
    entry = LockEntry(
        operator=NAME,
        dtypes=tuple(dtype_name(tensor.dtype) for tensor in tensors_in(args)),
        signatures=signatures,
        identity=one.identity,
        kind=one.kind,
        source_hash=one.source_hash,
        origin=one.origin,
        decisions=(),
    )
    return Lock(device="sim", namespace="base", model="sha256:0", entries=(entry,))


def arguments(layout: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the memory of two layers whose pages lie in turn, rows, and slots of which one is skipped."""
    shape, dtype = {"plain": ((3, 12), torch.bfloat16), "fp8_656": ((3, 20), torch.uint8)}.get(
        layout, ((576,), torch.uint8)
    )
    rows_NC = torch.randn(4, 12, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    return torch.ones(4, *shape, dtype=dtype), rows_NC, torch.tensor([5, -1, 0, 3])


@pytest.mark.parametrize("layout", ["plain", "fp8_656", "fp8_584:3"])
def test_what_is_written_on_the_cpu_comes_back_through_a_strided_view(layout: str) -> None:
    register_operators()
    device = open_torch_device(load_profile("sim"))
    block, rows_NC, slots_N = arguments(layout)
    expected = block.clone()
    paged_kv_write.reference(expected[1::2], rows_NC, slots_N, 8, layout)
    there = block.to(device)
    lock = locked(block, rows_NC, slots_N)
    with activate(lock, device, []) as active:
        result = torch.ops.day0.paged_kv_write(there[1::2], rows_NC.to(device), slots_N.to(device), 8, layout)
        assert result is None and active.fallbacks == 1
    assert torch.equal(there.cpu(), expected) and not torch.equal(expected, block)
    assert bool((there.cpu()[::2] == 1).all()), "the other layer's pages"


@pytest.mark.parametrize("layout", ["plain", "fp8_656", "fp8_584:3"])
def test_an_operator_without_results_is_traced_and_checked(layout: str) -> None:
    register_operators()
    device = open_torch_device(load_profile("sim"))
    block, rows_NC, slots_N = arguments(layout)
    entry = traced(block, rows_NC, slots_N, layout)
    assert entry.outputs == () and entry.mutates == ("pages",)
    assert refuse_fallback(entry.signature) == ""
    lock = locked(block, rows_NC, slots_N, signatures=(entry.id,))
    case = Case(signature_id=entry.id, signature=entry.signature, regime="ordinary", seed=0)
    with activate(lock, device, []) as active:
        result = check_case(case, device, active, lock, max_bytes=1 << 24)
    assert (result.status, result.rule) == ("fell_back", "exact"), result


def traced(block: torch.Tensor, rows_NC: torch.Tensor, slots_N: torch.Tensor, layout: str) -> TraceEntry:
    recorder = Recorder()
    pages, rows, slots = block.to("meta")[1::2], rows_NC.to("meta"), slots_N.to("meta")
    with recorder:
        torch.ops.day0.paged_kv_write(pages, rows, slots, 8, layout)
    return recorder.entries()[0]
