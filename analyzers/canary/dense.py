"""The same model with dense attention: its top-k set to more tokens than there are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from day0.models.toy.config import ToyConfig

__all__ = ["dense_attention"]

WHOLE_POOLS = 128
"""Indexers that choose pools of tokens need a top-k that the size of a pool divides."""
NAME = "index_topk"
"""What transformers' models with an indexer and the toy call it, in modules and in configs."""


@contextmanager
def dense_attention(model: nn.Module, tokens: int) -> Iterator[int]:
    """Let a model select at least so many tokens while this lasts; yields in how many places that was said."""
    put_back: list[tuple[Any, str, Any]] = []
    tokens = -(-tokens // WHOLE_POOLS) * WHOLE_POOLS
    try:
        for module in model.modules():
            if isinstance(getattr(module, NAME, None), int):
                _set(module, NAME, tokens, put_back)
            config = getattr(module, "config", None)
            if isinstance(getattr(config, NAME, None), int) and getattr(config, NAME) != tokens:
                _set_config(module, config, tokens, put_back)
        yield len(put_back)
    finally:
        for owner, name, value in reversed(put_back):
            vars(owner)[name] = value


def _set_config(module: nn.Module, config: Any, tokens: int, put_back: list[tuple[Any, str, Any]]) -> None:
    if isinstance(config, ToyConfig):
        # It is frozen: the module gets another one.
        _set(module, "config", dataclasses.replace(config, index_topk=tokens), put_back)
    else:
        _set(config, NAME, tokens, put_back)


def _set(owner: Any, name: str, value: Any, put_back: list[tuple[Any, str, Any]]) -> None:
    # Past the owner's own checks: some configs refuse a top-k that their pools do not divide.
    put_back.append((owner, name, getattr(owner, name)))
    vars(owner)[name] = value
