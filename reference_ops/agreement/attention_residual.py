"""Attention over block snapshots against NeMo AutoModel."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch

from day0.reference_ops import attention_residual
from day0.reference_ops.agreement._comparison import Comparison, error
from day0.reference_ops.agreement._modules import automodel
from day0.reference_ops.agreement._widened import Widened

__all__ = ["COMPARISONS"]


def against_automodel(snapshots: int, dtype: torch.dtype) -> float:
    """Their tokens are one dimension and their bank one tensor."""
    situ = automodel("kimi_k3.situ")
    generator = torch.Generator().manual_seed(6)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    bank_MBSD, prefix_BSD = normal(snapshots, 2, 5, 32).to(dtype), (20.0 * normal(2, 5, 32)).to(dtype)
    norm_D, score_D = normal(32).to(dtype), normal(32).to(dtype)
    norm = SimpleNamespace(weight=norm_D, variance_epsilon=1e-5)
    bank_NMD = bank_MBSD.permute(1, 2, 0, 3).reshape(10, snapshots, 32)
    args = (prefix_BSD.reshape(10, 32), bank_NMD, SimpleNamespace(weight=score_D[None]), norm)
    if dtype == torch.float64:
        with Widened():
            theirs_ND = situ._apply_attn_res(*args)
    else:
        theirs_ND = situ._apply_attn_res(*args)
    mine_BSD = attention_residual.reference(list(bank_MBSD), prefix_BSD, norm_D, score_D, 1e-5)
    return error(mine_BSD.reshape(10, 32), theirs_ND)


COMPARISONS = (
    *(
        Comparison(
            operator=attention_residual.NAME,
            variant=f"{snapshots} snapshots",
            against="nemo_automodel kimi_k3 _apply_attn_res",
            distribution="nemo-automodel",
            limit=2e-15,
            run=partial(against_automodel, snapshots, torch.float64),
        )
        for snapshots in (1, 7)
    ),
    Comparison(
        operator=attention_residual.NAME,
        variant="7 snapshots, bfloat16",
        against="nemo_automodel kimi_k3 _apply_attn_res",
        distribution="nemo-automodel",
        # Both compute in float32 and round once: a value on the edge may go the other way, one unit of bfloat16.
        limit=4e-3,
        run=partial(against_automodel, 7, torch.bfloat16),
    ),
)
