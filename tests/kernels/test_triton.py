"""The kernels in Triton: judged on a GPU where there is one; elsewhere they stay out of the way."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from day0.analyzers.kernel_check import Call, check_kernel
from day0.devices.current import on_its_device
from day0.devices.profile import load_profile
from day0.errors import Day0Error
from day0.implementation import Implementation
from day0.kernels.load import load_implementations
from day0.kernels.triton import _tiles, _triton
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import describe
from day0.reference_ops.torch_ops import register_operators
from day0.registry.resolve import judge
from tests.kernels import hard_calls as small

TRITON = tuple(one for one in load_implementations() if one.origin.startswith("kernels/triton/"))
LONG = 70_000


def hard_calls(operator: str) -> list[Call]:
    """Calls beyond the samples: long rows, ties everywhere, sizes that no tile divides."""
    generator = torch.Generator().manual_seed(3)
    if operator == "day0::topk_tokens":
        ties = (torch.randn(2, 2, LONG, generator=generator) * 2).round(decimals=1)
        lengths = torch.tensor([[LONG, 1999], [0, 2049]], dtype=torch.int32)
        some, many = ((torch.randn(rows, 1, 3000, generator=generator)).round(decimals=2) for rows in (40, 90))
        calls: list[Call] = [
            ((ties, 2048), {}),
            ((torch.zeros(1, 1, LONG), 2048), {}),
            ((-ties.abs(), 513, lengths), {}),
        ]
        return [*calls, ((some, 2048), {}), ((many, 2048), {}), ((some.bfloat16(), 300), {})]
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


def halves(value: Any) -> Any:
    """Return arguments with float32 as bfloat16."""
    if isinstance(value, (list, tuple)):
        return type(value)(halves(one) for one in value)
    return value.bfloat16() if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value


def kernel(name: str) -> Implementation:
    return next(one for one in TRITON if one.operator == f"day0::{name}")


@pytest.mark.parametrize("one", TRITON, ids=lambda one: one.operator)
def test_right_on_a_gpu(one: Implementation) -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    for calls in (None, hard_calls(one.operator), small.hard_calls(one.operator)):
        if calls is None or calls:
            bad = [found for found in check_kernel(one, "cuda", calls=calls) if found.status not in ("pass", "skipped")]
            assert not bad


@pytest.mark.parametrize("one", TRITON, ids=lambda one: one.operator)
def test_without_triton_it_is_refused_by_name(one: Implementation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    register_operators()
    samples = load_operators()[one.operator].samples(torch.Generator().manual_seed(0))
    calls = ((args, sample.kwargs) for sample in samples for args in (sample.args, halves(sample.args)))
    cuda = load_profile("cuda")
    # The first that it takes but for this: samples grow to the sizes of real models.
    assert any(
        "triton is not installed" in judge(one, describe(one.operator, args, kwargs), cuda).reason
        for args, kwargs in calls
    )


def test_loading_does_not_import_triton() -> None:
    load_implementations()
    assert "triton" not in sys.modules or torch.cuda.is_available()


@pytest.mark.parametrize(("size", "least", "expected"), [(1, 1, 1), (3, 1, 4), (64, 16, 64), (0, 16, 16), (17, 16, 32)])
def test_next_power_of_2(size: int, least: int, expected: int) -> None:
    assert _triton.next_power_of_2(size, least) == expected


CPU = torch.device("cpu")
WIDE = torch.zeros(1, 70_000)
CHOSEN = torch.zeros(1, 1, 2, dtype=torch.int32)
REFUSED: tuple[tuple[str, Call, str], ...] = (
    ("rms_norm", ((WIDE, torch.ones(70_000), 1e-6), {}), "at most 65536"),
    ("rms_norm", ((torch.zeros(1, 4, dtype=torch.float64), torch.ones(4).double(), 1e-6), {}), "float64"),
    ("rms_norm_quantise", ((torch.zeros(1, 65_535), torch.ones(65_535), 1e-6, 3, True), {}), "groups of 3 in rows"),
    ("attention_residual", (([torch.zeros(1, 1, 4)] * 33, torch.zeros(1, 1, 4), *[torch.ones(4)] * 2, 1e-6), {}), "33"),
    ("moe_router", ((torch.zeros(1, 5000), torch.zeros(5000), 2, 1.0), {}), "5000 experts in groups of 1"),
    ("moe_router", ((torch.zeros(1, 100), torch.zeros(100), 65, 1.0), {}), "at most 64, not 65"),
    (
        "paged_kv_write",
        ((torch.zeros(2, 6, 4).transpose(1, 2), torch.zeros(1, 6), torch.zeros(1, dtype=torch.int64), 4), {}),
        "4 places apart",
    ),
    (
        "sparse_mla_decode",
        ((torch.zeros(1, 1, 2, 8).half(), torch.zeros(1, 4, 20, dtype=torch.uint8), CHOSEN, 8, 1.0, "fp8_656"), {}),
        "layout must be 'plain'",
    ),
    (
        "sparse_mla_prefill",
        ((torch.zeros(1, 1, 2, 900).half(), torch.zeros(1, 4, 900).half(), CHOSEN, 500, 1.0), {}),
        "at most 640",
    ),
    (
        "kda_recurrent",
        ((*[torch.zeros(1, 1, 1, 300)] * 4, torch.zeros(1, 1, 1), torch.zeros(1, 1, 300, 300)), {}),
        "256",
    ),
)


@pytest.mark.parametrize(("name", "call", "reason"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_says_why_a_call_is_refused(name: str, call: Call, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    register_operators()
    one = kernel(name)
    decision = judge(one, describe(one.operator, *call), load_profile("cuda"))
    assert not decision.accepted
    assert reason in decision.reason


def test_tiles_are_the_files_then_what_was_measured_then_what_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "schema: day0.tuned/1\ndevice: cpu\nkernels: {some: {rows: 32, unknown: 7}}\n"
    (tmp_path / "one.yaml").write_text(text)
    monkeypatch.setattr(_tiles, "FOLDER", tmp_path)
    _tiles._measured.cache_clear()
    defaults = {"rows": 64, "warps": 4}
    assert _tiles.sizes("some", defaults, CPU) == {"rows": 32, "warps": 4}
    assert _tiles.sizes("other", defaults, CPU) == defaults
    with _tiles.trying({"some": {"warps": 8}}):
        assert _tiles.sizes("some", defaults, CPU) == {"rows": 32, "warps": 8}
    assert _tiles.sizes("some", defaults, CPU) == {"rows": 32, "warps": 4}
    _tiles._measured.cache_clear()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("schema: day0.tuned/2\ndevice: x\nkernels: {}", "schema: day0.tuned/1"),
        ("schema: day0.tuned/1\ndevice: 3\nkernels: {}", "`device`, a text"),
        ("schema: day0.tuned/1\ndevice: x\nkernels: {one: {rows: 0}}", "whole numbers from 1"),
        ("schema: day0.tuned/1\ndevice: x\nkernels: {one: {rows: true}}", "whole numbers from 1"),
        ("a: [", "it is no YAML"),
        ("# " + "x" * (1 << 20), "schema: day0.tuned/1"),
    ],
)
def test_a_file_of_tiles_that_is_none_is_refused_by_name(text: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(text)
    with pytest.raises(Day0Error, match=r"one\.yaml") as caught:
        _tiles.read_tuned(path)
    assert what in str(caught.value)


def test_committed_tiles_name_what_kernels_have() -> None:
    for path in _tiles.FOLDER.glob("*.yaml"):
        _, kernels = _tiles.read_tuned(path)
        for name, tiles in kernels.items():
            module = sys.modules[f"day0.kernels.triton.{name.removesuffix('_few')}"]
            assert set(tiles) <= set(module.FEW if name.endswith("_few") else module.TILES)


@pytest.mark.parametrize("one", TRITON, ids=lambda one: str(one.identity))
def test_each_is_launched_on_the_device_of_its_tensors(one: Implementation) -> None:
    # Triton launches on the current device: two cards showed it, and one never does.
    assert getattr(one.run, "__code__", None) is on_its_device(one.run).__code__
