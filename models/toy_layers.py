"""Parts of the toy model that keep nothing between calls: norm, feed-forward network, mixture of experts.

Shape suffixes: B batch, S tokens, D hidden, N = B * S tokens, E experts, K chosen experts, F expert width.
"""

from __future__ import annotations

import torch
from torch import nn

from day0.models.toy_config import ToyConfig
from day0.reference_ops.mxfp4_decode import BLOCK

__all__ = ["DenseFeedForward", "MoeFeedForward", "RmsNorm", "situ", "wide_dtype"]


def wide_dtype(tensor: torch.Tensor) -> torch.dtype:
    """Return what the parts that need precision compute in: float32, or float64 for a float64 model."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


class RmsNorm(nn.Module):
    """y = x / sqrt(mean(x^2) + eps) * weight; rounded to the model's dtype before the weight, as Kimi does."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension."""
        wide = x.to(wide_dtype(x))
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        y: torch.Tensor = (wide * scale).to(x.dtype) * self.weight
        return y


def situ(gate: torch.Tensor, up: torch.Tensor, config: ToyConfig) -> torch.Tensor:
    """Return beta tanh(g / beta) sigmoid(g) * lb tanh(u / lb), computed wide (K3's activation)."""
    beta, linear = config.situ_beta, config.situ_linear_beta
    g, u = gate.to(wide_dtype(gate)), up.to(wide_dtype(up))
    bounded = beta * torch.tanh(g / beta) * torch.sigmoid(g)
    return (bounded * (linear * torch.tanh(u / linear))).to(gate.dtype)


class DenseFeedForward(nn.Module):
    """w1 gate, w3 up, w2 down."""

    def __init__(self, config: ToyConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.w1 = nn.Linear(config.hidden_size, width, bias=False)
        self.w3 = nn.Linear(config.hidden_size, width, bias=False)
        self.w2 = nn.Linear(width, config.hidden_size, bias=False)

    def forward(self, x_BSD: torch.Tensor) -> torch.Tensor:
        """Return [B, S, D]."""
        out_BSD: torch.Tensor = self.w2(situ(self.w1(x_BSD), self.w3(x_BSD), self.config))
        return out_BSD


class Mxfp4Weight(nn.Module):
    """The stacked weights of all experts, [E, out, in], as four-bit codes with block scales."""

    codes: torch.Tensor
    scales: torch.Tensor

    def __init__(self, experts: int, out: int, inner: int) -> None:
        super().__init__()
        self.register_buffer("codes", torch.empty(experts, out, inner // 2, dtype=torch.uint8))
        self.register_buffer("scales", torch.empty(experts, out, inner // BLOCK, dtype=torch.uint8))

    def forward(self, dtype: torch.dtype) -> torch.Tensor:
        """Decode to [E, out, in]."""
        weight: torch.Tensor = torch.ops.day0.mxfp4_decode(self.codes, self.scales, dtype)
        return weight


class Experts(nn.Module):
    """Routed experts. Each token meets only the experts it chose."""

    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.config = config
        experts, hidden, width = config.n_experts, config.hidden_size, config.moe_intermediate_size
        self.w1 = Mxfp4Weight(experts, width, hidden)
        self.w3 = Mxfp4Weight(experts, width, hidden)
        self.w2 = Mxfp4Weight(experts, hidden, width)

    def forward(self, x_ND: torch.Tensor, weight_NK: torch.Tensor, chosen_NK: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum [N, D]; weights are applied to each expert's rounded output, in wide."""
        tokens, chosen = chosen_NK.shape
        flat_M = chosen_NK.reshape(-1)
        x_MD1 = x_ND[:, None, :, None].expand(-1, chosen, -1, -1).reshape(tokens * chosen, -1, 1)
        # One matrix for each (token, choice): no sizes that depend on values, so it traces without weights.
        w1_MFD, w3_MFD, w2_MDF = (torch.index_select(w(x_ND.dtype), 0, flat_M) for w in (self.w1, self.w3, self.w2))
        inner_MF1 = situ(torch.bmm(w1_MFD, x_MD1), torch.bmm(w3_MFD, x_MD1), self.config)
        each_NKD = torch.bmm(w2_MDF, inner_MF1).reshape(tokens, chosen, -1)
        return (each_NKD.to(weight_NK.dtype) * weight_NK[..., None]).sum(dim=1).to(x_ND.dtype)


class Router(nn.Module):
    """Scores in wide, whatever the model's dtype: a half-precision gate changes the choice."""

    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.n_experts, config.hidden_size))
        self.e_score_correction_bias = nn.Parameter(torch.empty(config.n_experts))

    def forward(self, x_ND: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weights [N, K] in wide and expert numbers [N, K] int64."""
        wide = wide_dtype(x_ND)
        logits_NE = x_ND.to(wide) @ self.weight.to(wide).t()
        bias_E = self.e_score_correction_bias.to(wide)
        weight_NK, chosen_NK = torch.ops.day0.moe_router(
            logits_NE, bias_E, self.config.experts_per_token, self.config.routed_scaling_factor
        )
        return weight_NK, chosen_NK


class MoeFeedForward(nn.Module):
    """Routed experts and a shared one that every token meets."""

    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config)
        self.shared_experts = DenseFeedForward(config, config.shared_intermediate_size)

    def forward(self, x_BSD: torch.Tensor) -> torch.Tensor:
        """Return [B, S, D]."""
        x_ND = x_BSD.reshape(-1, x_BSD.shape[-1])
        weight_NK, chosen_NK = self.gate(x_ND)
        routed_ND = self.experts(x_ND, weight_NK, chosen_NK)
        out_BSD: torch.Tensor = routed_ND.reshape(x_BSD.shape) + self.shared_experts(x_BSD)
        return out_BSD
