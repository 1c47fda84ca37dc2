"""Families with Kimi Delta Attention: Kimi Linear's layer, and GLM-5.3-Flash's whole text model."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from day0.models.driver import step
from day0.models.toy.kda import KdaAttention
from day0.models.toy.model import ToyConfig, ToyModel
from day0.reference_ops.agreement._modules import modeling, module
from day0.reference_ops.agreement._widened import Widened
from tests.models.theirs import attention_weights, call, filled, load
from tests.models.toys import TOPK, config_of, ids, normal, toy

CLOSE: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}
SQUARE: dict[str, Any] = {"kda_key_dim": 16, "kda_value_dim": 16, "kda_gate_rank": 16}
"""These models have one size for keys, values and the rank of gates."""


def configuration(model: str, prefix: str, **settings: Any) -> Any:
    """Return a config of transformers."""
    return getattr(module(f"transformers.models.{model}.configuration_{model}"), f"{prefix}Config")(**settings)


def kimi_layer(layout: str) -> tuple[Any, KdaAttention]:
    """Return Kimi Linear's layer, and the toy's with the same weights and the plain gate."""
    config = ToyConfig(kda_gate_lower_bound=0.0, kda_state_layout=layout, **SQUARE)
    settings = {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": 1,
        "linear_head_dim": config.kda_key_dim,
        "linear_num_heads": config.kda_heads,
        "linear_conv_kernel_dim": config.conv_kernel,
        "rms_norm_eps": config.rms_norm_eps,
        "layer_types": ["linear_attention"],
    }
    made = configuration("kimi_linear", "KimiLinear", **settings)
    with Widened():
        theirs = filled(modeling("kimi_linear").KimiLinearDeltaAttention(made, 0), 5)
    ours = toy(config).get_submodule("layers.0.self_attn")
    assert isinstance(ours, KdaAttention)
    named = attention_weights({f"x.{name}": value for name, value in theirs.state_dict().items()}, config)
    ours.load_state_dict({name.removeprefix("x."): value for name, value in named.items()}, strict=True)
    return (theirs, made), ours


@pytest.mark.parametrize("layout", ["kv", "vk"])
@pytest.mark.parametrize("tokens", [2, 15, 16, 17, 70])
def test_kimi_linear_layer_gives_their_output(tokens: int, layout: str) -> None:
    (theirs, made), ours = kimi_layer(layout)
    cache_class = module("transformers.cache_utils").DynamicCache
    x_BSD = normal(2, tokens + 3, ours.config.hidden_size)
    with torch.no_grad(), Widened():
        other = cache_class(config=made)
        expected_BSD = theirs(x_BSD[:, :tokens], cache=other)
        assert float(expected_BSD.std()) > 0.1
        mine_BSD, cache = ours(x_BSD[:, :tokens], None)
        torch.testing.assert_close(mine_BSD, expected_BSD, **CLOSE)
        for place in range(tokens, tokens + 3):
            expected_BSD = theirs(x_BSD[:, place : place + 1], cache=other)
            mine_BSD, cache = ours(x_BSD[:, place : place + 1], cache)
            torch.testing.assert_close(mine_BSD, expected_BSD, **CLOSE)


class WithHead(torch.nn.Module):
    """A text model of transformers and a head: it comes with eyes, which are not ours."""

    def __init__(self, model: Any, head_VD: torch.Tensor) -> None:
        super().__init__()
        self.model, self.head_VD = model, head_VD

    def forward(self, **named: Any) -> SimpleNamespace:
        output = self.model(**named)
        return SimpleNamespace(logits=output.last_hidden_state @ self.head_VD.t(), cache=output.cache)


def flash(**changes: Any) -> tuple[WithHead, ToyModel]:
    """Return GLM-5.3-Flash's text model, and the toy's variant with the same weights."""
    config = config_of("glm-5.3-flash", vision=False, shared_intermediate_size=32, **SQUARE)
    layers = range(1, config.num_hidden_layers + 1)
    settings = {
        **{name: getattr(config, name) for name in (
            "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers",
            "routed_scaling_factor", "kv_lora_rank", "q_lora_rank", "v_head_dim", "rms_norm_eps", "index_topk",
            "index_head_dim",
        )},
        "num_attention_heads": config.mla_heads,
        "num_key_value_heads": config.mla_heads,
        "n_routed_experts": config.n_experts,
        "num_experts_per_tok": config.experts_per_token,
        "qk_rope_head_dim": config.shared_head_dim,
        "qk_nope_head_dim": config.nope_head_dim,
        "index_n_heads": config.index_heads,
        "index_kpool": config.index_pool,
        "layer_types": ["indexed_attention" if one in config.mla_layers else "linear_attention" for one in layers],
        "indexer_types": ["full" for _ in layers],
        "mlp_layer_types": ["dense" if one <= config.dense_layers else "sparse" for one in layers],
        "swiglu_limit": config.activation_limit,
        "linear_head_dim": config.kda_key_dim,
        "linear_num_heads": config.kda_heads,
        "linear_conv_kernel_dim": config.conv_kernel,
        "linear_lower_bound": config.kda_gate_lower_bound,
        "hc_mult": config.residual_streams,
        "pad_token_id": 0,
        "attn_implementation": "eager",
        "experts_implementation": "eager",
    }  # fmt: skip
    made = configuration("glm5_next", "Glm5NextText", **{**settings, **changes.pop("theirs", {})})
    with Widened():
        model = filled(modeling("glm5_next").Glm5NextTextModel(made), 3)
    head_VD = 0.15 * normal(config.vocab_size, config.hidden_size)
    return WithHead(model, head_VD), load({**model.state_dict(), "lm_head.weight": head_VD}, replace(config, **changes))


@pytest.mark.parametrize("tokens", [1, 3, 4, TOPK - 1, TOPK + 1, 6 * TOPK + 1])
def test_flash_prefill_gives_their_logits(tokens: int) -> None:
    theirs, ours = flash()
    expected = call(theirs, ids(2, tokens)).logits
    assert float(expected.std()) > 0.5
    torch.testing.assert_close(step(ours, ids(2, tokens)).logits_BSV, expected, **CLOSE)


def test_flash_decode_gives_their_logits() -> None:
    theirs, ours = flash()
    ids_BS = ids(2, 3 * TOPK + 6)
    mine, other = step(ours, ids_BS[:, : 3 * TOPK + 1]), call(theirs, ids_BS[:, : 3 * TOPK + 1])
    for place in range(3 * TOPK + 1, 3 * TOPK + 6):
        mine = step(ours, ids_BS[:, place : place + 1], mine.cache)
        other = call(theirs, ids_BS[:, place : place + 1], other.cache)
        torch.testing.assert_close(mine.logits_BSV, other.logits, **CLOSE)


@pytest.mark.parametrize(
    "change",
    [
        {"kda_gate_lower_bound": 0.0},
        {"activation": "swiglu", "theirs": {"swiglu_limit": 1.0}},
        {"lora_norm_eps": 1e-3},
        {"rms_norm_eps": 1e-3},
        {"index_topk": 2 * TOPK},
        {"routed_scaling_factor": 1.0},
    ],
    ids=str,
)
def test_another_attribute_is_another_model(change: dict[str, Any]) -> None:
    theirs, ours = flash(**change)
    expected = call(theirs, ids(2, 6 * TOPK)).logits
    assert not torch.allclose(step(ours, ids(2, 6 * TOPK)).logits_BSV, expected, rtol=1e-4, atol=1e-4)
