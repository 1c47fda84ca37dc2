"""The toy model: shaped like Kimi K3.1, small enough for any machine, called like a transformers model.

Shape suffixes: B batch, S new tokens, D hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from day0.models.toy_attention import KdaAttention, KdaCache, MlaAttention, MlaCache
from day0.models.toy_config import ToyConfig
from day0.models.toy_layers import DenseFeedForward, MoeFeedForward, RmsNorm
from day0.reference_ops.torch_ops import register_operators

__all__ = ["ToyCache", "ToyConfig", "ToyModel", "ToyOutput", "make_toy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToyCache:
    """One cache for each layer. Calls make a new one and leave the old as it is."""

    layers: tuple[KdaCache | MlaCache, ...]
    length: int
    """How many tokens it holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToyOutput:
    """What a call returns: logits [B, S, V], and the cache if it was asked for."""

    logits: torch.Tensor
    past_key_values: ToyCache | None


class KdaLayer(nn.Module):
    """A decoder layer with Kimi Delta Attention."""

    def __init__(self, config: ToyConfig, feed_forward: nn.Module) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = KdaAttention(config)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = feed_forward

    def forward(self, x_BSD: torch.Tensor, cache: KdaCache | None) -> tuple[torch.Tensor, KdaCache]:
        """Return the new hidden states [B, S, D] and the layer's cache."""
        mixed_BSD, cache = self.self_attn(self.input_layernorm(x_BSD), cache)
        x_BSD = x_BSD + mixed_BSD
        return x_BSD + self.mlp(self.post_attention_layernorm(x_BSD)), cache


class MlaLayer(nn.Module):
    """A decoder layer with sparse multi-head latent attention."""

    def __init__(self, config: ToyConfig, feed_forward: nn.Module) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = MlaAttention(config)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = feed_forward

    def forward(self, x_BSD: torch.Tensor, cache: MlaCache | None) -> tuple[torch.Tensor, MlaCache]:
        """Return the new hidden states [B, S, D] and the layer's cache."""
        mixed_BSD, cache = self.self_attn(self.input_layernorm(x_BSD), cache)
        x_BSD = x_BSD + mixed_BSD
        return x_BSD + self.mlp(self.post_attention_layernorm(x_BSD)), cache


class ToyModel(nn.Module):
    """Embedding, decoder layers, norm and head. Parameters are uninitialised: see day0.models.toy_weights.

    No step depends on values, so it also runs on meta, in any floating dtype; codes and scales stay uint8.
    """

    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        register_operators()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_layer(config, number) for number in range(1, config.num_hidden_layers + 1))
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(
        self, input_ids: torch.Tensor, past_key_values: ToyCache | None = None, use_cache: bool = True
    ) -> ToyOutput:
        """Return logits [B, S, V] in the model's dtype for new tokens [B, S], after those of the cache."""
        x_BSD = self.embed_tokens(input_ids)
        caches: list[KdaCache | MlaCache] = []
        for number, layer in enumerate(self.layers):
            x_BSD, cache = layer(x_BSD, past_key_values.layers[number] if past_key_values is not None else None)
            caches.append(cache)
        logits_BSV = self.lm_head(self.norm(x_BSD))
        held = past_key_values.length if past_key_values is not None else 0
        kept = ToyCache(layers=tuple(caches), length=held + input_ids.shape[1]) if use_cache else None
        return ToyOutput(logits=logits_BSV, past_key_values=kept)


def make_toy(config: ToyConfig, device: str = "cpu") -> ToyModel:
    """Build the model for inference, in float32, with parameters that nobody has set yet."""
    with torch.device("meta"):
        model = ToyModel(config)
    if device != "meta":
        model = model.to_empty(device=device)
    return model.requires_grad_(False).eval()


def _layer(config: ToyConfig, number: int) -> nn.Module:
    """Make a layer by its number, from 1."""
    dense = number <= config.dense_layers
    feed_forward = DenseFeedForward(config, config.intermediate_size) if dense else MoeFeedForward(config)
    return MlaLayer(config, feed_forward) if number in config.mla_layers else KdaLayer(config, feed_forward)
