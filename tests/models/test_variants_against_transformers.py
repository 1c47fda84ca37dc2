"""Variants of the toy are the models of transformers: the same weights give the same logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from day0.models.driver import step
from day0.models.toy.model import ToyConfig
from day0.reference_ops.agreement._modules import modeling, module
from day0.reference_ops.agreement._widened import Widened
from tests.models.theirs import call, filled, load
from tests.models.toys import TOPK, config_of, ids

CLOSE: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}
SIZES: dict[str, Any] = {"shared_head_dim": 8, "index_rope_dim": 8, "shared_intermediate_size": 32}
"""These models rotate as many dimensions in the indexer as in attention, and share experts of the routed ones' size."""


def theirs_of(model: str, prefix: str, config: ToyConfig, **more: Any) -> Any:
    """Return a model of transformers with the sizes of the toy."""
    settings = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "moe_intermediate_size": config.moe_intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.mla_heads,
        "num_key_value_heads": config.mla_heads,
        "n_routed_experts": config.n_experts,
        "num_experts_per_tok": config.experts_per_token,
        "n_group": config.expert_groups,
        "topk_group": config.expert_groups_kept,
        "routed_scaling_factor": config.routed_scaling_factor,
        "kv_lora_rank": config.kv_lora_rank,
        "q_lora_rank": config.q_lora_rank,
        "qk_rope_head_dim": config.shared_head_dim,
        "qk_nope_head_dim": config.nope_head_dim,
        "v_head_dim": config.v_head_dim,
        "index_topk": config.index_topk,
        "index_head_dim": config.index_head_dim,
        "index_n_heads": config.index_heads,
        "first_k_dense_replace": config.dense_layers,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "max_position_embeddings": config.max_positions,
        "attn_implementation": "eager",
        "experts_implementation": "eager",
    }
    configuration = module(f"transformers.models.{model}.configuration_{model}")
    with Widened():
        made = getattr(configuration, f"{prefix}Config")(**settings, **more)
        return filled(getattr(modeling(model), f"{prefix}ForCausalLM")(made), 3)


def pair(kind: str) -> tuple[Any, ToyConfig]:
    """Return a model of transformers and the config of the toy that is it."""
    config = config_of(kind, **SIZES)
    if kind == "deepseek-v3.2":
        return theirs_of("deepseek_v32", "DeepseekV32", config), config
    shared = ["shared" if number in config.index_shared_layers else "full" for number in config.mla_layers]
    return theirs_of("glm_moe_dsa", "GlmMoeDsa", config, indexer_types=shared), config


@pytest.fixture(scope="module", params=["deepseek-v3.2", "glm-5"])
def models(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """Theirs and ours, with the same weights."""
    theirs, config = pair(request.param)
    return theirs, load(theirs.state_dict(), config)


@pytest.mark.parametrize("tokens", [1, TOPK - 1, TOPK + 1, 6 * TOPK])
def test_prefill_gives_their_logits(models: tuple[Any, Any], tokens: int) -> None:
    theirs, ours = models
    expected = call(theirs, ids(2, tokens)).logits
    assert float(expected.std()) > 0.5
    torch.testing.assert_close(step(ours, ids(2, tokens)).logits_BSV, expected, **CLOSE)


def test_decode_gives_their_logits(models: tuple[Any, Any]) -> None:
    theirs, ours = models
    ids_BS = ids(2, 3 * TOPK + 4)
    mine, other = step(ours, ids_BS[:, : 3 * TOPK]), call(theirs, ids_BS[:, : 3 * TOPK])
    for place in range(3 * TOPK, 3 * TOPK + 4):
        mine = step(ours, ids_BS[:, place : place + 1], mine.cache)
        other = call(theirs, ids_BS[:, place : place + 1], other.cache)
        torch.testing.assert_close(mine.logits_BSV, other.logits, **CLOSE)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("deepseek-v3.2", {"mla_rope": "half"}),
        ("deepseek-v3.2", {"index_rope": "interleaved"}),
        ("deepseek-v3.2", {"index_key_eps": 1.0}),
        ("deepseek-v3.2", {"lora_norm_eps": 1e-3}),
        ("deepseek-v3.2", {"expert_groups_kept": 3}),
        ("deepseek-v3.2", {"routed_scaling_factor": 1.0}),
        ("glm-5", {"index_rope": "half"}),
        ("glm-5", {"mla_rope": "none"}),
    ],
)
def test_another_attribute_is_another_model(kind: str, change: dict[str, Any]) -> None:
    """What is compared above would see each of them."""
    theirs, config = pair(kind)
    expected = call(theirs, ids(2, 6 * TOPK)).logits
    ours = load(theirs.state_dict(), replace(config, **change))
    assert not torch.allclose(step(ours, ids(2, 6 * TOPK)).logits_BSV, expected, rtol=1e-4, atol=1e-4)
