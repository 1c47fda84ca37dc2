"""Every code under every scale byte against exact fractions, through the functions that convert."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from day0.converters.blocks import magnitude_windows
from day0.converters.header import Stored
from day0.converters.reading import Buffers
from day0.converters.tables import BF16, E4M3, E4M3FNUZ, FP16, FP32, HALVES, FloatLayout, wide_table
from day0.converters.targets._target import Job, Target
from day0.converters.targets.load import load_targets
from day0.converters.tiers import eager
from day0.converters.verdict import Verdict
from day0.converters.weight import Format, MxTile, Segment, Weight
from day0.records.convert import ConversionParameters

CODES = torch.arange(16, dtype=torch.uint8)
VALUES = [Fraction(halves, 2) for halves in HALVES]
VALUES += [-value for value in VALUES]
ROW = (CODES | (CODES.flip(0) << 4)).view(1, 16)
"""All codes twice, upward in the low nibbles and downward in the high ones."""
ORDER = [code for low in range(16) for code in (low, 15 - low)]
FP8 = ("fp8-128x128", "fp8-1x128", "fp8-row", "fp8-tensor", "mxfp8")


def one_weight(rows: int, columns: int) -> Weight:
    stored = Stored(file=Path("x"), name="w_blocks", dtype="U8", shape=(rows, columns // 2), begin=0, nbytes=0)
    return Weight(
        name="w",
        format=Format(name="mx", summary="", find=lambda *_: None, mx=lambda *_: None),  # type: ignore[arg-type]
        parts={"payload": stored},
        stacked=False,
        experts=(0,),
        stored_rows=rows,
        columns=columns,
        segments=(Segment(first=0, step=1, count=rows),),
    )


def converted(
    target: Target, codes: torch.Tensor, bytes_RG: torch.Tensor, **options: Any
) -> tuple[dict[str, torch.Tensor], Verdict]:
    rows, packed = codes.shape
    job = Job(
        weight=one_weight(rows, 2 * packed),
        expert=0,
        parameters=ConversionParameters.model_validate({"to": target.name, **options}),
        decode=eager.decode,
        buffers=Buffers(),
        prepared=None,
    )
    if target.name == "fp8-tensor":
        from day0.converters.blocks import bounds_of

        layout = E4M3FNUZ if options.get("fnuz") else E4M3
        job = Job(**{**job.__dict__, "prepared": bounds_of(layout, bytes_RG, codes, rows, packed // 16)})
    made = target.tile(job, MxTile(codes_RP=codes, bytes_RG=bytes_RG))
    return dict(made.tensors), made.verdict


def small_value(byte: int, layout: FloatLayout) -> Fraction:
    """Decode by the definition of the fields, not by the code under test."""
    sign = -1 if byte >> (layout.bits - 1) else 1
    bits = byte & ((1 << (layout.bits - 1)) - 1)
    exponent, mantissa = bits >> layout.mantissa, bits & ((1 << layout.mantissa) - 1)
    if exponent == 0:
        return sign * Fraction(mantissa, 1 << layout.mantissa) * Fraction(2) ** (1 - layout.bias)
    return sign * (1 + Fraction(mantissa, 1 << layout.mantissa)) * Fraction(2) ** (exponent - layout.bias)


@pytest.mark.parametrize("fnuz", [False, True])
@pytest.mark.parametrize("name", FP8)
def test_every_code_and_scale_byte_is_exact_in_fp8(name: str, fnuz: bool) -> None:
    """16 codes, 255 scale bytes: the product of stored byte and stored scale is the value, as a fraction."""
    layout = E4M3FNUZ if fnuz and name != "mxfp8" else E4M3
    for byte in range(255):
        scales = torch.full((1, 1), byte, dtype=torch.uint8)
        made, verdict = converted(load_targets()[name], ROW, scales, fnuz=fnuz, scales="e8m0")
        power = Fraction(2) ** (int(made["scale"].view(torch.uint8)) - 127)
        got = [small_value(int(one), layout) * power for one in made["weight"].view(-1)]
        assert got == [VALUES[code] * Fraction(2) ** (byte - 127) for code in ORDER], (byte, name)
        assert verdict.changed == 0 and verdict.nan == 0


@pytest.mark.parametrize(("layout", "exact", "normal"), [(E4M3, (-8, 6), -5), (E4M3FNUZ, (-9, 5), -6)])
def test_windows_are_those_of_the_theorem(layout: FloatLayout, exact: tuple[int, int], normal: int) -> None:
    windows = magnitude_windows(layout)[1:]
    assert max(low for low, _, _ in windows) == exact[0] and min(high for _, _, high in windows) == exact[1]
    assert max(low for _, low, _ in windows) == normal


def test_windows_of_each_magnitude_in_e4m3() -> None:
    found = {HALVES[number] / 2: window for number, window in enumerate(magnitude_windows(E4M3)) if number}
    assert found == {
        0.5: (-8, -5, 9),
        1: (-9, -6, 8),
        1.5: (-8, -6, 8),
        2: (-10, -7, 7),
        3: (-9, -7, 7),
        4: (-11, -8, 6),
        6: (-10, -8, 6),
    }


def rounded(value: Fraction, layout: FloatLayout) -> Fraction:
    """Round to nearest even and saturate, by search among all values near."""
    top = small_value(layout.largest, layout)
    if abs(value) >= top:
        return top if value > 0 else -top
    low, high = 0, layout.largest
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if small_value(middle, layout) <= abs(value) else (low, middle)
    below, above = abs(value) - small_value(low, layout), small_value(high, layout) - abs(value)
    best = low if below < above or (below == above and low % 2 == 0) else high
    return small_value(best, layout) * (1 if value >= 0 else -1)


@pytest.mark.parametrize(("layout", "window"), [(BF16, (0, 252)), (FP16, (104, 140)), (FP32, (0, 252))])
def test_every_code_and_scale_byte_in_wider_floats(layout: FloatLayout, window: tuple[int, int]) -> None:
    """Equal to the fraction inside the window, rounded to nearest even or saturated outside; the verdict counts which."""
    target = load_targets()[layout.name]
    width = layout.bits // 8
    for byte in range(255):
        scales = torch.full((1, 1), byte, dtype=torch.uint8)
        made, verdict = converted(target, ROW, scales)
        raw = made["weight"].reshape(-1).view(torch.uint8).view(-1, width).tolist()
        bits = [int.from_bytes(bytes(one), "little") for one in raw]
        got = [small_value(one, layout) for one in bits]
        wanted = [VALUES[code] * Fraction(2) ** (byte - 127) for code in ORDER]
        for one, value in zip(got, wanted, strict=True):
            assert one == value or one == rounded(value, layout), byte
        wrong = sum(one != value for one, value in zip(got, wanted, strict=True))
        assert verdict.changed == wrong and (wrong == 0) == (window[0] <= byte <= window[1])
        tiny = Fraction(2) ** layout.lowest_normal
        assert verdict.subnormal == sum(0 < abs(value) < tiny for value in got)
        assert all(bits[place] >> (layout.bits - 1) for place, code in enumerate(ORDER) if code == 8), (
            "-0 lost its sign"
        )


@pytest.mark.parametrize("layout", [BF16, FP16, FP32])
def test_scale_byte_255_is_nan_for_every_code(layout: FloatLayout) -> None:
    dtype = {8: torch.uint8, 16: torch.int16, 32: torch.int32}[layout.bits]
    floats = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[layout.name]
    assert bool(wide_table(layout).pairs[255].contiguous().view(dtype).view(floats).isnan().all())


def test_minus_zero_keeps_its_sign_where_there_is_one() -> None:
    """In e4m3fnuz 0x80 is NaN: -0 has to become 0."""
    codes, scales = torch.full((1, 16), 0x88, dtype=torch.uint8), torch.full((1, 1), 127, dtype=torch.uint8)
    for fnuz, byte in ((False, 0x80), (True, 0)):
        made, _ = converted(load_targets()["fp8-1x128"], codes, scales, fnuz=fnuz)
        assert made["weight"].unique().tolist() == [byte]


@pytest.mark.parametrize("tiny", list(itertools.product((0, 1, 2, 3), ("fp8-128x128", "fp8-row"))))
def test_smallest_scales_do_not_underflow(tiny: tuple[int, str]) -> None:
    """A block of scales 3 came out eight times too large where the block's own scale underflowed."""
    made, verdict = converted(load_targets()[tiny[1]], ROW, torch.full((1, 1), tiny[0], dtype=torch.uint8))
    scale = made["scale"].view(torch.float32)
    assert float(scale) >= 2.0**-126
    got = [small_value(int(one), E4M3) * Fraction(float(scale)) for one in made["weight"].view(-1)]
    assert got == [VALUES[code] * Fraction(2) ** (tiny[0] - 127) for code in ORDER] and verdict.changed == 0
