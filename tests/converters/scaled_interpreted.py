"""The Triton kernel that converts with scales against eager torch, where TRITON_INTERPRET=1 is set: run as a script.

The interpreter knows no machine code: it runs the gathers that other GPUs than NVIDIA's run.
"""

from __future__ import annotations

import torch

from day0.converters.tiers import _triton_scaled
from day0.converters.tiers._triton_scaled import scaled
from tests.converters.test_fp8_workspace import by_scales
from tests.kernels.interpreter import put_right

DEFAULTS = dict(_triton_scaled.TILES)
RANGES = ((118, 127), (0, 9), (100, 160), (250, 255), (243, 254))
"""Lowest and highest scale bytes."""
FEW = ((9, 34),)
"""For other tiles than the usual ones."""
SIZES = ((160, 3), (5, 1), (1, 90), (130, 34))


def main() -> None:
    """Compare all that is written, also whether it is of use."""
    put_right()
    for chosen in _triton_scaled.CHOICES:
        _triton_scaled.TILES.update(DEFAULTS | chosen)
        compare_all(SIZES if not chosen else FEW, RANGES if not chosen else RANGES[::4])


def compare_all(sizes: tuple[tuple[int, int], ...], ranges: tuple[tuple[int, int], ...]) -> None:
    """Compare with the tiles that are set."""
    for rows, groups in sizes:
        for low, high in ranges:
            for height in (128, 1, 0):
                compare(rows, groups, low, high, height)


def compare(rows: int, groups: int, low: int, high: int, height: int) -> None:
    """Both ways on one set of scale bytes."""
    generator = torch.Generator().manual_seed(rows + low)
    bytes_RG = torch.randint(low, high + 1, (rows, groups), dtype=torch.uint8, generator=generator)
    codes_RP = torch.randint(0, 256, (rows, groups * 16), dtype=torch.uint8, generator=generator)
    found = []
    for way in (by_scales, scaled):
        scales = torch.full((-(-rows // height), -(-groups // 4)), float("nan")) if height else bytes_RG.clone().zero_()
        out_RC = torch.full((rows, groups * 32), 77, dtype=torch.uint8)
        unsettled = torch.zeros(1, dtype=torch.int32)
        way(codes_RP, bytes_RG, height, scales, out_RC, unsettled)
        found.append((int(unsettled), scales, out_RC))
    (flag, scales, out), (other_flag, other_scales, other_out) = found
    case = (rows, groups, low, high, height)
    assert flag == other_flag, case
    assert flag or (torch.equal(scales, other_scales) and torch.equal(out, other_out)), case


if __name__ == "__main__":
    main()
