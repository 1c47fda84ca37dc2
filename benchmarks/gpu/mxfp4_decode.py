"""How close the conversion of four-bit experts on a GPU comes to a plain copy of as many bytes.

First every row and every packed byte of each table is compared with the table itself; then experts of gpt-oss size are
decoded, in one run with a copy. `a copy` moves as many bytes as the conversion reads and writes.

`python benchmarks/gpu/mxfp4_decode.py [--experts 32] [--tiles]`
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from timing import timed as timed_graph

from day0.converters.online.fp8_workspace import LAYOUTS, Fp8Workspace, Matrix, Packed
from day0.converters.tables import BF16, E4M3, E4M3FNUZ, FP16, FP32, Table, fp8_table, wide_table
from day0.converters.tiers import _triton_scaled, eager, triton

ROWS, COLUMNS = 5760, 2880
"""Of gate and up of one gpt-oss expert."""


def main() -> None:
    """Compare, then print a table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument(
        "--tiles", action="store_true", help="only the tiles of the scaled layouts, one after the other"
    )
    options = parser.parse_args()
    if options.tiles:
        walk_tiles(ROWS * options.experts)
        return
    compare()
    groups = options.experts * ROWS * COLUMNS // 32
    codes = torch.randint(0, 256, (groups, 16), dtype=torch.uint8, device="cuda")
    for name, table, low, high in (("fp8", fp8_table(E4M3), 11, 23), ("bf16", wide_table(BF16), 118, 130)):
        rows = torch.randint(low, high, (groups,), dtype=torch.uint8, device="cuda")
        out = torch.empty(groups, 16, dtype=table.pairs.dtype, device="cuda")
        moved = codes.nbytes + rows.nbytes + out.nbytes
        copied = copy_of(moved, options.repeat)
        for tier, decode in (("triton", triton.decode), ("eager", eager.decode)):
            ms = timed(lambda d=decode, r=rows, t=table, o=out: d(codes, r, t, o), options.repeat)
            print(f"{tier:7} {name:5} {ms:8.3f} ms  {moved / ms / 1e6:7.0f} GB/s  {copied / ms:6.3f} of a copy")
            if tier == "triton":
                print(f"figure: mxfp4_to_{name}_fraction_of_copy {copied / ms:.3f}")
        del out, rows
    for layout in LAYOUTS:
        share = converted(layout, ROWS * options.experts)
        print(f"figure: mxfp4_to_{layout.replace('-', '_')}_fraction_of_copy {share:.3f}")
        converted(layout, ROWS)


def walk_tiles(rows: int) -> None:
    """Convert with every choice of tiles: right first, then its share of a copy. What is quickest belongs into TILES."""
    usual = dict(_triton_scaled.TILES)
    for chosen in _triton_scaled.CHOICES:
        for layout in LAYOUTS:
            _triton_scaled.TILES.update(usual | chosen)
            print(f"{chosen or 'as it is'}:", end=" ")
            converted(layout, rows)
    _triton_scaled.TILES.update(usual)


def converted(layout: str, rows: int) -> float:
    """Convert a matrix into the workspace with the scales of a layout, and all that is launched around the look-up.

    As a serving engine does it, in a captured graph, with weights that are known to be exact. Return the share of a copy.
    """
    packed = Packed(
        codes=torch.randint(0, 256, (rows, COLUMNS // 2), dtype=torch.uint8, device="cuda"),
        scales=torch.randint(118, 128, (rows, COLUMNS // 32), dtype=torch.uint8, device="cuda"),
    )
    workspace = workspace_of(layout, rows, "cuda")
    packed = workspace.settled(0, packed)
    if packed.settled != layout:
        raise SystemExit(f"error: {layout}: the scales alone do not settle it")
    workspace.convert(0, 0, packed)
    same_as_on_the_cpu(workspace, packed)
    out, scales = workspace.values(0)[0], workspace.scales(0)
    moved = packed.codes.nbytes + packed.scales.nbytes + out.nbytes + (scales[0].nbytes if scales is not None else 0)
    ms, copied = timed_graph([lambda: workspace.convert(0, 0, packed)]), copy_of(moved, 30)
    print(
        f"{rows // ROWS:3} experts, {layout:12} {ms:8.4f} ms  {moved / ms / 1e6:7.0f} GB/s  {copied / ms:6.3f} of a copy"
    )
    return copied / ms


def workspace_of(layout: str, rows: int, device: str) -> Fp8Workspace:
    """One slot for one matrix."""
    tier = triton.TIER if device == "cuda" else eager.TIER
    size = Matrix(rows=rows, columns=COLUMNS)
    return Fp8Workspace((size,), 1, decode=tier.decode, scaled=tier.scaled, layout=layout, device=device)


def same_as_on_the_cpu(workspace: Fp8Workspace, packed: Packed) -> None:
    """Compare the first expert, byte by byte, with what the eager tier makes of it. Raises SystemExit."""
    here = workspace_of(workspace.layout, ROWS, "cpu")
    here.convert(0, 0, Packed(codes=packed.codes[:ROWS].cpu(), scales=packed.scales[:ROWS].cpu()))
    for mine, theirs in ((here.values(0), workspace.values(0)), (here.scales(0), workspace.scales(0))):
        if mine is None or theirs is None:
            continue
        same = mine[0].view(torch.uint8), theirs[0, : mine.shape[1]].contiguous().view(torch.uint8).cpu()
        if not torch.equal(*same):
            raise SystemExit(f"error: {workspace.layout}: the bytes differ from those of the CPU")


def compare() -> None:
    """Every row and byte, by both kernels. Raises SystemExit where one differs."""
    tables = {f"fp8 {one.name}": fp8_table(one) for one in (E4M3, E4M3FNUZ)}
    tables |= {one.name: wide_table(one) for one in (BF16, FP16, FP32)}
    for name, table in tables.items():
        for shift in (0, 1):
            # Codes that begin at an odd byte cannot be read as words: the other kernel.
            if not equal(table, shift):
                raise SystemExit(f"error: {name}: the bytes differ from the table's")
    print(f"{len(tables)} tables: every row and byte equal, by both kernels")


def equal(table: Table, shift: int) -> bool:
    """Say whether all 256 bytes under every row give what the table says."""
    rows = len(table.pairs)
    codes = torch.arange(256, dtype=torch.uint8).view(16, 16).repeat(rows, 1)
    row = torch.arange(rows).repeat_interleave(16).to(torch.uint8)
    expected = table.pairs[row.long().unsqueeze(1), codes.long()]
    there = torch.empty(codes.numel() + shift, dtype=torch.uint8, device="cuda")[shift:].view(codes.shape)
    there.copy_(codes)
    out = torch.zeros_like(expected, device="cuda")
    triton.decode(there, row.cuda(), table, out)
    return torch.equal(out.cpu(), expected)


def copy_of(nbytes: int, repeat: int) -> float:
    """Milliseconds of a copy that reads and writes so many bytes together."""
    source = torch.empty(nbytes // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return timed(lambda: target.copy_(source), repeat)


def timed(action: Callable[[], Any], repeat: int) -> float:
    """Median of milliseconds by events, with the second-level cache emptied before each."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    for _ in range(3):
        action()
    found = []
    for _ in range(repeat):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        action()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return median(found)


if __name__ == "__main__":
    main()
