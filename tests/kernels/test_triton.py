"""The kernels in Triton: judged on a GPU where there is one; elsewhere they stay out of the way."""

from __future__ import annotations

import sys

import pytest
import torch

from day0.analyzers.kernel_check import Call, calls_of, check_kernel
from day0.devices.profile import load_profile
from day0.implementation import Implementation
from day0.kernels.load import load_implementations
from day0.kernels.triton import _triton
from day0.reference_ops.signatures import describe
from day0.reference_ops.torch_ops import register_operators
from day0.registry.resolve import judge

TRITON = tuple(one for one in load_implementations() if one.origin.startswith("kernels/triton/"))
LONG = 70_000


def hard_calls(operator: str) -> list[Call]:
    """Calls beyond the samples: long rows, ties everywhere, sizes that no tile divides."""
    generator = torch.Generator().manual_seed(3)
    if operator == "day0::topk_tokens":
        ties = (torch.randn(2, 2, LONG, generator=generator) * 2).round(decimals=1)
        lengths = torch.tensor([[LONG, 1999], [0, 2049]], dtype=torch.int32)
        return [((ties, 2048), {}), ((torch.zeros(1, 1, LONG), 2048), {}), ((-ties.abs(), 513, lengths), {})]
    if operator == "day0::lightning_indexer":
        q, k = torch.randn(2, 3, 33, 96, generator=generator), torch.randn(2, 1000, 96, generator=generator)
        weights = torch.randn(2, 3, 33, generator=generator)
        return [((q.bfloat16(), k.bfloat16(), weights, 500), {})]
    if operator == "day0::sparse_mla_decode":
        q, pages = torch.randn(3, 2, 96, 576, generator=generator), torch.randn(20, 64, 576, generator=generator)
        chosen = torch.rand(3, 2, 1280, generator=generator).argsort(dim=-1)[..., :777].to(torch.int32)
        chosen[0, 1, 100:] = -1
        chosen[1, 0] = -1
        options = {"topk_length": torch.tensor([777, 5, 0], dtype=torch.int32), "attn_sink": torch.randn(96)}
        return [((q.bfloat16(), pages.bfloat16(), chosen, 512, 576**-0.5), options)]
    return []


@pytest.mark.parametrize("one", TRITON, ids=lambda one: one.operator)
def test_right_on_a_gpu(one: Implementation) -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    for calls in (None, hard_calls(one.operator)):
        if calls is None or calls:
            bad = [found for found in check_kernel(one, "cuda", calls=calls) if found.status not in ("pass", "skipped")]
            assert not bad


@pytest.mark.parametrize("one", TRITON, ids=lambda one: one.operator)
def test_without_triton_it_is_refused_by_name(one: Implementation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    register_operators()
    refused = []
    for args, kwargs in calls_of(one.operator):
        refused.append(judge(one, describe(one.operator, args, kwargs), load_profile("cuda")).reason)
    assert any("triton is not installed" in reason for reason in refused)


def test_loading_does_not_import_triton() -> None:
    load_implementations()
    assert "triton" not in sys.modules or torch.cuda.is_available()


@pytest.mark.parametrize(("size", "least", "expected"), [(1, 1, 1), (3, 1, 4), (64, 16, 64), (0, 16, 16), (17, 16, 32)])
def test_next_power_of_2(size: int, least: int, expected: int) -> None:
    assert _triton.next_power_of_2(size, least) == expected
