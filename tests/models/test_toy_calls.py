"""How callers may call the toy, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from day0.errors import Day0Error
from day0.models.toy.config import ToyConfig
from day0.models.toy.mla import MlaAttention
from day0.models.toy.model import ToyModel, make_toy
from day0.models.toy.weights import make_weights

CONFIG = ToyConfig()
IDS_BS = torch.arange(40, 60)[None]


def toy(config: ToyConfig = CONFIG) -> ToyModel:
    model = make_toy(config)
    model.load_state_dict(make_weights(config))
    return model


def test_a_cache_is_continued_also_when_no_new_one_is_wanted() -> None:
    model = toy()
    cache = model(input_ids=IDS_BS).past_key_values
    kept = model(input_ids=IDS_BS[:, :1], past_key_values=cache)
    dropped = model(input_ids=IDS_BS[:, :1], past_key_values=cache, use_cache=False)
    assert dropped.past_key_values is None and torch.equal(kept.logits, dropped.logits)


@pytest.mark.parametrize(
    "ids", [torch.zeros(3, dtype=torch.int64), torch.zeros(0, 4, dtype=torch.int64), torch.zeros(1, 4)], ids=str
)
def test_ids_of_another_form_are_refused(ids: torch.Tensor) -> None:
    with pytest.raises(Day0Error, match=r"expected int64 or int32 \[prompts, tokens\]"):
        toy()(input_ids=ids)


def test_more_tokens_than_positions_are_refused_also_through_the_cache() -> None:
    model = toy(replace(CONFIG, max_positions=20))
    cache = model(input_ids=IDS_BS).past_key_values
    with pytest.raises(Day0Error, match="21 tokens are more than the model's 20 positions"):
        model(input_ids=IDS_BS[:, :1], past_key_values=cache)


def test_reads_of_a_shorter_conversation_begin_anew() -> None:
    model = toy()
    layers = [module for module in model.modules() if isinstance(module, MlaAttention)]
    for layer in layers:
        layer.manager.record = True
    model(input_ids=IDS_BS)
    model(input_ids=IDS_BS[:, :5])
    for layer in layers:
        (reads_BT,) = layer.manager.reads.values()
        assert reads_BT.shape == (1, 5) and int(reads_BT.sum()) == 15
        layer.manager.forget()
        assert not layer.manager.reads


@pytest.mark.parametrize("name", ["vocab_size", "hidden_size", "conv_kernel", "block_size"])
def test_sizes_beyond_all_measure_are_refused(name: str) -> None:
    with pytest.raises(Day0Error, match="expected at most 16777216, got"):
        replace(CONFIG, **{name: 1 << 60})  # type: ignore[arg-type]  # the name is a field of whole numbers
