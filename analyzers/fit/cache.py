"""Read a model's own cache: what it keeps for every token, and what for every sequence.

Nothing is computed from a formula: a cache that the model filled on meta is read at two lengths, and what differs
between them is what a token takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Literal

import torch

from day0.reference_ops.signatures import dtype_name

__all__ = ["CACHE_KINDS", "CacheTensor", "Found", "cache_tensors", "compare_caches", "walk_tensors"]

CacheKind = Literal["latent", "kv", "window", "index", "state", "conv", "other"]

CACHE_KINDS: dict[str, str] = {
    "latent": "latent rows of MLA",
    "kv": "keys and values",
    "window": "keys and values in a sliding window",
    "index": "keys of the indexers",
    "state": "states of linear attention",
    "conv": "inputs of short convolutions",
    "other": "other of the cache",
}

MAX_DEPTH = 6


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CacheTensor:
    """One tensor that a layer keeps for one sequence."""

    layer: int
    name: str
    kind: CacheKind
    per_token: Fraction
    """Values for each token; 0 where it does not grow."""
    fixed: int
    """Values for each sequence, whatever its length."""
    window: int | None
    """Only so many of the latest tokens are kept."""
    row: int
    """Values of a row that share scales when it is quantised."""
    dtype: str
    heads: int
    """How many cards can share it; 1 where every card needs all of it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A tensor of a cache as it was seen."""

    layer: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    window: int | None


def cache_tensors(cache: Any) -> tuple[Found, ...]:
    """Return the tensors of a cache layer by layer; scalars and what is empty are left out."""
    layers = getattr(cache, "layers", None)
    layers = list(layers) if isinstance(layers, (list, tuple)) else [cache]
    found = []
    for number, layer in enumerate(layers):
        window = getattr(layer, "sliding_window", None)
        window = window if isinstance(window, int) and window > 0 else None
        for name, tensor in _walk(layer, "", 0):
            if tensor.dim() and tensor.numel() and not isinstance(tensor, torch.nn.Parameter):
                shape = tuple(tensor.shape)
                found.append(Found(layer=number, name=name, shape=shape, dtype=dtype_name(tensor.dtype), window=window))
    return tuple(found)


def walk_tensors(cache: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor of a cache."""
    for _, tensor in _walk(cache, "", 0):
        yield tensor


def _walk(value: Any, path: str, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    if depth > MAX_DEPTH or value is None or isinstance(value, (str, bytes, int, float, torch.device, torch.dtype)):
        return
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        items: Any = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    elif isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        items = vars(value).items() if hasattr(value, "__dict__") else ()
    for name, item in items:
        yield from _walk(item, f"{path}.{name}" if path else str(name), depth + 1)


def compare_caches(
    short: tuple[Found, ...], long: tuple[Found, ...], tokens: tuple[int, int], latent_rank: int
) -> tuple[CacheTensor, ...]:
    """Return what each layer keeps, from what was found in the same model's caches of one sequence with `tokens`."""
    before = {(one.layer, one.name): one for one in short}
    result = []
    for after in long:
        first = before.get((after.layer, after.name))
        if first is not None:
            result.append(_compared(first, after, tokens, latent_rank))
    return tuple(result)


def _compared(first: Found, after: Found, tokens: tuple[int, int], latent_rank: int) -> CacheTensor:
    size = [int(torch.Size(one.shape).numel()) for one in (first, after)]
    growth = Fraction(size[1] - size[0], tokens[1] - tokens[0])
    window = after.window
    keeps_rows = after.name.endswith(("keys", "values"))
    if window is not None and keeps_rows:
        growth = Fraction(size[1], after.shape[-2])
    kind = _kind_of(after, growth, window if keeps_rows else None, latent_rank)
    return CacheTensor(
        layer=after.layer,
        name=after.name,
        kind=kind,
        per_token=max(growth, Fraction(0)),
        fixed=0 if growth > 0 else size[1],
        window=window if keeps_rows else None,
        row=after.shape[-1],
        dtype=after.dtype,
        heads=_shares(after.shape, kind),
    )


def _kind_of(found: Found, growth: Fraction, window: int | None, latent_rank: int) -> CacheKind:
    name = found.name
    if "index" in name:
        return "index"
    if "conv" in name:
        return "conv"
    if growth <= 0:
        return "state" if any(word in name for word in ("state", "recurrent", "ssm")) else "other"
    if window is not None:
        return "window"
    if not (name.endswith(("keys", "values")) or "kv" in name):
        return "other"
    alone = len(found.shape) < 4 or found.shape[1] == 1
    return "latent" if latent_rank and alone else "kv"


def _shares(shape: tuple[int, ...], kind: CacheKind) -> int:
    """Return into how many parts heads divide a tensor [1, heads, ...], or channels one [1, channels, ...]."""
    if kind in ("kv", "window", "state") and len(shape) == 4:
        return shape[1]
    if kind == "conv" and len(shape) == 3:
        return max(shape[1:])
    return 1
