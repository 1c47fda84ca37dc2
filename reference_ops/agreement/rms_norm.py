"""Root mean square normalisation against torch's own and the three orders that models write."""

from __future__ import annotations

import torch

from day0.reference_ops import rms_norm
from day0.reference_ops.agreement._comparison import Comparison, worst

__all__ = ["COMPARISONS", "inputs"]

EPS = 1e-5


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x [33, 576] and weight [576], rows of very different size."""
    generator = torch.Generator().manual_seed(17)
    size = torch.logspace(-3, 3, 33, dtype=torch.float64)[:, None]
    x = torch.randn(33, 576, generator=generator, dtype=torch.float64) * size
    weight = 1.0 + 0.3 * torch.randn(576, generator=generator, dtype=torch.float64)
    return x.to(dtype), weight.to(dtype)


def against_torch() -> float:
    """In float64, where the order of rounding makes no difference."""
    x, weight = inputs(torch.float64)
    theirs = torch.nn.functional.rms_norm(x, (576,), weight, EPS)
    return worst(*((rms_norm.reference(x, weight, EPS, first), theirs) for first in (True, False)))


def against_torch_rounded() -> float:
    """In bfloat16, where torch multiplies wide."""
    x, weight = inputs(torch.bfloat16)
    theirs = torch.nn.functional.rms_norm(x, (576,), weight, EPS)
    return worst((rms_norm.reference(x, weight, EPS, round_first=False), theirs))


def against_kimi_linear() -> float:
    """In bfloat16, rounding first."""
    from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearRMSNorm

    return _module(KimiLinearRMSNorm(576, EPS))


def against_llama() -> float:
    """In bfloat16, rounding first."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    return _module(LlamaRMSNorm(576, EPS))


def _module(module: torch.nn.Module) -> float:
    x, weight = inputs(torch.bfloat16)
    module.weight = torch.nn.Parameter(weight)
    with torch.no_grad():
        return worst((rms_norm.reference(x, weight, EPS), module(x)))


def against_gemma() -> float:
    """In bfloat16, multiplying wide. Its weight is stored less one, which is exact for a float32 weight near one."""
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

    x, weight = inputs(torch.bfloat16)
    module = GemmaRMSNorm(576, EPS)
    module.weight = torch.nn.Parameter(weight.float() - 1.0)
    with torch.no_grad():
        return worst((rms_norm.reference(x, weight, EPS, round_first=False), module(x)))


COMPARISONS = (
    Comparison(
        operator=rms_norm.NAME,
        variant="float64",
        against="torch.nn.functional.rms_norm",
        distribution="torch",
        limit=1e-15,
        run=against_torch,
    ),
    Comparison(
        operator=rms_norm.NAME,
        variant="bfloat16, multiplied wide",
        against="torch.nn.functional.rms_norm",
        distribution="torch",
        limit=0.0,
        run=against_torch_rounded,
    ),
    Comparison(
        operator=rms_norm.NAME,
        variant="bfloat16, multiplied wide",
        against="transformers gemma GemmaRMSNorm",
        distribution="transformers",
        limit=0.0,
        run=against_gemma,
    ),
    Comparison(
        operator=rms_norm.NAME,
        variant="bfloat16, rounded first",
        against="transformers kimi_linear KimiLinearRMSNorm",
        distribution="transformers",
        limit=0.0,
        run=against_kimi_linear,
    ),
    Comparison(
        operator=rms_norm.NAME,
        variant="bfloat16, rounded first",
        against="transformers llama LlamaRMSNorm",
        distribution="transformers",
        limit=0.0,
        run=against_llama,
    ),
)
