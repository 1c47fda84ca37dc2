"""The workspace: exact values, aligned places, guards, one memory for all layers."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from day0.converters.blocks import bounds_of
from day0.converters.online.fp8_workspace import (
    ALIGNMENT,
    LAYOUTS,
    Fp8Workspace,
    Matrix,
    Packed,
    _block_rows,
    slot_bytes,
)
from day0.converters.tables import E4M3, LOWEST, fp8_table
from day0.converters.tiers import eager
from day0.converters.tiers.load import pick_tier
from day0.errors import Day0Error
from day0.reference_ops import mxfp4_decode

ROOT = Path(__file__).parents[2]
MATRICES = (Matrix(rows=160, columns=96), Matrix(rows=5, columns=32))


def made(layout: str = "mxfp8", slots: int = 3) -> Fp8Workspace:
    return Fp8Workspace(MATRICES, slots, decode=eager.decode, layout=layout)


def packed(matrix: int, *, low: int = 118, high: int = 127, seed: int = 0) -> Packed:
    size, generator = MATRICES[matrix], torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (size.rows, size.columns // 2), dtype=torch.uint8, generator=generator)
    scales = torch.randint(low, high + 1, (size.rows, size.columns // 32), dtype=torch.uint8, generator=generator)
    return Packed(codes=codes, scales=scales)


def plain(one: Packed, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return mxfp4_decode.reference(one.codes, one.scales, dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tier", ["eager", "native"])
def test_values_are_those_of_the_reference(layout: str, tier: str) -> None:
    workspace = Fp8Workspace(MATRICES, 3, decode=pick_tier(tier).decode, layout=layout)
    for slot in range(3):
        for matrix in range(2):
            workspace.convert(slot, matrix, packed(matrix, seed=slot))
    workspace.convert(1, 0, packed(0, seed=9))
    workspace.check_guards()
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for matrix, seeds in ((0, (0, 9, 2)), (1, (0, 1, 2))):
            expected = torch.stack([plain(packed(matrix, seed=seed), dtype) for seed in seeds])
            assert torch.equal(workspace.decoded(matrix, [0, 1, 2], dtype), expected)
    assert torch.equal(workspace.decoded(1, [2, 0], torch.float32)[0], plain(packed(1, seed=2)))


@pytest.mark.parametrize("byte", range(256))
def test_mxfp8_holds_every_code_under_every_scale(byte: int) -> None:
    matrix = Matrix(rows=16, columns=32)
    workspace = Fp8Workspace((matrix,), 1, decode=eager.decode)
    codes = torch.arange(256, dtype=torch.uint8).view(16, 16)
    one = Packed(codes=codes, scales=torch.full((16, 1), byte, dtype=torch.uint8))
    workspace.convert(0, 0, one)
    found = workspace.decoded(0, [0], torch.float64)[0]
    assert torch.equal(found.nan_to_num(7.0), plain(one, torch.float64).nan_to_num(7.0))
    assert bool(found.isnan().all()) == (byte == 255)


def test_what_would_not_be_exact_is_refused() -> None:
    for layout, high in (("fp8-128x128", 160), ("fp8-1x128", 160), ("bf16", 254)):
        workspace = made(layout)
        with pytest.raises(Day0Error, match="does not fit"):
            workspace.convert(0, 0, packed(0, low=100, high=high))
        workspace.check_guards()
    made("mxfp8").convert(0, 0, packed(0, low=0, high=254))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_everything_is_aligned_and_nothing_overlaps(layout: str) -> None:
    workspace = made(layout)
    seen: list[tuple[int, int]] = []
    for matrix in range(2):
        for tensor in (workspace.values(matrix), workspace.scales(matrix)):
            if tensor is None:
                assert layout == "bf16"
                continue
            for slot in range(3):
                assert tensor[slot].data_ptr() % ALIGNMENT == 0 and tensor[slot].is_contiguous()
                begin = tensor[slot].data_ptr()
                seen.append((begin, begin + tensor[slot].numel() * tensor.element_size()))
    seen.sort()
    assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(seen))
    assert seen[-1][1] - seen[0][0] <= workspace.nbytes == 3 * slot_bytes(MATRICES, layout)


@pytest.mark.parametrize("matrix", [0, 1])
@pytest.mark.parametrize("kind", ["values", "scales"])
def test_a_write_beyond_a_tensor_is_named(matrix: int, kind: str) -> None:
    workspace = made()
    tensor = workspace.values(matrix) if kind == "values" else workspace.scales(matrix)
    assert tensor is not None
    end = tensor.storage_offset() + tensor[0].numel() + tensor.stride(0)
    workspace.check_guards()
    tensor.view(torch.uint8).as_strided((1,), (1,), end).fill_(0)
    with pytest.raises(Day0Error, match=f"behind the {kind} of matrix {matrix} in slot 1 was overwritten"):
        workspace.check_guards()


def test_a_write_before_the_first_slot_is_named() -> None:
    workspace = made()
    values = workspace.values(0)
    values.view(torch.uint8).as_strided((1,), (1,), values.storage_offset() - 1).fill_(0)
    with pytest.raises(Day0Error, match="before the first slot"):
        workspace.check_guards()


def test_wrong_sizes_and_choices_are_refused() -> None:
    with pytest.raises(Day0Error, match="multiple of 32"):
        Matrix(rows=3, columns=33)
    with pytest.raises(Day0Error, match="no such layout"):
        made("fp9")
    with pytest.raises(Day0Error, match="expected slots"):
        made(slots=0)
    with pytest.raises(Day0Error, match="expected codes and scales"):
        made().convert(0, 1, packed(0))
    wide = packed(0)
    with pytest.raises(Day0Error, match="uint8"):
        made().convert(0, 0, Packed(codes=wide.codes.int(), scales=wide.scales))


def by_scales(
    codes_RP: torch.Tensor,
    bytes_RG: torch.Tensor,
    height: int,
    scales: torch.Tensor,
    out_RC: torch.Tensor,
    unsettled: torch.Tensor,
) -> None:
    """What a tier's `scaled` does, in eager torch."""
    if height:
        bounds = bounds_of(E4M3, bytes_RG, None, height, 4)
        rows_RG = _block_rows(bytes_RG, bounds.scale(), height)
        scales.copy_(torch.exp2(bounds.scale().float()))
        if bool((bytes_RG == 255).any()) or not bool(bounds.settled().all()):
            unsettled.fill_(1)
    else:
        rows_RG = torch.full_like(bytes_RG, -LOWEST)
        scales.copy_(bytes_RG)
    table = fp8_table(E4M3)
    eager.decode(codes_RP.reshape(-1, 16), rows_RG.reshape(-1), table, out_RC.view(table.pairs.dtype).view(-1, 16))


@pytest.mark.parametrize("layout", ["mxfp8", "fp8-128x128", "fp8-1x128"])
@pytest.mark.parametrize(("low", "high"), [(118, 127), (116, 128), (0, 9), (118, 255)])
def test_a_tiers_own_way_with_scales_gives_the_same_bytes(layout: str, low: int, high: int) -> None:
    plain = made(layout)
    quick = Fp8Workspace(MATRICES, 3, decode=eager.decode, scaled=by_scales, layout=layout)
    for matrix in range(2):
        one = packed(matrix, low=low, high=high)
        errors = []
        for workspace in (plain, quick):
            try:
                workspace.convert(1, matrix, one)
            except Day0Error as error:
                errors.append(error.what)
        if errors:
            assert len(errors) == 2 and errors[0] == errors[1]
            continue
        for here, there in ((plain.values(matrix), quick.values(matrix)), (plain.scales(matrix), quick.scales(matrix))):
            assert here is not None and there is not None
            assert torch.equal(here[1].view(torch.uint8), there[1].view(torch.uint8))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_was_settled_is_not_asked_again(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = made(layout)
    one = workspace.settled(0, packed(0))
    assert one.settled == layout
    workspace.convert(0, 0, one)
    assert torch.equal(workspace.decoded(0, [0], torch.float32)[0], plain(one))
    if layout == "mxfp8":
        return
    # Of another layout it says nothing.
    other = replace(packed(0, low=100, high=254), settled="mxfp8")
    with pytest.raises(Day0Error, match="does not fit"):
        workspace.convert(0, 0, other)
    if layout == "bf16":
        with pytest.raises(Day0Error, match="does not fit"):
            workspace.settled(0, other)
    else:
        assert workspace.settled(0, packed(0, low=100, high=160)).settled == ""
        assert workspace.settled(0, packed(0, high=255)).settled == ""


def test_the_kernel_with_scales_is_right_in_tritons_interpreter() -> None:
    if find_spec("triton") is None:
        pytest.skip("triton is not installed: torch for CUDA brings it")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    command = [sys.executable, "-W", "ignore", "-m", "tests.converters.scaled_interpreted"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
