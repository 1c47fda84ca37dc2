"""Parts of the toy model that keep nothing between calls: norm, feed-forward network, mixture of experts.

Shape suffixes: B batch, S tokens, D hidden, N = B * S tokens, E experts, K chosen experts, F expert width, L latent.
"""

from __future__ import annotations

import torch
from torch import nn

from day0.converters.workspace import (
    BatchedExperts,
    DecodeEveryTime,
    ExpertWorkspace,
    PackedExperts,
    RoutedWorkspace,
)
from day0.models.toy.calls import Calls
from day0.models.toy.config import ToyConfig
from day0.reference_ops.mxfp4_decode import BLOCK

__all__ = ["DenseFeedForward", "Experts", "MoeFeedForward", "Mxfp4Weight", "RmsNorm", "wide_dtype"]


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


class DenseFeedForward(nn.Module):
    """w1 gate, w3 up, w2 down."""

    def __init__(self, config: ToyConfig, calls: Calls, width: int) -> None:
        super().__init__()
        self.config, self.calls = config, calls
        self.w1 = nn.Linear(config.hidden_size, width, bias=False)
        self.w3 = nn.Linear(config.hidden_size, width, bias=False)
        self.w2 = nn.Linear(width, config.hidden_size, bias=False)

    def forward(self, x_BSD: torch.Tensor) -> torch.Tensor:
        """Return [B, S, D]."""
        config = self.config
        both = torch.cat((self.w1(x_BSD), self.w3(x_BSD)), dim=-1)
        inner = self.calls.gated_activation(both, config.activation, False, *config.activation_rule())
        out_BSD: torch.Tensor = self.w2(inner)
        return out_BSD


class Mxfp4Weight(nn.Module):
    """The stacked weights of all experts, [E, out, in], as four-bit codes with block scales."""

    codes: torch.Tensor
    scales: torch.Tensor

    def __init__(self, name: str, experts: int, out: int, inner: int) -> None:
        super().__init__()
        self.name = name
        self.register_buffer("codes", torch.empty(experts, out, inner // 2, dtype=torch.uint8))
        self.register_buffer("scales", torch.empty(experts, out, inner // BLOCK, dtype=torch.uint8))

    def packed(self) -> PackedExperts:
        """Return what a workspace converts."""
        return PackedExperts(name=self.name, codes=self.codes, scales=self.scales)


class Experts(nn.Module):
    """Routed experts, whose weights come from a workspace that decodes them while the model runs."""

    def __init__(self, config: ToyConfig, calls: Calls, name: str) -> None:
        super().__init__()
        self.config, self.calls = config, calls
        self.workspace: ExpertWorkspace | RoutedWorkspace = (
            BatchedExperts(calls, config.expert_batch) if config.expert_batch else DecodeEveryTime(calls)
        )
        width, inner = config.latent_size or config.hidden_size, config.moe_intermediate_size
        self.w1 = Mxfp4Weight(f"{name}.w1", config.n_experts, inner, width)
        self.w3 = Mxfp4Weight(f"{name}.w3", config.n_experts, inner, width)
        self.w2 = Mxfp4Weight(f"{name}.w2", config.n_experts, width, inner)

    def forward(self, x_NL: torch.Tensor, weight_NK: torch.Tensor, chosen_NK: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum [N, L]; weights are applied to each expert's rounded output, in wide."""
        packed = [weight.packed() for weight in (self.w1, self.w3, self.w2)]
        if isinstance(self.workspace, RoutedWorkspace):
            return self._in_rounds(self.workspace, packed, x_NL, weight_NK, chosen_NK)
        w1_EFL, w3_EFL, w2_ELF = (self.workspace.expert_weights(one, x_NL.dtype) for one in packed)
        return self._mixed(x_NL, torch.cat((w1_EFL, w3_EFL), dim=1), w2_ELF, weight_NK, chosen_NK)

    def _in_rounds(
        self,
        workspace: RoutedWorkspace,
        packed: list[PackedExperts],
        x_NL: torch.Tensor,
        weight_NK: torch.Tensor,
        chosen_NK: torch.Tensor,
    ) -> torch.Tensor:
        """Sum over rounds in wide; with a single one it is what it would be with all experts at hand."""
        total_NL: torch.Tensor | None = None
        for one in workspace.rounds(packed, chosen_NK, x_NL.dtype):
            part_NL = self._mixed(x_NL, one.gate_up, one.down, weight_NK, one.chosen_NK).to(wide_dtype(x_NL))
            total_NL = part_NL if total_NL is None else total_NL + part_NL
        return torch.zeros_like(x_NL) if total_NL is None else total_NL.to(x_NL.dtype)

    def _mixed(
        self,
        x_NL: torch.Tensor,
        gate_up_EHL: torch.Tensor,
        down_ELF: torch.Tensor,
        weight_NK: torch.Tensor,
        chosen_NK: torch.Tensor,
    ) -> torch.Tensor:
        config = self.config
        out_NL: torch.Tensor = self.calls.fused_experts(
            x_NL, gate_up_EHL, down_ELF, weight_NK, chosen_NK,
            config.activation, False, False, *config.activation_rule(),
        )  # fmt: skip
        return out_NL


class Router(nn.Module):
    """Scores in wide, whatever the model's dtype: a half-precision gate changes the choice."""

    def __init__(self, config: ToyConfig, calls: Calls) -> None:
        super().__init__()
        self.config, self.calls = config, calls
        self.weight = nn.Parameter(torch.empty(config.n_experts, config.hidden_size))
        self.e_score_correction_bias = nn.Parameter(torch.empty(config.n_experts))

    def forward(self, x_ND: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weights [N, K] in wide and expert numbers [N, K] int64."""
        wide, config = wide_dtype(x_ND), self.config
        logits_NE = x_ND.to(wide) @ self.weight.to(wide).t()
        bias_E = self.e_score_correction_bias.to(wide)
        weight_NK, chosen_NK = self.calls.moe_router(
            logits_NE, bias_E, config.experts_per_token, config.routed_scaling_factor,
            config.expert_groups, config.expert_groups_kept,
        )  # fmt: skip
        return weight_NK, chosen_NK


class MoeFeedForward(nn.Module):
    """Routed experts in a narrower latent, and a shared one in full width that every token meets."""

    def __init__(self, config: ToyConfig, calls: Calls, name: str) -> None:
        super().__init__()
        hidden, latent = config.hidden_size, config.latent_size
        self.gate = Router(config, calls)
        self.experts = Experts(config, calls, f"{name}.experts")
        self.shared_experts = DenseFeedForward(config, calls, config.shared_intermediate_size)
        self.latent = latent
        if latent:
            self.routed_expert_down_proj = nn.Linear(hidden, latent, bias=False)
            self.routed_expert_norm = RmsNorm(latent, config.rms_norm_eps)
            self.routed_expert_up_proj = nn.Linear(latent, hidden, bias=False)

    def forward(self, x_BSD: torch.Tensor) -> torch.Tensor:
        """Return [B, S, D]. The router sees the full width; the norm stands behind the sum over experts."""
        x_ND = x_BSD.reshape(-1, x_BSD.shape[-1])
        weight_NK, chosen_NK = self.gate(x_ND)
        if self.latent:
            routed_NL = self.experts(self.routed_expert_down_proj(x_ND), weight_NK, chosen_NK)
            routed_ND = self.routed_expert_up_proj(self.routed_expert_norm(routed_NL))
        else:
            routed_ND = self.experts(x_ND, weight_NK, chosen_NK)
        out_BSD: torch.Tensor = routed_ND.reshape(x_BSD.shape) + self.shared_experts(x_BSD)
        return out_BSD
