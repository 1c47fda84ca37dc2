"""Which layers of a model are of one kind: those that the canary runs one of each."""

from __future__ import annotations

import pytest
from torch import nn

from day0.analyzers.canary.layers import first_layers, layer_kinds


class Attention(nn.Module):
    def __init__(self, window: int | None, *, indexer: bool, index: int) -> None:
        super().__init__()
        self.sliding_window, self.layer_idx, self.scaling = window, index, 0.5 + index
        self.compressor = nn.Sequential(nn.Linear(2, 2)) if indexer else nn.Sequential()


class Layer(nn.Module):
    def __init__(self, window: int | None, *, indexer: bool, index: int) -> None:
        super().__init__()
        self.self_attn, self.layer_idx = Attention(window, indexer=indexer, index=index), index


def model(*layers: tuple[int | None, bool]) -> nn.Module:
    made = nn.Module()
    made.layers = nn.ModuleList(Layer(window, indexer=indexer, index=at) for at, (window, indexer) in enumerate(layers))
    return made


@pytest.mark.parametrize(
    ("layers", "kinds"),
    [
        (((None, False), (None, False)), ["layers.0"]),  # numbers and factors of a layer make no kind
        (((128, False), (None, False), (128, False)), ["layers.0", "layers.1"]),  # gpt-oss: an attribute
        (((None, False), (None, True), (None, False)), ["layers.0", "layers.1"]),  # DeepSeek-V4: deep inside
    ],
)
def test_layers_of_another_window_or_with_other_parts_are_of_another_kind(
    layers: tuple[tuple[int | None, bool], ...], kinds: list[str]
) -> None:
    assert list(layer_kinds(model(*layers)).values()) == kinds


def test_the_first_layers_are_as_many_as_have_every_kind() -> None:
    layers = [(8, False)] * 3 + [(None, False)] + [(8, False)] * 3
    assert first_layers(model(*layers)) == ("layers.0", "layers.1", "layers.2", "layers.3")
