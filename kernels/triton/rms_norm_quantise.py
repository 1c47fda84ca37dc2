"""day0::rms_norm_quantise in Triton: a row is normalised and quantised before it leaves the registers.

Shape suffixes: N tokens, D features, G groups.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from day0.devices.current import on_its_device
from day0.implementation import Accepted, Call, Constraints, Implementation, Limit, Rejected, TensorLimit
from day0.kernels.triton._math import functions
from day0.kernels.triton._tiles import sizes
from day0.kernels.triton._triton import (
    FLOATS,
    LARGEST_ROW,
    has_triton,
    next_power_of_2,
    rows_of_tile,
    triton_and_language,
)
from day0.reference_ops.rms_norm_quantise import SMALLEST_AMAX, validate

__all__ = ["CHOICES", "IMPLEMENTATIONS", "TILES"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call, as the next are."""
power_above: Any = None

TILES = {"elements": 4096, "warps": 8}
"""Values that one program normalises, where a row is not longer."""
CHOICES = {"elements": (1024, 2048, 4096, 8192), "warps": (4, 8, 16)}


@cache
def _kernel() -> Any:
    global tl, power_above
    triton, tl = triton_and_language()
    power_above = functions().power_above

    @triton.jit
    def quantise(
        x,
        weight,
        codes,
        scales,
        rows,
        columns,
        groups,
        group,
        eps,
        smallest,
        TWO: tl.constexpr,
        ROWS: tl.constexpr,
        GROUPS: tl.constexpr,
        GROUP: tl.constexpr,
    ):
        row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None, None]
        g, j = tl.arange(0, GROUPS)[None, :, None], tl.arange(0, GROUP)[None, None, :]
        column = g * group + j
        real = (j < group) & (column < columns)
        inside = (row < rows) & real
        value = tl.load(x + row * columns + column, mask=inside, other=0.0)
        wide = value.to(tl.float32)
        mean = tl.sum(tl.sum(wide * wide, 2), 1) / columns
        factor = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
        normed = (wide * factor[:, None, None]).to(value.dtype).to(tl.float32)
        normed = normed * tl.load(weight + column, mask=real, other=0.0).to(tl.float32)
        normed = normed.to(value.dtype).to(tl.float32)
        # As whole numbers, of which infinity and NaN are the largest: a maximum of floats may leave NaN out.
        top = tl.max(normed.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 2)
        wrong = top >= 0x7F800000
        largest = tl.where(wrong, smallest, tl.maximum(top.to(tl.float32, bitcast=True), smallest))
        bits = (power_above(largest) + 127) << 23
        scale = bits.to(tl.float32, bitcast=True) if TWO else tl.div_rn(largest, 448.0)
        scale = tl.where(wrong, float("nan"), scale)
        if TWO:
            # Its reciprocal is a power of two as well: exact, and quicker than a quotient.
            code = normed * ((254 << 23) - bits).to(tl.float32, bitcast=True)[:, :, None]
        else:
            code = tl.div_rn(normed, tl.broadcast_to(scale[:, :, None], (ROWS, GROUPS, GROUP)))
        # At most 448 and its last bit: that rounds to 448.
        code = code.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        # Hardware may give NaN the sign of what it came from; torch's is positive.
        code = tl.where(wrong[:, :, None], 0x7F, code)
        tl.store(codes + row * columns + column, code.to(tl.uint8), mask=inside)
        rows_, groups_ = tl.arange(0, ROWS)[:, None], tl.arange(0, GROUPS)[None, :]
        to = tl.program_id(0).to(tl.int64) * ROWS + rows_
        tl.store(scales + to * groups + groups_, scale, mask=(to < rows) & (groups_ < groups))

    return quantise


@on_its_device
def quantise(
    x_ND: torch.Tensor, weight_D: torch.Tensor, eps: float, group: int, power_of_two: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes [N, D] float8_e4m3fn and scales [N, G] float32."""
    validate(x_ND, weight_D, eps, group, power_of_two)
    x_ND, weight_D = x_ND.contiguous(), weight_D.contiguous()
    tokens, columns = x_ND.shape
    size = min(group, columns) if group else columns
    groups = -(-columns // size)
    codes_ND = torch.empty(tokens, columns, dtype=torch.uint8, device=x_ND.device)
    scales_NG = torch.empty(tokens, groups, dtype=torch.float32, device=x_ND.device)
    if tokens:
        wide, many = next_power_of_2(size), next_power_of_2(groups)
        tile = rows_of_tile(wide * many, **sizes("rms_norm_quantise", TILES, x_ND.device))
        _kernel()[(-(-tokens // tile.rows),)](
            x_ND,
            weight_D,
            codes_ND,
            scales_NG,
            tokens,
            columns,
            groups,
            size,
            eps,
            SMALLEST_AMAX,
            TWO=power_of_two,
            ROWS=tile.rows,
            GROUPS=many,
            GROUP=wide,
            num_warps=tile.warps,
        )
    return codes_ND.view(torch.float8_e4m3fn), scales_NG


def fits(call: Call) -> Accepted | Rejected:
    """Triton is installed, and the groups fill up to powers of two that one program holds."""
    x, group = call.tensors[0], call.arguments["group"]
    size = min(group, x.shape[-1]) if isinstance(group, int) and group else x.shape[-1]
    held = next_power_of_2(size) * next_power_of_2(-(-x.shape[-1] // max(1, size)))
    if held > LARGEST_ROW:
        return Rejected(f"groups of {size} in rows of {x.shape[-1]} fill {held} values, more than {LARGEST_ROW}")
    return has_triton(call)


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::rms_norm_quantise",
        contract=1,
        id="triton",
        version="1.1",
        kind="kernel",
        run=quantise,
        why="a row is read once, and only codes and scales are written",
        devices=("cuda",),
        constraints=Constraints(
            first_dtype=FLOATS, arguments={"x": TensorLimit(sizes={-1: Limit(at_most=LARGEST_ROW)})}
        ),
        predicate=fits,
        rank=50,
    ),
)
