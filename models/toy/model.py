"""The toy model: shaped like Kimi K3.1, small enough for any machine, called like a transformers model.

Shape suffixes: B batch, S new tokens, D hidden, V vocabulary, K chosen tokens, G visual tokens, I image channels,
Y rows of pixels, X columns of pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from day0.errors import Day0Error
from day0.models.toy.cache import KdaCache, MlaCache, Placement, ToyCache, place
from day0.models.toy.calls import Calls, dispatched
from day0.models.toy.config import ToyConfig
from day0.models.toy.kda import KdaAttention
from day0.models.toy.layers import DenseFeedForward, MoeFeedForward, RmsNorm
from day0.models.toy.mla import MlaAttention
from day0.models.toy.residual import Residual, make_last_residual, make_residual
from day0.models.toy.vision import VisionTower

__all__ = ["ToyCache", "ToyConfig", "ToyModel", "ToyOutput", "make_toy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToyOutput:
    """What a call returns: logits [B, S, V], and the cache if it was asked for."""

    logits: torch.Tensor
    past_key_values: ToyCache | None


class DecoderLayer(nn.Module):
    """Mixing over tokens, then a feed-forward network, each behind a norm and with its own way into the residual."""

    def __init__(self, config: ToyConfig, calls: Calls, number: int) -> None:
        super().__init__()
        dense = number <= config.dense_layers
        self.number = number
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = self._attention(config, calls)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = (
            DenseFeedForward(config, calls, config.intermediate_size)
            if dense
            else MoeFeedForward(config, calls, f"layers.{number - 1}.mlp")
        )
        self.self_attention_res = make_residual(config, calls)
        self.mlp_res = make_residual(config, calls)
        # A snapshot is taken at the first layer of each block.
        self.begins_block = (number - 1) % config.residual_block == 0

    def _attention(self, config: ToyConfig, calls: Calls) -> nn.Module:
        raise NotImplementedError

    def mix(
        self,
        x_BSD: torch.Tensor,
        chosen_BSK: torch.Tensor | None,
        cache: KdaCache | MlaCache | None,
        where: Placement | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, KdaCache | MlaCache | None]:
        """Return the mixed tokens, the tokens that were read, and the new cache."""
        raise NotImplementedError

    def forward(
        self,
        stream: torch.Tensor,
        bank: tuple[torch.Tensor, ...] = (),
        chosen_BSK: torch.Tensor | None = None,
        cache: KdaCache | MlaCache | None = None,
        where: Placement | None = None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...], torch.Tensor | None, KdaCache | MlaCache | None]:
        """Return the new stream, the bank of snapshots, the tokens that were read, and the layer's cache.

        The stream is [B, S, D], or [B, S, n, D] with several residual streams.
        """
        into = self.self_attention_res.read(stream, bank)
        mixed_BSD, chosen_BSK, cache = self.mix(self.input_layernorm(into.x_BSD), chosen_BSK, cache, where)
        stream, bank = self.self_attention_res.write(stream, mixed_BSD, into, bank, snapshot=self.begins_block)
        into = self.mlp_res.read(stream, bank)
        fed_BSD = self.mlp(self.post_attention_layernorm(into.x_BSD))
        stream, bank = self.mlp_res.write(stream, fed_BSD, into, bank, snapshot=False)
        return stream, bank, chosen_BSK, cache


class KdaLayer(DecoderLayer):
    """A decoder layer with Kimi Delta Attention."""

    def _attention(self, config: ToyConfig, calls: Calls) -> nn.Module:
        return KdaAttention(config, calls)

    def mix(
        self,
        x_BSD: torch.Tensor,
        chosen_BSK: torch.Tensor | None,
        cache: KdaCache | MlaCache | None,
        where: Placement | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, KdaCache | MlaCache | None]:
        """Mix through the state; what an MLA layer chose is passed on."""
        mixed_BSD, cache = self.self_attn(x_BSD, cache)
        return mixed_BSD, chosen_BSK, cache


class MlaLayer(DecoderLayer):
    """A decoder layer with sparse multi-head latent attention."""

    def _attention(self, config: ToyConfig, calls: Calls) -> nn.Module:
        has_indexer = self.number not in config.index_shared_layers
        return MlaAttention(config, calls, f"layers.{self.number - 1}.self_attn", has_indexer)

    def mix(
        self,
        x_BSD: torch.Tensor,
        chosen_BSK: torch.Tensor | None,
        cache: KdaCache | MlaCache | None,
        where: Placement | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, KdaCache | MlaCache | None]:
        """Mix through the chosen tokens."""
        mixed_BSD, chosen_BSK, cache = self.self_attn(x_BSD, chosen_BSK, cache, where)
        return mixed_BSD, chosen_BSK, cache


class ToyModel(nn.Module):
    """Embedding, vision branch, decoder layers, norm and head. Parameters are uninitialised: see day0.models.toy.weights.

    No step depends on values, so it also runs on meta, in any floating dtype; codes and scales stay uint8.
    """

    def __init__(self, config: ToyConfig, calls: Calls | None = None) -> None:
        super().__init__()
        calls = calls if calls is not None else dispatched()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        if config.vision:
            self.vision_tower = VisionTower(config, calls)
        self.layers = nn.ModuleList(
            (MlaLayer if number in config.mla_layers else KdaLayer)(config, calls, number)
            for number in range(1, config.num_hidden_layers + 1)
        )
        self.output_res: Residual = make_last_residual(config, calls)
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(
        self,
        input_ids: torch.Tensor,
        past_key_values: ToyCache | None = None,
        use_cache: bool = True,
        pixel_values: torch.Tensor | None = None,
    ) -> ToyOutput:
        """Return logits [B, S, V] in the model's dtype for new tokens [B, S], after those of the cache.

        With images `pixel_values` [B, I, Y, X] the first tokens of each prompt are placeholders for visual tokens.
        Raises Day0Error for images that do not fit the prompt, or come after the first call, and for another batch
        than the cache's.
        """
        x_BSD, parts = self._embed(input_ids, past_key_values, pixel_values)
        pages = where = None
        # A cache is continued whether or not the caller wants the new one.
        if use_cache or past_key_values is not None:
            held = past_key_values.pages if past_key_values is not None else None
            pages, where = place(held, self.config.block_size, input_ids.shape[0], parts, input_ids.device)
        stream, bank, chosen_BSK = self.output_res.spread(x_BSD), (), None
        caches = []
        for number, layer in enumerate(self.layers):
            cache = past_key_values.layers[number] if past_key_values is not None else None
            stream, bank, chosen_BSK, cache = layer(stream, bank, chosen_BSK, cache, where)
            caches.append(cache)
        logits_BSV = self.lm_head(self.norm(self.output_res.gather(stream, bank)))
        if pages is None or not use_cache:
            return ToyOutput(logits=logits_BSV, past_key_values=None)
        length = (past_key_values.length if past_key_values is not None else 0) + input_ids.shape[1]
        return ToyOutput(logits=logits_BSV, past_key_values=ToyCache(layers=tuple(caches), pages=pages, length=length))

    def _check_ids(self, input_ids: torch.Tensor, cache: ToyCache | None) -> None:
        """Refuse token ids of another shape or dtype, and more of them than the model has positions."""
        if input_ids.dim() != 2 or not input_ids.shape[0] or input_ids.dtype not in (torch.int64, torch.int32):
            what = f"expected int64 or int32 [prompts, tokens], got {input_ids.dtype} {list(input_ids.shape)}"
            raise Day0Error("input_ids", what, hint="give at least one prompt")
        length = input_ids.shape[1] + (cache.length if cache is not None else 0)
        if length > self.config.max_positions:
            what = f"{length} tokens are more than the model's {self.config.max_positions} positions"
            raise Day0Error("input_ids", what, hint="give fewer tokens, or build the model with a larger max_positions")

    def _embed(
        self, input_ids: torch.Tensor, cache: ToyCache | None, pixels_BIYX: torch.Tensor | None
    ) -> tuple[torch.Tensor, dict[str, int]]:
        """Return the embedded tokens [B, S, D], and how many belong to which kind of sequence."""
        self._check_ids(input_ids, cache)
        tokens = input_ids.shape[1]
        if pixels_BIYX is None:
            return self.embed_tokens(input_ids), {"text": tokens}
        if not self.config.vision or cache is not None:
            what = "expected images only in the first call of a model with a vision branch"
            raise Day0Error("pixel_values", what, hint="give the images together with the first tokens")
        visual = self.vision_tower.tokens(pixels_BIYX)
        if pixels_BIYX.shape[0] != input_ids.shape[0]:
            what = f"expected one image for each of {input_ids.shape[0]} prompts, got {pixels_BIYX.shape[0]}"
            raise Day0Error("pixel_values", what, hint="give one image for each prompt of the batch")
        if tokens < visual:
            what = f"the image becomes {visual} tokens, but the prompt has only {tokens}"
            raise Day0Error("pixel_values", what, hint="begin the prompt with one placeholder for each visual token")
        image_BGD = self.vision_tower(pixels_BIYX)
        x_BSD = torch.cat(
            (image_BGD.to(self.embed_tokens.weight.dtype), self.embed_tokens(input_ids[:, visual:])), dim=1
        )
        return x_BSD, {"vision": visual, "text": tokens - visual}


def make_toy(config: ToyConfig, device: str = "cpu", calls: Calls | None = None) -> ToyModel:
    """Build the model for inference, in float32, with parameters that nobody has set yet."""
    with torch.device("meta"):
        model = ToyModel(config, calls)
    if device != "meta":
        model = model.to_empty(device=device)
    return model.requires_grad_(False).eval()
