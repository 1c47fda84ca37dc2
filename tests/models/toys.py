"""Toys with weights from the seed, and prompts for them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from day0.models.toy.calls import Calls
from day0.models.toy.model import ToyConfig, ToyModel, make_toy
from day0.models.toy.variants import VARIANTS
from day0.models.toy.weights import make_weights

__all__ = ["CONFIG", "KINDS", "TOPK", "config_of", "ids", "image", "logits", "normal", "toy"]

CONFIG = ToyConfig()
TOPK = CONFIG.index_topk
KINDS: dict[str, dict[str, Any]] = {"kimi-k3.1": {}, "state vk": {"kda_state_layout": "vk"}, **VARIANTS}
"""Changes by name: the default, the other layout of the state, and the other families."""


def config_of(kind: str, **changes: Any) -> ToyConfig:
    """Return the config of one of KINDS, changed further."""
    return replace(ToyConfig(**KINDS[kind]), **changes)


@lru_cache(maxsize=64)
def weights(config: ToyConfig) -> dict[str, torch.Tensor]:
    """Return the weights; what the default has under the same name and shape is the default's.

    So two configs differ in their attributes and not in what was drawn.
    """
    mine = make_weights(config)
    given = mine if config == CONFIG else weights(CONFIG)
    return {
        name: given[name] if name in given and given[name].shape == value.shape else value
        for name, value in mine.items()
    }


def toy(config: ToyConfig = CONFIG, dtype: torch.dtype = torch.float64, calls: Calls | None = None) -> ToyModel:
    """Return a new toy."""
    model = make_toy(config, calls=calls)
    model.load_state_dict(weights(config))
    return model.to(dtype)


def ids(batch: int, tokens: int, seed: int = 0) -> torch.Tensor:
    """Return random tokens [B, S]."""
    return torch.randint(0, CONFIG.vocab_size, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def image(batch: int, cells: tuple[int, int] = (2, 3), seed: int = 0) -> torch.Tensor:
    """Return random images [B, 3, height, width] in float64, of so many visual tokens in height and width."""
    cell = CONFIG.vision_patch * CONFIG.vision_merge
    return normal(batch, CONFIG.vision_channels, cells[0] * cell, cells[1] * cell, seed=seed)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return normal values in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def logits(model: ToyModel, ids_BS: torch.Tensor, pixels: torch.Tensor | None = None) -> torch.Tensor:
    """Return the logits [B, S, V] of one call."""
    with torch.no_grad():
        logits_BSV: torch.Tensor = model(input_ids=ids_BS, pixel_values=pixels).logits
    return logits_BSV
