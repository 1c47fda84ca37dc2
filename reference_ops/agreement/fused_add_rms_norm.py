"""Addition and normalisation against torch's addition followed by other people's normalisation."""

from __future__ import annotations

import torch

from day0.reference_ops import fused_add_rms_norm
from day0.reference_ops.agreement._comparison import Comparison, worst
from day0.reference_ops.agreement.rms_norm import EPS, inputs

__all__ = ["COMPARISONS"]


def against_llama() -> float:
    """In bfloat16, rounding first; the sum has to be rounded before it is normalised."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    x, weight = inputs(torch.bfloat16)
    residual = x.roll(1, dims=0)
    module = LlamaRMSNorm(576, EPS)
    module.weight = torch.nn.Parameter(weight)
    normed, total = fused_add_rms_norm.reference(x, residual, weight, EPS)
    with torch.no_grad():
        return worst((normed, module(torch.add(x, residual))), (total, torch.add(x, residual)))


def against_torch() -> float:
    """In bfloat16, multiplying wide."""
    x, weight = inputs(torch.bfloat16)
    residual = x.roll(1, dims=0)
    normed, total = fused_add_rms_norm.reference(x, residual, weight, EPS, round_first=False)
    theirs = torch.nn.functional.rms_norm(torch.add(x, residual), (576,), weight, EPS)
    return worst((normed, theirs), (total, torch.add(x, residual)))


COMPARISONS = (
    Comparison(
        operator=fused_add_rms_norm.NAME,
        variant="bfloat16, rounded first",
        against="torch.add, transformers llama LlamaRMSNorm",
        distribution="transformers",
        limit=0.0,
        run=against_llama,
    ),
    Comparison(
        operator=fused_add_rms_norm.NAME,
        variant="bfloat16, multiplied wide",
        against="torch.add, torch.nn.functional.rms_norm",
        distribution="torch",
        limit=0.0,
        run=against_torch,
    ),
)
