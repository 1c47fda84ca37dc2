"""Implementations for the engine runs, given by --with: plain torch, and not the references' own order of operations."""

from __future__ import annotations

from typing import Any

import torch

from day0.implementation import Constraints, Implementation

FLOATS = Constraints(first_dtype=frozenset({"float32", "bfloat16", "float16"}))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, round_first: bool = True) -> torch.Tensor:
    """Normalise by torch's own operator where the order of rounding is the same."""
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps).contiguous()


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, round_first: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add, then normalise."""
    total = (x + residual).contiguous()
    return rms_norm(total, weight, eps, round_first), total


def gated_activation(gate_up: torch.Tensor, kind: str, *attributes: Any, **named: Any) -> torch.Tensor:
    """Compute SwiGLU only."""
    if kind != "swiglu":
        raise ValueError(f"this kernel computes swiglu, not {kind}")
    gate, up = gate_up.chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).contiguous()


def silu(x: torch.Tensor) -> torch.Tensor:
    """Compute one of torch's own operators by others."""
    return x * torch.sigmoid(x)


def _made(operator: str, run: Any, why: str) -> Implementation:
    return Implementation(
        operator=operator,
        contract=1,
        id="smoke",
        version="1.0",
        kind="kernel",
        run=run,
        why=why,
        constraints=FLOATS,
        rank=10,
    )


IMPLEMENTATIONS = (
    _made("day0::rms_norm", rms_norm, "torch's rms_norm"),
    _made("day0::fused_add_rms_norm", fused_add_rms_norm, "addition and torch's rms_norm"),
    _made("day0::gated_activation", gated_activation, "two torch operators"),
    _made("aten::silu", silu, "sigmoid and a product"),
)
