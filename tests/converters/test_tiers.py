"""The tiers give the same bytes: every row, every packed byte, every table."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from day0.converters.tables import BF16, E4M3, E4M3FNUZ, FP16, FP32, Table, fp8_table, wide_table
from day0.converters.tiers import compiled, eager, native, triton
from day0.converters.tiers.load import load_tiers, pick_tier
from day0.errors import Day0Error

TABLES = {
    "e4m3fn": fp8_table(E4M3),
    "e4m3fn flushed": fp8_table(E4M3, flush=True),
    "e4m3fnuz": fp8_table(E4M3FNUZ),
    "bf16": wide_table(BF16),
    "fp16": wide_table(FP16),
    "fp32": wide_table(FP32),
}


def everything(table: Table) -> tuple[torch.Tensor, torch.Tensor]:
    """All 256 bytes in 16 groups, under every row."""
    rows = table.pairs.shape[0]
    codes = torch.arange(256, dtype=torch.uint8).view(16, 16).repeat(rows, 1)
    return codes, torch.arange(rows).repeat_interleave(16).to(torch.uint8)


def by_index(codes: torch.Tensor, rows: torch.Tensor, table: Table) -> torch.Tensor:
    return table.pairs[rows.long().unsqueeze(1), codes.long()]


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("tier", [eager.TIER, native.TIER])
def test_every_row_and_byte(name: str, tier: object) -> None:
    table = TABLES[name]
    codes, rows = everything(table)
    out = torch.zeros_like(codes, dtype=table.pairs.dtype)
    if tier is native.TIER and native.TIER.missing("cpu"):
        pytest.skip(native.TIER.missing("cpu"))
    tier.decode(codes, rows, table, out)  # type: ignore[attr-defined]
    assert torch.equal(out, by_index(codes, rows, table))


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("shift", [0, 1], ids=["words", "bytes"])
def test_every_row_and_byte_on_a_gpu(name: str, shift: int) -> None:
    """By both kernels: codes that begin at an odd byte cannot be read as words."""
    if triton.TIER.missing("cuda"):
        pytest.skip(triton.TIER.missing("cuda"))
    table = TABLES[name]
    codes, rows = everything(table)
    there = torch.empty(codes.numel() + shift, dtype=torch.uint8, device="cuda")[shift:].view(codes.shape)
    there.copy_(codes)
    out = torch.zeros(codes.shape, dtype=table.pairs.dtype, device="cuda")
    triton.decode(there, rows.cuda(), table, out)
    assert torch.equal(out.cpu(), by_index(codes, rows, table))


def test_more_groups_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "CHUNK", 7)
    table = TABLES["e4m3fn"]
    codes, rows = everything(table)
    out = torch.zeros_like(codes, dtype=table.pairs.dtype)
    eager.decode(codes, rows, table, out)
    assert torch.equal(out, by_index(codes, rows, table))


@pytest.mark.parametrize("name", ["e4m3fn", "bf16"])
def test_the_bit_arithmetic_is_right_in_its_window_and_not_outside(name: str) -> None:
    """Without the compiler: the arithmetic itself, in eager torch, for all rows; the window is as wide as it can be."""
    table = TABLES[name]
    window = compiled._window(table)
    assert window is not None
    codes, rows = everything(table)
    out = torch.zeros_like(codes, dtype=table.pairs.dtype)
    if name == "e4m3fn":
        compiled._fp8(codes.view(torch.int32), rows.to(torch.int16), out.view(torch.int64))
    else:
        compiled._bf16(codes.view(torch.int32), rows.to(torch.int16), out.view(torch.int64).view(-1, 4, 2))
    right = (out == by_index(codes, rows, table)).view(-1, 256).all(dim=1)
    assert right.nonzero().flatten().tolist() == list(range(window[0], window[1] + 1))


@pytest.mark.parametrize("name", TABLES)
def test_what_is_compiled_for_cuda_is_right_everywhere(name: str) -> None:
    """Without the compiler: the look-up itself, for all rows and bytes."""
    table = TABLES[name]
    codes, rows = everything(table)
    out = torch.zeros_like(codes, dtype=table.pairs.dtype)
    compiled._look_up(codes, rows, eager.on_device(table, codes.device), out)
    assert torch.equal(out, by_index(codes, rows, table))


def test_on_a_device_a_matrix_is_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece is launched anew: 48 of them for one expert took 3 ms on a GPU. Counted on meta, which computes nothing."""
    pieces: list[int] = []
    table = TABLES["bf16"]
    look = table.pairs.reshape(-1).to("meta")
    monkeypatch.setattr(eager, "on_device", lambda *_: look)
    monkeypatch.setattr(torch, "index_select", lambda _look, _dim, index, out: pieces.append(index.numel()))
    groups = 5760 * 2880 // 32
    codes = torch.empty((groups, 16), dtype=torch.uint8, device="meta")
    rows = torch.empty((groups,), dtype=torch.uint8, device="meta")
    eager.decode(codes, rows, table, torch.empty((groups, 16), dtype=torch.int32, device="meta"))
    assert pieces == [16 * groups]


def test_a_tier_is_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Day0Error, match="it computes on the CPU, and the weights lie on cuda"):
        pick_tier("native", "cuda")
    with pytest.raises(Day0Error, match="has not been tried on sim"):
        pick_tier("compiled", "sim")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Day0Error, match="needs the package triton"):
        pick_tier("compiled", "cuda")
    assert pick_tier("auto", "cuda").name == "eager"


def test_rows_outside_the_window_go_to_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(kind: str) -> Callable[..., None]:
        asked.append(kind)
        return lambda *_: None

    monkeypatch.setattr(compiled, "_compiled", counted)
    monkeypatch.setattr(compiled, "CHUNK", 16)
    table = TABLES["e4m3fn"]
    codes, rows = everything(table)
    compiled.decode(codes, rows, table, torch.zeros_like(codes, dtype=table.pairs.dtype))
    assert len(asked) == compiled.FP8_ROWS[1] - compiled.FP8_ROWS[0] + 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.parametrize("name", ["e4m3fn", "bf16"])
def test_the_compiled_tier(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "CHUNK", 16)
    table = TABLES[name]
    codes, rows = everything(table)
    out = torch.zeros_like(codes, dtype=table.pairs.dtype)
    compiled.decode(codes, rows, table, out)
    assert torch.equal(out, by_index(codes, rows, table))


def test_unknown_and_missing_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Day0Error, match="there is no such tier"):
        pick_tier("naive")
    monkeypatch.setattr(native, "_compiler", lambda: None)
    with pytest.raises(Day0Error, match="no C compiler"):
        pick_tier("native")
    assert pick_tier("auto").name == "eager"
    assert set(load_tiers()) == {"eager", "compiled", "native", "triton"}


def test_a_compiler_that_fails_leaves_the_eager_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_compiler", lambda: "/bin/false")
    native._library.cache_clear()
    try:
        assert pick_tier("auto").name == "eager"
        with pytest.raises(Day0Error, match="cannot build it"):
            native._library()
    finally:
        native._library.cache_clear()


def test_native_refuses_what_it_would_read_wrongly() -> None:
    codes = torch.zeros((4, 32), dtype=torch.uint8)[:, ::2]
    with pytest.raises(ValueError, match="contiguous"):
        native.decode(codes, torch.zeros(4, dtype=torch.uint8), TABLES["bf16"], torch.zeros((4, 16), dtype=torch.int32))
