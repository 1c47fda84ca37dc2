"""Which cache to hand to a model whose own does not work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["CacheWay", "cache_ways"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheWay:
    """One way to give a model a cache in its first call."""

    make: Callable[[], Any]
    use_cache: bool = True
    why: str = ""
    """Why it is done like this, for a person."""


def cache_ways() -> tuple[CacheWay, ...]:
    """Return the ways in the order in which they are tried: the model's own, plain ones, none."""
    own = CacheWay(make=lambda: None)
    without = CacheWay(make=lambda: None, use_cache=False, why="it asks layers for their length that have none")
    if "transformers" not in sys.modules:
        return (own, without)
    return (own, CacheWay(make=_plain), CacheWay(make=_plain_pair), without)


def _plain() -> Any:
    from transformers import DynamicCache

    return DynamicCache()


def _plain_pair() -> Any:
    from transformers import EncoderDecoderCache

    return EncoderDecoderCache(_plain(), _plain())
