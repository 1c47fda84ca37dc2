"""Poison reaches memory that nobody writes, in C++ too; guards lie behind arguments and change nothing about them."""

from __future__ import annotations

import platform

import pytest
import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.checking.memory import FIRST, GUARD_BYTES, SECOND, guarded, poisoned
from day0.reference_ops.signatures import describe

GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc fills memory")


@GLIBC
@pytest.mark.parametrize("poison", [FIRST, SECOND])
@pytest.mark.parametrize("size", [100, 1000, 100_000, 10_000_000])
def test_unwritten_memory_of_the_host_holds_poison(poison: int, size: int) -> None:
    with poisoned(poison):
        assert torch.empty(size, dtype=torch.uint8).unique().tolist() == [poison]


@GLIBC
def test_it_ends_with_the_block() -> None:
    with poisoned(FIRST):
        pass
    assert torch.empty(10_000_000, dtype=torch.uint8).unique().tolist() != [FIRST]


def test_guards_keep_values_strides_offsets_and_shared_memory() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    view = base[1:, 1::2]
    codes = torch.arange(5, dtype=torch.int32)
    inputs = CaseInputs(args=(base.t(), [view, None], codes, 3.0), kwargs={"mask": torch.ones(2, dtype=torch.bool)})
    made = guarded(inputs)
    assert describe("x", made.args, made.kwargs) == describe("x", inputs.args, inputs.kwargs)
    assert torch.equal(made.args[0], base.t())
    assert torch.equal(made.args[1][0], view)
    assert made.args[0].untyped_storage()._cdata == made.args[1][0].untyped_storage()._cdata
    assert base.untyped_storage()._cdata != made.args[0].untyped_storage()._cdata
    row = torch.empty(0).set_(made.args[0].untyped_storage())
    assert row.numel() == 24 + GUARD_BYTES // 4
    assert bool(torch.isnan(row[24:]).all())
    behind = torch.empty(0, dtype=torch.int32).set_(made.args[2].untyped_storage())[8:]
    assert behind.unique().tolist() == [0x7B7B7B7B], "no index of anything"


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.bfloat16, torch.complex64, torch.bool]
)
def test_every_dtype_can_be_guarded(dtype: torch.dtype) -> None:
    x = torch.ones(3).to(dtype) if dtype != torch.float8_e8m0fnu else torch.ones(3, dtype=torch.uint8).view(dtype)
    made = guarded(CaseInputs(args=(x,), kwargs={})).args[0]
    assert torch.equal(made.view(torch.uint8), x.view(torch.uint8))
