"""The order in which sub-layers read from the residual and write into it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from day0.models.toy.model import DecoderLayer, ToyConfig, ToyModel
from day0.models.toy.residual import HyperConnection
from tests.models.toys import CONFIG, config_of, ids, logits, normal, toy

CLOSE: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-11}


def mixed(values: list[torch.Tensor], norm_D: torch.Tensor, score_D: torch.Tensor) -> torch.Tensor:
    """Attend over the values, in plain words."""
    scores = [
        sum_of((v / (v.square().mean(dim=-1, keepdim=True) + CONFIG.rms_norm_eps).sqrt()) * norm_D * score_D)
        for v in values
    ]
    total = torch.stack([score.exp() for score in scores]).sum(dim=0)
    out = torch.zeros_like(values[0])
    for value, score in zip(values, scores, strict=True):
        out = out + value * (score.exp() / total)[..., None]
    return out


def sum_of(x_BSD: torch.Tensor) -> torch.Tensor:
    return x_BSD.sum(dim=-1)


def layers_of(model: ToyModel) -> list[DecoderLayer]:
    return [layer for layer in model.layers if isinstance(layer, DecoderLayer)]


def attend_over_blocks(model: ToyModel, x_BSD: torch.Tensor, block: int) -> torch.Tensor:
    """The layer loop of K3: a snapshot before the sum restarts, once in each block, after the mix for attention."""
    bank: list[torch.Tensor] = []
    prefix_BSD, chosen_BSK = x_BSD, None
    for number, layer in enumerate(layers_of(model)):
        weights = dict(layer.named_parameters())
        into = mixed([*bank, prefix_BSD], weights["self_attention_res.norm"], weights["self_attention_res.proj"])
        out_BSD, chosen_BSK, _ = layer.mix(layer.input_layernorm(into), chosen_BSK, None, None)
        if number % block == 0:
            bank.append(prefix_BSD)
            prefix_BSD = out_BSD
        else:
            prefix_BSD = prefix_BSD + out_BSD
        into = mixed([*bank, prefix_BSD], weights["mlp_res.norm"], weights["mlp_res.proj"])
        prefix_BSD = prefix_BSD + layer.mlp(layer.post_attention_layernorm(into))
    last = dict(model.output_res.named_parameters())
    logits_BSV: torch.Tensor = model.lm_head(model.norm(mixed([*bank, prefix_BSD], last["norm"], last["proj"])))
    return logits_BSV


@pytest.mark.parametrize("block", [1, 2, 3, 5])
def test_attention_residual_takes_its_snapshot_before_the_sum_restarts(block: int) -> None:
    model, ids_BS = toy(ToyConfig(residual_block=block)), ids(2, 20)
    expected = attend_over_blocks(model, model.embed_tokens(ids_BS), block)
    torch.testing.assert_close(logits(model, ids_BS), expected, **CLOSE)


@pytest.mark.parametrize(("block", "sizes"), [(1, [1, 2, 3, 4, 5]), (2, [1, 1, 2, 2, 3]), (5, [1, 1, 1, 1, 1])])
def test_the_bank_grows_by_one_snapshot_a_block(block: int, sizes: list[int]) -> None:
    model = toy(ToyConfig(residual_block=block))
    seen: list[int] = []
    for layer in model.layers:
        layer.register_forward_hook(lambda _module, _args, output: seen.append(len(output[1])))
    logits(model, ids(1, 4))
    assert seen == sizes


def test_plain_residual_is_a_sum() -> None:
    model, ids_BS = toy(config_of("deepseek-v3.2")), ids(2, 20)
    x_BSD, chosen_BSK = model.embed_tokens(ids_BS), None
    for layer in layers_of(model):
        out_BSD, chosen_BSK, _ = layer.mix(layer.input_layernorm(x_BSD), chosen_BSK, None, None)
        x_BSD = x_BSD + out_BSD
        x_BSD = x_BSD + layer.mlp(layer.post_attention_layernorm(x_BSD))
    torch.testing.assert_close(logits(model, ids_BS), model.lm_head(model.norm(x_BSD)), **CLOSE)


def test_several_streams_start_equal_and_end_in_their_mean() -> None:
    model, ids_BS = toy(config_of("glm-5.3-flash")), ids(2, 20)
    stream_BSnD = torch.stack([model.embed_tokens(ids_BS)] * model.config.residual_streams, dim=2)
    chosen_BSK, bank = None, ()
    for layer in model.layers:
        stream_BSnD, bank, chosen_BSK, _ = layer(stream_BSnD, bank, chosen_BSK)
    assert not torch.allclose(stream_BSnD[:, :, 0], stream_BSnD[:, :, 1]), "streams that stay equal are one"
    torch.testing.assert_close(logits(model, ids_BS), model.lm_head(model.norm(stream_BSnD.mean(dim=2))), **CLOSE)


def test_streams_are_mixed_by_a_doubly_stochastic_matrix() -> None:
    """So their sum changes by nothing but what a sub-layer adds."""
    residual = toy(config_of("glm-5.3-flash")).get_submodule("layers.1.mlp_res")
    assert isinstance(residual, HyperConnection)
    streams = normal(1, 5, 3, CONFIG.hidden_size)
    into = residual.read(streams, ())
    nothing_BSD = torch.zeros(1, 5, CONFIG.hidden_size, dtype=torch.float64)
    kept_BSnD, bank = residual.write(streams, nothing_BSD, into, (), snapshot=True)
    assert bank == ()
    torch.testing.assert_close(kept_BSnD.sum(dim=2), streams.sum(dim=2), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(kept_BSnD, streams, rtol=1e-2)
    post_BSn = into.mixing[0]
    added_BSnD, _ = residual.write(streams, torch.ones_like(nothing_BSD), into, (), snapshot=False)
    torch.testing.assert_close(added_BSnD - kept_BSnD, post_BSn[..., None].expand_as(kept_BSnD), **CLOSE)
