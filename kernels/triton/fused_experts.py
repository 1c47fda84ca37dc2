"""day0::fused_experts in Triton: choices sorted by expert, two grouped products, one weighted sum.

Nothing waits for the host: the grid is as large as it can become, and programs without rows return at once. Which rows
meet in a tile changes nothing in a row's result, and choices are summed in their order.

Shape suffixes: N tokens, D width, E experts, F hidden features, K choices of a token, M = N K choices, T tiles.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch

from day0.devices.current import on_its_device
from day0.implementation import Constraints, Implementation, TensorLimit
from day0.kernels.triton._gates import gate_function, kind_number
from day0.kernels.triton._tiles import sizes
from day0.kernels.triton._triton import FLOATS, has_triton, next_power_of_2, triton_and_language
from day0.reference_ops.fused_experts import validate

__all__ = ["CHOICES", "IMPLEMENTATIONS", "TILES"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call, as the next is."""
gated: Any = None

TILES = {"rows": 64, "features": 64, "columns": 128, "depth": 64, "warps": 4, "stages": 3}
"""Rows of one expert in a tile; results of the first and of the second product; what is summed over in one step."""
CHOICES = {
    "rows": (32, 64, 128),
    "features": (32, 64, 128),
    "columns": (64, 128, 256),
    "depth": (32, 64, 128),
    "warps": (4, 8),
    "stages": (2, 3, 4),
}
FEW = {"rows": 16, "features": 32, "columns": 64, "depth": 128, "warps": 4, "stages": 4}
"""The same where an expert has few rows: bounded by reading the matrices. Measured apart, as `fused_experts_few`."""
FEW_CHOICES = {
    "features": (16, 32, 64),
    "columns": (32, 64, 128),
    "depth": (64, 128, 256),
    "warps": (2, 4, 8),
    "stages": (2, 3, 4, 5),
}
FEW_ROWS = 16
"""Choices for each expert up to which they are few."""


class Tiles(NamedTuple):
    """Which rows belong to which tile."""

    order_M: torch.Tensor
    """Choices sorted by expert, int32; those that are none last."""
    first_E: torch.Tensor
    """Where each expert begins in the order, and behind the last one; int32."""
    expert_T: torch.Tensor
    """The expert of each tile, int32; E for a tile without rows."""
    begin_T: torch.Tensor
    """The first tile of the expert of each tile, int32."""


@cache
def _kernels() -> tuple[Any, Any, Any]:
    """Return the kernels of the first product, of the second, and of the sum."""
    global tl, gated
    triton, tl = triton_and_language()
    gated = gate_function()

    @triton.jit
    def up(
        x,
        matrix,
        bias,
        weights,
        order,
        first,
        tile_expert,
        tile_begin,
        out,
        step,
        choices,
        experts,
        limit,
        beta,
        linear,
        D: tl.constexpr,
        F: tl.constexpr,
        KIND: tl.constexpr,
        LINEAR: tl.constexpr,
        INTERLEAVED: tl.constexpr,
        EARLY: tl.constexpr,
        BIAS: tl.constexpr,
        ROWS: tl.constexpr,
        FEATURES: tl.constexpr,
        DEPTH: tl.constexpr,
        PRECISION: tl.constexpr,
    ):
        # Neighbouring programs share the rows of an expert, and another column of its matrix.
        tile = tl.program_id(1)
        expert = tl.load(tile_expert + tile)
        if expert < experts:
            begin = tl.load(first + expert) + (tile - tl.load(tile_begin + tile)) * ROWS
            place = begin + tl.arange(0, ROWS)
            real = place < tl.load(first + expert + 1)
            choice = tl.load(order + place, mask=real, other=0)
            token = (choice // choices).to(tl.int64)
            f = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
            if INTERLEAVED:
                gate_row, up_row = 2 * f, 2 * f + 1
            else:
                gate_row, up_row = f, F + f
            base = matrix + expert.to(tl.int64) * step
            gate = tl.zeros([ROWS, FEATURES], tl.float32)
            other = tl.zeros([ROWS, FEATURES], tl.float32)
            if EARLY:
                early = tl.load(weights + choice, mask=real, other=0.0).to(tl.float32)
            for start in range(0, D, DEPTH):
                d = start + tl.arange(0, DEPTH)
                row = tl.load(x + token[:, None] * D + d[None, :], mask=real[:, None] & (d < D)[None, :], other=0.0)
                if EARLY:
                    row = (row.to(tl.float32) * early[:, None]).to(x.dtype.element_ty)
                inside = (f < F)[None, :] & (d < D)[:, None]
                one = tl.load(base + gate_row[None, :] * D + d[:, None], mask=inside, other=0.0)
                two = tl.load(base + up_row[None, :] * D + d[:, None], mask=inside, other=0.0)
                gate = tl.dot(row, one, gate, input_precision=PRECISION)
                other = tl.dot(row, two, other, input_precision=PRECISION)
            if BIAS:
                at = bias + expert.to(tl.int64) * 2 * F
                gate += tl.load(at + gate_row, mask=f < F, other=0.0).to(tl.float32)[None, :]
                other += tl.load(at + up_row, mask=f < F, other=0.0).to(tl.float32)[None, :]
            active = gated(gate, other, limit, beta, linear, KIND, LINEAR, out.dtype.element_ty != tl.float32)
            to = place.to(tl.int64)[:, None] * F + f[None, :]
            tl.store(out + to, active.to(out.dtype.element_ty), mask=real[:, None] & (f < F)[None, :])

    @triton.jit
    def down(
        active,
        matrix,
        bias,
        order,
        first,
        tile_expert,
        tile_begin,
        out,
        step,
        experts,
        D: tl.constexpr,
        F: tl.constexpr,
        BIAS: tl.constexpr,
        ROWS: tl.constexpr,
        COLUMNS: tl.constexpr,
        DEPTH: tl.constexpr,
        PRECISION: tl.constexpr,
    ):
        tile = tl.program_id(1)
        expert = tl.load(tile_expert + tile)
        if expert < experts:
            begin = tl.load(first + expert) + (tile - tl.load(tile_begin + tile)) * ROWS
            place = begin + tl.arange(0, ROWS)
            real = place < tl.load(first + expert + 1)
            choice = tl.load(order + place, mask=real, other=0).to(tl.int64)
            d = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
            base = matrix + expert.to(tl.int64) * step
            total = tl.zeros([ROWS, COLUMNS], tl.float32)
            for start in range(0, F, DEPTH):
                f = start + tl.arange(0, DEPTH)
                at = active + place.to(tl.int64)[:, None] * F + f[None, :]
                row = tl.load(at, mask=real[:, None] & (f < F)[None, :], other=0.0)
                column = tl.load(
                    base + d[None, :] * F + f[:, None], mask=(d < D)[None, :] & (f < F)[:, None], other=0.0
                )
                total = tl.dot(row, column, total, input_precision=PRECISION)
            if BIAS:
                total += tl.load(bias + expert.to(tl.int64) * D + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
            to = out + choice[:, None] * D + d[None, :]
            tl.store(to, total.to(out.dtype.element_ty), mask=real[:, None] & (d < D)[None, :])

    @triton.jit
    def combine(
        parts, weights, chosen, out, choices, experts, D: tl.constexpr, EARLY: tl.constexpr, COLUMNS: tl.constexpr
    ):
        token = tl.program_id(0).to(tl.int64)
        d = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        total = tl.zeros([COLUMNS], tl.float32)
        for choice in range(choices):
            at = token * choices + choice
            expert = tl.load(chosen + at)
            # What is dropped was never written.
            local = (expert >= 0) & (expert < experts)
            part = tl.load(parts + at * D + d, mask=local & (d < D), other=0.0).to(tl.float32)
            if not EARLY:
                part = tl.where(local, part * tl.load(weights + at).to(tl.float32), 0.0)
            total += part
        tl.store(out + token * D + d, total.to(out.dtype.element_ty), mask=d < D)

    return up, down, combine


@on_its_device
def mixture(
    x_ND: torch.Tensor,
    gate_up_EHD: torch.Tensor,
    down_EDF: torch.Tensor,
    weights_NK: torch.Tensor,
    chosen_NK: torch.Tensor,
    kind: str,
    interleaved: bool = False,
    weight_early: bool = False,
    limit: float = 0.0,
    beta: float = 0.0,
    linear_beta: float = 0.0,
    gate_up_bias_EH: torch.Tensor | None = None,
    down_bias_ED: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return [N, D] in the dtype of x; a choice outside 0 to E - 1 contributes 0."""
    biases = (gate_up_bias_EH, down_bias_ED)
    validate(
        x_ND,
        gate_up_EHD,
        down_EDF,
        weights_NK,
        chosen_NK,
        kind,
        interleaved,
        weight_early,
        limit,
        beta,
        linear_beta,
        *biases,
    )
    out_ND = torch.zeros(x_ND.shape, dtype=x_ND.dtype, device=x_ND.device)
    (experts, width, features), (tokens, choices) = down_EDF.shape, chosen_NK.shape
    count = tokens * choices
    if not count or not width:
        return out_ND
    x_ND, gate_up_EHD, down_EDF = x_ND.contiguous(), _whole(gate_up_EHD), _whole(down_EDF)
    weights_NK, chosen_NK = weights_NK.contiguous(), chosen_NK.contiguous()
    gate_up_bias, down_bias = (x_ND if one is None else one.contiguous() for one in biases)
    tile = _tile(count, experts, x_ND.device)
    tiles = assign(chosen_NK, experts, tile["rows"])
    block = min(tile["features"], next_power_of_2(features, 16))
    columns = min(tile["columns"], next_power_of_2(width, 16))
    common = {
        "D": width,
        "F": features,
        "ROWS": tile["rows"],
        "PRECISION": "ieee" if x_ND.dtype == torch.float32 else "tf32",
        "num_warps": tile["warps"],
        "num_stages": tile["stages"],
    }
    active_MF = torch.empty(count, features, dtype=x_ND.dtype, device=x_ND.device)
    parts_MD = torch.empty(count, width, dtype=x_ND.dtype, device=x_ND.device)
    up, down, combine = _kernels()
    number = tiles.expert_T.shape[0]
    if features:
        up[(-(-features // block), number)](
            x_ND,
            gate_up_EHD,
            gate_up_bias,
            weights_NK,
            *tiles,
            active_MF,
            gate_up_EHD.stride(0),
            choices,
            experts,
            float(limit),
            float(beta),
            float(linear_beta),
            KIND=kind_number(kind),
            LINEAR=linear_beta == 0,
            INTERLEAVED=interleaved,
            EARLY=weight_early,
            BIAS=gate_up_bias_EH is not None,
            FEATURES=block,
            DEPTH=min(tile["depth"], next_power_of_2(width, 16)),
            **common,
        )
    down[(-(-width // columns), number)](
        active_MF,
        down_EDF,
        down_bias,
        *tiles,
        parts_MD,
        down_EDF.stride(0),
        experts,
        BIAS=down_bias_ED is not None,
        COLUMNS=columns,
        DEPTH=min(tile["depth"], next_power_of_2(features, 16)),
        **common,
    )
    last = min(1024, next_power_of_2(width, 16))
    combine[(tokens, -(-width // last))](
        parts_MD,
        weights_NK,
        chosen_NK,
        out_ND,
        choices,
        experts,
        D=width,
        EARLY=weight_early,
        COLUMNS=last,
        num_warps=4,
    )
    return out_ND


def _whole(matrix_EOI: torch.Tensor) -> torch.Tensor:
    """Return the matrices, each contiguous by itself: in the slots of a workspace something lies between them."""
    return matrix_EOI if matrix_EOI[0].is_contiguous() else matrix_EOI.contiguous()


def _tile(count: int, experts: int, device: torch.device) -> dict[str, int]:
    few = count <= FEW_ROWS * experts
    return sizes("fused_experts_few", FEW, device) if few else sizes("fused_experts", TILES, device)


def assign(chosen_NK: torch.Tensor, experts: int, rows: int) -> Tiles:
    """Sort choices by expert and cut those of each expert into tiles of `rows`, without waiting for the values."""
    flat_M = chosen_NK.flatten()
    local_M = torch.where((flat_M >= 0) & (flat_M < experts), flat_M, experts).to(torch.int32)
    sorted_M, order_M = torch.sort(local_M, stable=True)
    number_E = torch.arange(experts + 1, dtype=torch.int32, device=flat_M.device)
    first_E = torch.searchsorted(sorted_M, number_E, out_int32=True)
    tiles_E = (first_E[1:] - first_E[:-1] + rows - 1) // rows
    end_E = torch.cumsum(tiles_E, 0, dtype=torch.int32)
    count = flat_M.numel()
    # Each expert with rows has at most one tile that is not full.
    most = min(count, count // rows + min(experts, count))
    expert_T = torch.searchsorted(
        end_E, torch.arange(most, dtype=torch.int32, device=flat_M.device), right=True, out_int32=True
    )
    begin_E = torch.nn.functional.pad(end_E, (1, 0))
    return Tiles(order_M.to(torch.int32), first_E, expert_T, begin_E[expert_T.long()])


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::fused_experts",
        contract=1,
        id="triton",
        version="1.2",
        kind="kernel",
        run=mixture,
        why="only matrices of chosen experts are read, once for each tile of rows; the activation stays in registers",
        devices=("cuda",),
        constraints=Constraints(
            first_dtype=FLOATS,
            arguments={
                "weights": TensorLimit(dtypes=FLOATS),
                "gate_up_bias": TensorLimit(dtypes=FLOATS),
                "down_bias": TensorLimit(dtypes=FLOATS),
            },
        ),
        predicate=has_triton,
        rank=50,
    ),
)
