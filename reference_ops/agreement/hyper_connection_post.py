"""Both hyper-connection contracts around two sub-layers against a decoder layer of transformers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from day0.reference_ops import hyper_connection_post, hyper_connection_pre
from day0.reference_ops.agreement._comparison import Comparison, error
from day0.reference_ops.agreement._hyper_connections import HIDDEN, made, parameters, random_streams
from day0.reference_ops.agreement._widened import Widened

__all__ = ["COMPARISONS"]


def sublayer(x_BSD: torch.Tensor, seed: int) -> torch.Tensor:
    """Stand for attention or the MLP."""
    generator = torch.Generator().manual_seed(seed)
    return torch.tanh(x_BSD @ torch.randn(HIDDEN, HIDDEN, generator=generator, dtype=torch.float64))


def against_layer() -> float:
    """Their layer's own forward, with our two sub-layers in it and without norms."""
    from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextDecoderLayer

    modules = [made("glm5_next", seed) for seed in (9, 10)]
    # Without its constructor, which wants the config of a whole model.
    layer: Any = Glm5NextTextDecoderLayer.__new__(Glm5NextTextDecoderLayer)
    torch.nn.Module.__init__(layer)
    layer.attn_hc, layer.ffn_hc = modules
    layer.input_layernorm = layer.post_attention_layernorm = torch.nn.Identity()
    layer.block_type = "linear_attention"
    layer.self_attn = lambda hidden_states, **_: sublayer(hidden_states, 0)
    layer.mlp = partial(sublayer, seed=1)
    streams_BSnD = random_streams(11)
    with torch.no_grad(), Widened():
        theirs, _ = layer.forward(streams_BSnD)
    for number, module in enumerate(modules):
        x_BSD, post_BSn, comb_BSnn = hyper_connection_pre.reference(streams_BSnD, *parameters(module))
        streams_BSnD = hyper_connection_post.reference(streams_BSnD, sublayer(x_BSD, number), post_BSn, comb_BSnn)
    return error(streams_BSnD, theirs)


COMPARISONS = (
    Comparison(
        operator=hyper_connection_post.NAME,
        variant="around two sub-layers",
        against="transformers glm5_next Glm5NextTextDecoderLayer.forward",
        distribution="transformers",
        limit=5e-15,
        run=against_layer,
    ),
)
