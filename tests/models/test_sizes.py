"""Absurd sizes are refused with the figure before anything is built; real ones pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from day0.errors import Day0Error
from day0.models.hf import open_hf
from day0.models.sizes import estimate_parameters
from day0.playbook import ModelPlan


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("n_routed_experts", 10**12, "1,000,000,000,000 experts are more than the 100,000"),
        ("num_hidden_layers", 10**6, "layers"),
        ("hidden_size", 10**10, "parameters"),
        ("hidden_size", 10**20, "does not fit into 64 bits"),
        ("hidden_size", -7, "-7 is no size"),
        ("vocab_size", 0, "vocab_size is 0"),
        ("vocab_size", 10**13, "parameters"),
    ],
)
def test_absurd_sizes_are_refused_with_the_figure(field: str, value: int, says: str) -> None:
    changes: dict[str, Any] = {field: value}
    if field == "num_hidden_layers":
        pytest.importorskip("transformers")
    with pytest.raises(Day0Error) as caught:
        open_hf(ModelPlan(source="hf:deepseek_v32" if field != "num_hidden_layers" else "hf:llama", set=changes))
    assert says in str(caught.value)
    assert caught.value.hint


def test_absurd_sizes_in_a_file_are_refused_too(tmp_path: Path) -> None:
    config = {"model_type": "mixtral", "num_local_experts": 10**12}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Day0Error, match=r"1,000,000,000,000 experts"):
        open_hf(ModelPlan(source=f"hf:{tmp_path}"))


@pytest.mark.parametrize("name", ["deepseek_v32", "llama", "gpt_oss", "mixtral"])
def test_the_estimate_is_near_the_truth(name: str) -> None:
    from transformers import AutoConfig

    config = AutoConfig.for_model(name)
    spec = open_hf(ModelPlan(source=f"hf:{name}"))
    truth = sum(value.numel() for value in spec.build("meta").parameters())
    assert truth / 2 < estimate_parameters(config.get_text_config(decoder=True)) < truth * 2


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("num_hidden_layers", True, "expected a number"),
        ("num_hidden_layers", "two", "expected a number"),
        ("num_hidden_layers", 2.5, "num_hidden_layers"),
        ("hidden_act", 3, "expected a word"),
        ("use_cache", 1, "expected true or false"),
        ("layer_types", 3, "expected a list"),
        ("rope_parameters", [1], "expected a mapping"),
        ("num_hidden_layer", 2, "has no field"),
        ("parts.depth", 2, "has no part 'parts'"),
    ],
)
def test_fields_of_the_wrong_kind_are_refused(field: str, value: Any, says: str) -> None:
    with pytest.raises(Day0Error) as caught:
        open_hf(ModelPlan(source="hf:gpt_oss", set={field: value}))
    assert says in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_field_of_a_part_can_be_set() -> None:
    changes: dict[str, Any] = {"vision_config.num_hidden_layers": 3, "num_hidden_layers": 2}
    model: Any = open_hf(ModelPlan(source="hf:kimi_k25", set=changes)).build("meta")
    assert model.config.vision_config.num_hidden_layers == 3
    assert model.config.text_config.num_hidden_layers == 2


@pytest.mark.parametrize(
    ("name", "says", "hint"),
    [
        ("nemotron", "cannot be built", "--set num_key_value_heads="),
        ("ministral", "cannot be built", "--set head_dim="),
        ("reformer", "cannot be built", "--set is_decoder=true"),
        ("gemma4_assistant", "refuses the default config", "config.json"),
    ],
)
def test_a_default_config_that_cannot_be_built_says_what_it_lacks(name: str, says: str, hint: str) -> None:
    with pytest.raises(Day0Error) as caught:
        open_hf(ModelPlan(source=f"hf:{name}")).build("meta")
    assert says in caught.value.what
    assert hint in caught.value.hint
    assert "models/" in caught.value.facts[0]
