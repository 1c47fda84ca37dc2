"""A shrunken config has the same structure: each kind of layer, each part, sizes per head."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from day0.errors import Day0Error
from day0.models.hf import open_hf
from day0.models.source import open_model
from day0.models.spec import ModelSpec
from day0.playbook import ModelPlan

MOST_PARAMETERS = 40_000_000


def _small(name: str, **changes: Any) -> tuple[ModelSpec, Any]:
    spec = open_hf(ModelPlan(source=f"hf:{name}", shrink=True, set=changes))
    return spec, spec.build("meta")


def _parameters(model: torch.nn.Module) -> int:
    return sum(value.numel() for value in model.parameters())


@pytest.mark.parametrize(
    "name", ["llama", "gpt_oss", "deepseek_v32", "deepseek_v4", "kimi_linear", "glm5_next", "kimi_k25", "bart", "mamba"]
)
def test_it_is_small_and_says_what_changed(name: str) -> None:
    spec, model = _small(name)
    assert _parameters(model) < MOST_PARAMETERS
    assert spec.shrunk
    assert all(" -> " in text for text in spec.shrunk.values())
    assert spec.fingerprint != open_hf(ModelPlan(source=f"hf:{name}")).fingerprint


def test_every_kind_of_layer_is_left() -> None:
    plain: Any = open_hf(ModelPlan(source="hf:glm5_next")).build("meta")
    full = plain.config.text_config
    _, model = _small("glm5_next")
    text = model.config.text_config
    kinds = set(zip(full.layer_types, full.mlp_layer_types, strict=True))
    assert set(zip(text.layer_types, text.mlp_layer_types, strict=True)) == kinds
    assert text.num_hidden_layers == len(text.layer_types) < full.num_hidden_layers


def test_token_ids_still_exist_and_differ() -> None:
    _, model = _small("kimi_k25")
    config = model.config
    ids = [config.image_token_id, config.video_token_id, config.vision_start_token_id, config.vision_end_token_id]
    assert len(set(ids)) == 4
    assert max(ids) < config.text_config.vocab_size


def test_what_is_set_wins_over_what_is_shrunk() -> None:
    _, model = _small("llama", num_hidden_layers=5, hidden_size=512)
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (5, 512)


def test_a_default_that_cannot_be_built_shrinks_with_what_it_lacks() -> None:
    spec, model = _small("nemotron", num_key_value_heads=8)
    assert model.config.num_hidden_layers == 2
    # Eight would be more than the query heads that are left, so here it does not win.
    assert model.config.num_key_value_heads == 1
    assert spec.shrunk["num_key_value_heads"] == "8 -> 1"


def test_sizes_per_head_stay() -> None:
    full = open_hf(ModelPlan(source="hf:deepseek_v32")).build("meta").config
    _, model = _small("deepseek_v32")
    for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "index_head_dim"):
        assert getattr(model.config, name) == getattr(full, name)


def test_heads_of_linear_attention_become_few_too() -> None:
    # With all 32 of them one call of KDA took 6 GiB to check.
    spec, model = _small("kimi_linear")
    assert model.config.linear_num_heads == 4
    assert spec.shrunk["linear_num_heads"] == "32 -> 4"


def test_only_models_of_transformers_are_shrunk() -> None:
    with pytest.raises(Day0Error, match="only models of transformers"):
        open_model(ModelPlan(source="toy", shrink=True))
