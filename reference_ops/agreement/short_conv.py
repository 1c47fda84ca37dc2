"""The short convolution against torch's kernel and transformers."""

from __future__ import annotations

from functools import partial

import torch

from day0.reference_ops import short_conv
from day0.reference_ops.agreement._comparison import Comparison, worst

__all__ = ["COMPARISONS"]


def inputs(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return x [B, S, C], weight [C, W] and state [B, W - 1, C] in float64."""
    generator = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return normal(2, tokens, 6), normal(6, 4), normal(2, 3, 6)


def against_torch(tokens: int) -> float:
    """A group for each channel over the state and the tokens, no activation."""
    x_BSC, weight_CW, state_BWC = inputs(tokens)
    seen_BCT = torch.cat((state_BWC, x_BSC), dim=1).transpose(1, 2)
    theirs_BCS = torch.nn.functional.conv1d(seen_BCT, weight_CW[:, None], groups=6)
    y_BSC, new_BWC = short_conv.reference(x_BSC, weight_CW, state_BWC, silu=False)
    return worst((y_BSC, theirs_BCS.transpose(1, 2)), (new_BWC, seen_BCT[..., -3:].transpose(1, 2)))


def against_start() -> float:
    """Prefill without a state, with SiLU; theirs pads on both sides and cuts."""
    from transformers.models.kimi_linear import modeling_kimi_linear as modeling

    x_BSC, weight_CW, _ = inputs(9)
    theirs_BCS = modeling.causal_conv1d_fn(x_BSC.transpose(1, 2), weight_CW, activation="silu")
    return worst((short_conv.reference(x_BSC, weight_CW)[0], theirs_BCS.transpose(1, 2)))


def against_update(tokens: int) -> float:
    """Decode with a state, which theirs holds as [B, C, W] with one input too many and writes in place."""
    from transformers.models.kimi_linear import modeling_kimi_linear as modeling

    x_BSC, weight_CW, state_BWC = inputs(tokens)
    theirs_BCW = torch.nn.functional.pad(state_BWC.transpose(1, 2), (1, 0), value=7.0).contiguous()
    theirs_BCS = modeling.causal_conv1d_update(x_BSC.transpose(1, 2), theirs_BCW, weight_CW, activation="silu")
    y_BSC, new_BWC = short_conv.reference(x_BSC, weight_CW, state_BWC)
    return worst((y_BSC, theirs_BCS.transpose(1, 2)), (new_BWC, theirs_BCW[..., 1:].transpose(1, 2)))


COMPARISONS = (
    *(
        Comparison(
            operator=short_conv.NAME,
            variant=f"{tokens} tokens, state, no activation",
            against="torch.nn.functional.conv1d",
            distribution="torch",
            limit=1e-15,
            run=partial(against_torch, tokens),
        )
        for tokens in (1, 9)
    ),
    Comparison(
        operator=short_conv.NAME,
        variant="9 tokens, no state, SiLU",
        against="transformers kimi_linear causal_conv1d_fn",
        distribution="transformers",
        limit=1e-15,
        run=against_start,
    ),
    *(
        Comparison(
            operator=short_conv.NAME,
            variant=f"{tokens} tokens, state, SiLU",
            against="transformers kimi_linear causal_conv1d_update",
            distribution="transformers",
            limit=1e-15,
            run=partial(against_update, tokens),
        )
        for tokens in (1, 2)
    ),
)
