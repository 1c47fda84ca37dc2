"""A small model with what traces find hard: a view, an in-place write, a host sync, a shared module."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from day0.models.spec import ModelSpec


class Small(nn.Module):
    """Embedding, two layers that share one linear, a head."""

    def __init__(self, *, sync: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(8, 11, bias=False)
        self.sync = sync

    def forward(self, input_ids: torch.Tensor, past_key_values: Any = None, use_cache: bool = True) -> Any:
        x_BSM = self.embedding(input_ids)
        for layer in self.layers:
            x_BSM = layer(x_BSM)
        if self.sync and x_BSM.sum().item() > 1e9:
            x_BSM = -x_BSM
        return SimpleNamespace(logits=self.head(x_BSM), past_key_values=("seen", input_ids.shape[1]))


class Layer(nn.Module):
    """x + linear(x), written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x_BSM: torch.Tensor) -> torch.Tensor:
        y_BSM: torch.Tensor = self.linear(x_BSM.transpose(1, 2).transpose(1, 2))
        return y_BSM.add_(x_BSM)


def small_spec(*, sync: bool = False) -> ModelSpec:
    """Return the model as a source."""

    def build(device: str) -> nn.Module:
        torch.manual_seed(0)
        if device == "meta":
            with torch.device("meta"):
                return Small(sync=sync).eval()
        return Small(sync=sync).eval().to(device)

    return ModelSpec(
        source="py:small",
        dtype=torch.float32,
        class_name="Small",
        fingerprint="sha256:small",
        vocab_size=11,
        sparse_top_k=None,
        max_positions=None,
        build=build,
    )
