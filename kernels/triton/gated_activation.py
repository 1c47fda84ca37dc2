"""day0::gated_activation in Triton: every kind, both places of gate and up.

Shape suffixes: F hidden features; gate_up has 2F columns behind any number of leading dimensions.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from day0.devices.current import on_its_device
from day0.implementation import Constraints, Implementation
from day0.kernels.triton._gates import gate_function, kind_number
from day0.kernels.triton._tiles import sizes
from day0.kernels.triton._triton import FLOATS, has_triton, next_power_of_2, triton_and_language
from day0.reference_ops.gated_activation import validate

__all__ = ["CHOICES", "IMPLEMENTATIONS", "TILES"]

tl: Any = None
"""`triton.language`, which Triton looks up in this module by this name; set at the first call, as the next is."""
gated: Any = None

TILES = {"elements": 2048, "warps": 8}
"""Results of one program."""
CHOICES = {"elements": (512, 1024, 2048, 4096), "warps": (4, 8)}


@cache
def _kernel() -> Any:
    global tl, gated
    triton, tl = triton_and_language()
    gated = gate_function()

    @triton.jit
    def activate(
        gate_up,
        out,
        features,
        limit,
        beta,
        linear,
        KIND: tl.constexpr,
        LINEAR: tl.constexpr,
        INTERLEAVED: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        f = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        begin = gate_up + row * 2 * features
        if INTERLEAVED:
            # One wide load, taken apart in registers.
            both = tl.program_id(1) * 2 * BLOCK + tl.arange(0, 2 * BLOCK)
            pair = tl.load(begin + both, mask=both < 2 * features, other=0.0).to(tl.float32)
            gate, up = tl.split(tl.reshape(pair, (BLOCK, 2)))
        else:
            gate = tl.load(begin + f, mask=f < features, other=0.0).to(tl.float32)
            up = tl.load(begin + features + f, mask=f < features, other=0.0).to(tl.float32)
        result = gated(gate, up, limit, beta, linear, KIND, LINEAR, out.dtype.element_ty != tl.float32)
        tl.store(out + row * features + f, result.to(out.dtype.element_ty), mask=f < features)

    return activate


@on_its_device
def activate(
    gate_up: torch.Tensor,
    kind: str,
    interleaved: bool = False,
    limit: float = 0.0,
    beta: float = 0.0,
    linear_beta: float = 0.0,
) -> torch.Tensor:
    """Return [..., F] in the dtype of gate_up."""
    validate(gate_up, kind, limit, beta, linear_beta)
    gate_up = gate_up.contiguous()
    features = gate_up.shape[-1] // 2
    out = torch.empty((*gate_up.shape[:-1], features), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        tile = sizes("gated_activation", TILES, gate_up.device)
        block = min(tile["elements"], next_power_of_2(features, 16))
        _kernel()[(out.numel() // features, -(-features // block))](
            gate_up,
            out,
            features,
            float(limit),
            float(beta),
            float(linear_beta),
            KIND=kind_number(kind),
            LINEAR=linear_beta == 0,
            INTERLEAVED=interleaved,
            BLOCK=block,
            num_warps=tile["warps"],
        )
    return out


IMPLEMENTATIONS = (
    Implementation(
        operator="day0::gated_activation",
        contract=1,
        id="triton",
        version="1.1",
        kind="kernel",
        run=activate,
        why="both halves are read once; eager torch writes and reads every step of the formula",
        devices=("cuda",),
        constraints=Constraints(first_dtype=FLOATS),
        predicate=has_triton,
        rank=50,
    ),
)
