"""Rotary positions against transformers, in float64, and against complex numbers."""

from __future__ import annotations

import importlib

import torch

from day0.reference_ops import rope
from day0.reference_ops.agreement._comparison import Comparison, worst

__all__ = ["COMPARISONS", "in_place"]


def in_place(slice_R: torch.Tensor) -> torch.Tensor:
    """Put the values of a slice that stands in half order back into interleaved order."""
    pairs_P2: torch.Tensor = slice_R.unflatten(-1, (2, -1)).transpose(-1, -2)
    return pairs_P2.flatten(-2)


def inputs(width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries [2, 5, 3, R], keys [2, 5, 1, R], and cosines and sines [2, 5, R / 2], all different."""
    generator = torch.Generator().manual_seed(2)
    shapes = ((2, 5, 3, width), (2, 5, 1, width), (2, 5, width // 2))
    q, k, angle = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return q, k, (3.0 * angle).cos(), (3.0 * angle).sin()


def against(model: str, function: str, pairing: str, moves: bool) -> float:
    """Rotate whole heads with somebody else's function, which takes cosines and sines twice."""
    theirs = getattr(importlib.import_module(f"transformers.models.{model}.modeling_{model}"), function)
    q, k, cos, sin = inputs(14)
    results = theirs(q, k, torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1), unsqueeze_dim=2)
    if moves:
        results = [in_place(one) for one in results]
    mine = [rope.reference(x, cos, sin, pairing, 0) for x in (q, k)]
    return worst(*zip(mine, results, strict=True))


def against_glm_partial() -> float:
    """GLM turns the first values of every head by itself, as many as there are angles, and passes the others."""
    theirs = importlib.import_module("transformers.models.glm.modeling_glm").apply_rotary_pos_emb
    q, k, cos, sin = inputs(14)
    cos, sin = cos[..., :4], sin[..., :4]
    results = theirs(q, k, torch.cat((cos, cos), -1), torch.cat((sin, sin), -1), unsqueeze_dim=2)
    mine = [rope.reference(x, cos, sin, "interleaved", 0) for x in (q, k)]
    return worst(*zip(mine, results, strict=True))


def against_complex() -> float:
    """A pair as a complex number, turned by multiplication, in a slice that neither begins nor ends the head."""
    q, _, cos, sin = inputs(14)
    cos, sin = cos[:1, :, :5], sin[:1, :, :5]
    pairs = torch.view_as_complex(q[..., 3:13].unflatten(-1, (5, 2)).contiguous())
    turned = torch.view_as_real(pairs * torch.complex(cos, sin)[:, :, None]).flatten(-2)
    expected = torch.cat((q[..., :3], turned, q[..., 13:]), dim=-1)
    return worst((rope.reference(q, cos, sin, "interleaved", 3), expected))


def _transformers(model: str, function: str, pairing: str, moves: bool = False) -> Comparison:
    return Comparison(
        operator=rope.NAME,
        variant=f"{pairing}{', moved to half order' if moves else ''}",
        against=f"{model} {function}",
        distribution="transformers",
        limit=1e-15,
        run=lambda: against(model, function, pairing, moves),
    )


COMPARISONS = (
    _transformers("llama", "apply_rotary_pos_emb", "half"),
    _transformers("deepseek_v3", "apply_rotary_pos_emb", "half"),
    _transformers("deepseek_v32", "apply_rotary_pos_emb", "half"),
    _transformers("glm", "apply_rotary_pos_emb", "interleaved"),
    _transformers("deepseek_v3", "apply_rotary_pos_emb_interleave", "interleaved", moves=True),
    _transformers("deepseek_v32", "apply_rotary_pos_emb_interleave", "interleaved", moves=True),
    _transformers("glm_moe_dsa", "apply_rotary_pos_emb_interleave", "interleaved", moves=True),
    Comparison(
        operator=rope.NAME,
        variant="interleaved, first values",
        against="glm apply_rotary_pos_emb",
        distribution="transformers",
        limit=1e-15,
        run=against_glm_partial,
    ),
    Comparison(
        operator=rope.NAME,
        variant="interleaved, values in the middle",
        against="torch.view_as_complex and a product",
        distribution="torch",
        limit=1e-15,
        run=against_complex,
    ),
)
