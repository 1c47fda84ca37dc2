"""Rows of a cache go with all that is held of them, whichever method of transformers knows of it.

Shape suffixes: R kept rows, B rows, S tokens.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from day0.analyzers.soak.loop import soak
from day0.analyzers.soak.plan import SoakPlan
from day0.analyzers.soak.rows import select_rows
from day0.models.source import open_model
from day0.playbook import ModelPlan

KEPT_R = torch.tensor([0, 2])


class Plain:
    """A layer with keys alone."""

    def __init__(self) -> None:
        self.keys_B = torch.arange(3)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.keys_B = self.keys_B[indices]

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.keys_B = self.keys_B.index_select(0, beam_idx)


class Compressed(Plain):
    """One that also buffers tokens, which only beam search was taught."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer_B = torch.arange(3)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        super().reorder_cache(beam_idx)
        self.buffer_B = self.buffer_B.index_select(0, beam_idx)


class Stateful:
    """One that only knows how to reorder."""

    def __init__(self) -> None:
        self.state_B = torch.arange(3)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.state_B = self.state_B.index_select(0, beam_idx)


class Deaf:
    """One that knows neither."""


class Cache:
    def __init__(self, *layers: Any) -> None:
        self.layers = layers

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        for layer in self.layers:
            layer.batch_select_indices(indices)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        for layer in self.layers:
            layer.reorder_cache(beam_idx)


class Beside(Cache):
    """A cache with states beside its layers."""

    def __init__(self, *layers: Any) -> None:
        super().__init__(*layers)
        self.beside_B = torch.arange(3)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        super().batch_select_indices(indices)
        self.beside_B = self.beside_B[indices]


def test_each_layer_keeps_all_that_it_holds_of_the_rows() -> None:
    plain, compressed, stateful = Plain(), Compressed(), Stateful()
    assert select_rows(Cache(plain, compressed, stateful), KEPT_R)
    for held_B in (plain.keys_B, compressed.keys_B, compressed.buffer_B, stateful.state_B):
        assert held_B.tolist() == [0, 2]


def test_a_cache_with_states_beside_its_layers_is_asked_itself() -> None:
    cache = Beside(Plain())
    assert select_rows(cache, KEPT_R)
    assert cache.beside_B.tolist() == cache.layers[0].keys_B.tolist() == [0, 2]


@pytest.mark.parametrize(
    "cache", [Cache(Plain(), Deaf()), Cache(), Beside(Compressed()), object()], ids=["deaf", "empty", "mixed", "other"]
)
def test_a_cache_that_does_not_know_how_stays_whole(cache: Any) -> None:
    assert not select_rows(cache, KEPT_R)
    for layer in getattr(cache, "layers", ()):
        assert all(len(held_B) == 3 for held_B in vars(layer).values())


def test_a_layer_of_states_and_keys_keeps_rows_of_both() -> None:
    utils = pytest.importorskip("transformers.cache_utils")
    layer = utils.LinearAttentionAndFullAttentionLayer()
    layer.update(torch.zeros(3, 1, 2, 4), torch.zeros(3, 1, 2, 4))
    layer.update_conv_state(torch.zeros(3, 4, 2))
    assert select_rows(Cache(layer), KEPT_R)
    assert layer.keys.shape[0] == layer.conv_states[0].shape[0] == 2


def test_compressed_caches_of_deepseek_v4_survive_a_soak() -> None:
    pytest.importorskip("transformers")
    spec = open_model(ModelPlan(source="hf:deepseek_v4", shrink=True, dtype="bfloat16"))
    plan = SoakPlan(seconds=1e6, steps=8, cycle=8, prompt_tokens=(2, 6), new_tokens=(1, 4), drill=False)
    seen = soak(spec.build("cpu").eval(), torch.device("cpu"), 100, plan, lambda _: None)
    assert len(seen.batches - {0}) >= 2, "rows have left a batch"
    assert seen.errors == []
    assert seen.wrong == []
