"""What training the toy needs beside the model: operators with gradients, rounded experts, first weights.

Shape suffixes: B batch, S queries, T keys, H heads, D dimension, C row width, L latent, K chosen tokens, N tokens,
E experts, F expert width, O output rows, I inputs, M patches of an image.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from day0.converters.mxfp4 import decode_mxfp4, encode_mxfp4
from day0.converters.workspace import PackedExperts
from day0.models.toy.calls import references
from day0.models.toy.layers import Mxfp4Weight
from day0.models.toy.model import ToyModel
from day0.models.toy.tasks import GRID
from day0.reference_ops.mxfp4_decode import BLOCK

__all__ = ["RoundedExperts", "TrainingCalls", "export", "first_weights", "peculiar"]


def peculiar(shape: torch.Size) -> torch.Tensor:
    """Return factors that give expert 0 what real checkpoints have too: a block of zeros, and one next to nothing."""
    factor_EOI = torch.ones(shape)
    factor_EOI[0, 0, :BLOCK] = 0.0
    factor_EOI[0, 1, :BLOCK] = 2.0**-60
    return factor_EOI


class RoundedExperts:
    """A workspace of float weights; once `rounded`, what it gives is in MXFP4 and gradients pass straight through."""

    def __init__(self, model: ToyModel, generator: torch.Generator) -> None:
        self.rounded = False
        self.weights: dict[str, nn.Parameter] = {}
        for module in model.modules():
            if isinstance(module, Mxfp4Weight):
                experts, rows, packed = module.codes.shape
                values_EOI = torch.randn(experts, rows, 2 * packed, generator=generator) * (2 * packed) ** -0.5
                self.weights[module.name] = nn.Parameter(values_EOI)

    def expert_weights(self, packed: PackedExperts, dtype: torch.dtype) -> torch.Tensor:
        """Return the weights [E, O, I]."""
        values_EOI = self.values(packed.name)
        if not self.rounded:
            return values_EOI
        return values_EOI + (decode_mxfp4(encode_mxfp4(values_EOI.detach())) - values_EOI).detach()

    def values(self, name: str) -> torch.Tensor:
        """Return the weights [E, O, I] before rounding."""
        weight = self.weights[name]
        return weight * peculiar(weight.shape).to(weight.device)


class TrainingCalls:
    """The references, some in forms that are fast with gradients, and an indexer that learns what attention reads.

    `index_losses` collects, for each MLA layer of a call, the divergence of the indexer's choice from what dense
    attention reads (the warm-up of DeepSeek-V3.2's indexer). Attention is dense until `sparse` is set.
    """

    def __init__(self) -> None:
        self._base = references()
        self._logits_BST = torch.empty(0)
        self.index_losses: list[torch.Tensor] = []
        self.sparse = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # a copy asks before it has anything
            raise AttributeError(name)
        return getattr(self._base, name)

    def forget(self) -> None:
        """Let go of what a call has left behind."""
        self._logits_BST = torch.empty(0)
        self.index_losses.clear()

    def lightning_indexer(
        self, q_BSHD: torch.Tensor, k_BTD: torch.Tensor, w_BSH: torch.Tensor, first: int
    ) -> torch.Tensor:
        """All heads at once."""
        score_BHST = torch.relu(torch.einsum("bshd,btd->bhst", q_BSHD, k_BTD))
        logits_BST = torch.einsum("bhst,bsh->bst", score_BHST, w_BSH)
        logits_BST = logits_BST * (q_BSHD.shape[2] ** -0.5 * q_BSHD.shape[3] ** -0.5)
        self._logits_BST = logits_BST.masked_fill(~_visible(logits_BST), float("-inf"))
        return self._logits_BST

    def topk_tokens(self, logits_BST: torch.Tensor, topk: int) -> tuple[torch.Tensor, None]:
        """Ties and hidden tokens may come in any order: attention masks again."""
        return logits_BST.topk(min(topk, logits_BST.shape[-1]), dim=-1).indices, None

    def sparse_mla_prefill(
        self, q_BSHC: torch.Tensor, kv_BTC: torch.Tensor, chosen_BSK: torch.Tensor, latent: int, scale: float
    ) -> tuple[torch.Tensor, None, None]:
        """Attend, and note how far the indexer is from it."""
        score_BSHT = torch.einsum("bshc,btc->bsht", q_BSHC, kv_BTC) * scale
        visible_ST = _visible(self._logits_BST)
        dense_BSHT = score_BSHT.masked_fill(~visible_ST[:, None], float("-inf"))
        read_BST = dense_BSHT.softmax(dim=-1).mean(dim=2).detach()
        said_BST = self._logits_BST.log_softmax(dim=-1).masked_fill(~visible_ST, 0.0)
        distance_BST = read_BST * (read_BST.clamp_min(1e-9).log() - said_BST)
        self.index_losses.append(distance_BST.masked_fill(~visible_ST, 0.0).sum(dim=-1).mean())
        if self.sparse:
            chosen_BST = torch.zeros_like(read_BST, dtype=torch.bool).scatter(-1, chosen_BSK, True) & visible_ST
            dense_BSHT = score_BSHT.masked_fill(~chosen_BST[:, :, None], float("-inf"))
        return torch.einsum("bsht,btl->bshl", dense_BSHT.softmax(dim=-1), kv_BTC[..., :latent]), None, None

    def fused_experts(
        self, x_NL: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, weight_NK: torch.Tensor,
        chosen_NK: torch.Tensor, kind: str, interleaved: bool, weight_early: bool, *rule: float,
    ) -> torch.Tensor:  # fmt: skip
        """Every expert on every token, with weight 0 where it was not chosen."""
        weight_NE = x_NL.new_zeros(x_NL.shape[0], gate_up.shape[0]).scatter(1, chosen_NK, weight_NK)
        both = torch.einsum("nl,efl->nef", x_NL, gate_up)
        inner_NEF = self._base.gated_activation(both, kind, interleaved, *rule)
        out_NL: torch.Tensor = torch.einsum("nef,elf->nl", inner_NEF * weight_NE[..., None], down)
        return out_NL

    def vision_attention(
        self, q_NHD: torch.Tensor, k_NHD: torch.Tensor, v_NHD: torch.Tensor, image_N: torch.Tensor,
        position_N2: torch.Tensor, scale: float, *window: int,
    ) -> torch.Tensor:  # fmt: skip
        """Image by image: all have the same size here, and all their patches see each other."""
        q, k, v = (x.unflatten(0, (-1, GRID * GRID)).transpose(1, 2) for x in (q_NHD, k_NHD, v_NHD))
        out_BHMD: torch.Tensor = ((q @ k.transpose(-1, -2)) * scale).softmax(dim=-1) @ v
        return out_BHMD.transpose(1, 2).flatten(0, 1)


def _visible(logits_BST: torch.Tensor) -> torch.Tensor:
    return torch.ones(logits_BST.shape[1:], dtype=torch.bool, device=logits_BST.device).tril()


def first_weights(model: ToyModel, generator: torch.Generator) -> None:
    """Draw what training begins with."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            _first(name, value, generator)
        # What is read from the cache is already near what the head says.
        model.lm_head.weight.copy_(model.embed_tokens.weight * model.config.hidden_size**-0.5)


def _first(name: str, value: torch.Tensor, generator: torch.Generator) -> None:
    owner, _, last = name.rpartition(".")
    if last == "A_log":
        value.copy_(torch.linspace(-0.3, 0.4, value.numel()))
    elif last == "dt_bias":
        # Heads from slow to fast forgetting.
        value.copy_(torch.linspace(-3.5, 0.5, value.numel()))
    elif last == "e_score_correction_bias":
        value.copy_(torch.linspace(-0.05, 0.05, value.numel()))
    elif last.endswith("_conv"):
        value.normal_(0, 0.3, generator=generator)[:, -1] += 0.5
    elif last == "position_table":
        value.normal_(0, 0.02, generator=generator)
    elif last == "norm" or "norm" in owner.rpartition(".")[2]:
        value.fill_(0.0 if last == "bias" else 1.0)
    elif last == "proj":
        value.zero_()
    elif owner == "embed_tokens":
        value.normal_(0, 1.0, generator=generator)
    else:
        fan_in = value.shape[-2] if last in ("k_b", "v_b") else value.shape[-1]
        value.normal_(0, fan_in**-0.5, generator=generator)


def export(model: ToyModel, experts: RoundedExperts) -> dict[str, torch.Tensor]:
    """Return the weights as they ship: bfloat16, and experts in MXFP4."""
    weights = {name: value.detach().to(torch.bfloat16) for name, value in model.named_parameters()}
    for path, module in model.named_modules():
        if isinstance(module, Mxfp4Weight):
            packed = encode_mxfp4(experts.values(module.name).detach())
            weights[f"{path}.codes"], weights[f"{path}.scales"] = packed.codes, packed.scales
    return weights
