"""What a trace counts for operators with a contract."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from day0.analyzers.recorder import Recorder
from day0.analyzers.recording.stats import float_stats
from day0.analyzers.sites import SiteBook, SiteTally
from day0.records import FloatStats, TraceEntry
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import tensors_in
from day0.reference_ops.torch_ops import register_operators

OPERATORS = load_operators()
COUNTED = sorted(name for name, one in OPERATORS.items() if one.flops or one.bytes)


def recorded(name: str, device: str) -> tuple[TraceEntry, tuple[Any, ...], dict[str, Any]]:
    """Call an operator with its traced sample under a recorder."""
    register_operators()
    sample = next(s for s in OPERATORS[name].samples(torch.Generator().manual_seed(0)) if s.kind == "traced")
    args = tuple(one.to(device) if isinstance(one, torch.Tensor) else one for one in sample.args)
    recorder = Recorder()
    with recorder:
        getattr(torch.ops.day0, name.partition("::")[2])(*args, **sample.kwargs)
    (entry,) = recorder.entries()
    return entry, args, sample.kwargs


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", COUNTED)
def test_a_contract_counts_its_own_flops_and_bytes(name: str, device: str) -> None:
    entry, args, kwargs = recorded(name, device)
    contract = OPERATORS[name]
    if contract.flops is not None:
        assert entry.flops == contract.flops(*args, **kwargs)
    if contract.bytes is not None:
        assert entry.bytes == contract.bytes(*args, **kwargs)


def test_sparse_attention_costs_what_was_chosen() -> None:
    entry, (q, kv, indices, latent, *_), _ = recorded("day0::sparse_mla_prefill", "meta")
    batch, queries, heads, width = q.shape
    assert entry.flops == 2 * batch * queries * heads * indices.shape[-1] * (width + latent) > 0
    # Of 96 rows, 64 for each of two queries: all of them, once.
    assert entry.bytes > kv.numel() * kv.element_size()


def test_a_gather_moves_what_it_names_and_not_the_whole_cache() -> None:
    entry, args, _ = recorded("day0::paged_kv_gather", "meta")
    pages = args[0]
    many = pages.new_empty((1000 * pages.shape[0], *pages.shape[1:]))
    recorder = Recorder()
    with recorder:
        torch.ops.day0.paged_kv_gather(many, *args[1:])
    assert recorder.entries()[0].bytes == entry.bytes > 0


def test_without_a_count_each_argument_and_result_counts_once() -> None:
    entry, args, _ = recorded("day0::topk_tokens", "meta")
    rows, topk = args[0].shape[0] * args[0].shape[1], args[1]
    given = sum(one.numel() * one.element_size() for one in tensors_in(args))
    assert (entry.flops, entry.bytes) == (0, given + 4 * rows * (topk + 1))


def test_a_tensor_of_unknown_origin_is_not_taken_for_a_dead_one_at_its_address() -> None:
    sites: dict[str, SiteTally] = {}
    book, neg = SiteBook(), torch.ops.aten.neg.default
    made = torch.ones(3)
    address = made.untyped_storage()._cdata
    book.note(sites, "prefill", (), (neg, (torch.zeros(3),), {}, made), lambda: "")
    del made
    others = [torch.ones(3) for _ in range(200)]
    assert address not in {one.untyped_storage()._cdata for one in others}
    for one in others:
        book.note(sites, "prefill", (), (neg, (one,), {}, torch.zeros(0)), lambda: "")
    assert [site.inputs for site in sites.values()] == [{}]


def test_statistics_of_a_tensor_with_gradients_say_nothing() -> None:
    # torch warns where such a tensor becomes a number, and here warnings are errors.
    assert float_stats(torch.tensor([1.0, -2.0], requires_grad=True)) == FloatStats(min=-2.0, max=1.0, absmax=2.0)
