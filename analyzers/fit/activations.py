"""What a model needs besides weights and cache while it runs: planned from the lifetimes of its tensors.

A chunk of a prompt is run on meta after two lengths of context. Storages are paired; what differs between the two
grows with the context, so the plan can be made for a context that is too long to be run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from day0.analyzers.fit.cache import CacheTensor, Found, cache_tensors, compare_caches, walk_tensors
from day0.analyzers.fit.lifetimes import LifetimeRecorder, Recipes, Storage, WeightMark, watch_experts
from day0.analyzers.fit.plan import Lifetime, MemoryPlan, plan_memory
from day0.analyzers.fit.weights import ModelShape, Weight, is_experts_path
from day0.errors import Day0Error
from day0.models.driver import step
from day0.models.spec import ModelSpec
from day0.models.workload import token_ids

__all__ = ["ActivationSet", "Activations", "Measured", "measure", "plan_activations", "unmeasured"]

PAGE = 64
MARGIN = 128
"""Tokens by which a context is longer than the window or the sparse top-k: there the model takes its long paths."""

MOST_STORAGES = 25_000
"""Of a recording. A recurrence written as a loop over tokens makes as many for some dozens of them."""

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Growing:
    """One storage of the chunk, with what it takes after any context."""

    begin: int
    end: int
    fixed: int
    per_token: float
    """Bytes for each token of context."""
    sharded: bool
    inside: bool
    """It has a row of the context for every head: a fused operator never writes it to memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivationSet:
    """Storages of one chunk of `chunk` tokens."""

    storages: tuple[Growing, ...]
    chunk: int
    exact: bool
    """Recorded at the context that was asked for; else extended from two shorter ones."""
    note: str


@dataclass(frozen=True, kw_only=True)
class Activations:
    """The plans: with attention and indexer as fused operators, and as the Python code stands.

    Each is made when it is asked for: a search over layouts asks for the first alone.
    """

    lives: tuple[Lifetime, ...]
    inside: tuple[bool, ...]

    @cached_property
    def fused(self) -> MemoryPlan:
        """Without what a fused operator keeps to itself."""
        return plan_memory([life for life, within in zip(self.lives, self.inside, strict=True) if not within])

    @cached_property
    def written(self) -> MemoryPlan:
        """With all tensors."""
        return plan_memory(self.lives) if any(self.inside) else self.fused


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What a model's own run on meta says."""

    cache: tuple[CacheTensor, ...]
    activations: ActivationSet
    chunk: int
    """Tokens of a prompt that run at one time: as asked, or half of a shorter context."""


def measure(
    spec: ModelSpec,
    model: nn.Module,
    weights: tuple[Weight, ...],
    shape: ModelShape,
    *,
    context: int,
    chunk: int,
    progress: Progress = lambda _: None,
) -> Measured:
    """Run a chunk after two contexts on meta.

    Raises Day0Error where the model does not run on meta: what `day0 trace` says of it then tells more.
    """
    if spec.phases:
        what = "it brings its own inputs and takes no token ids, and so cache and activations cannot be read"
        raise Day0Error(spec.source, what, hint="figures are of the weights alone")
    asked = chunk = max(1, min(chunk, context // 2))
    recipes: Recipes = {}
    chunk = _affordable(spec, model, weights, chunk, recipes)
    lengths = _contexts(spec, shape, _page(model), context - chunk)
    recordings, caches = [], []
    for before in lengths:
        progress(f"running {chunk} tokens after {before} on meta")
        recording, kept = _recorded(spec, model, weights, before, chunk, recipes)
        recordings.append(recording)
        caches.append(kept)
    rows = compare_caches(caches[0], caches[1], lengths, shape.latent_rank)
    return Measured(cache=rows, activations=_paired(recordings, lengths, context - chunk, chunk), chunk=asked)


def unmeasured(chunk: int) -> Measured:
    """Return what stands for a model that does not run on meta: no cache and no activations."""
    nothing = ActivationSet(storages=(), chunk=chunk, exact=False, note="not read")
    return Measured(cache=(), activations=nothing, chunk=chunk)


def _affordable(spec: ModelSpec, model: nn.Module, weights: tuple[Weight, ...], chunk: int, recipes: Recipes) -> int:
    """Return how many tokens to record: fewer than asked where the model loops over tokens in Python."""
    short, long = (_recorded(spec, model, weights, 0, tokens, recipes)[0] for tokens in (8, 24))
    per_token = (len(long) - len(short)) / 16
    return min(chunk, max(16, int(MOST_STORAGES / per_token))) if per_token > 0 else chunk


def _page(model: nn.Module) -> int:
    size = getattr(getattr(model, "config", None), "block_size", None)
    return size if isinstance(size, int) and size > 0 else PAGE


def _contexts(spec: ModelSpec, shape: ModelShape, page: int, asked: int) -> tuple[int, int]:
    """Return two lengths of context in whole pages, past the window and the sparse top-k where the asked one is.

    The second is the asked one where that is short enough.
    """
    regime = max(spec.sparse_top_k or 0, shape.window) + MARGIN
    if asked < regime + 2 * page:
        return (asked - 2 * page, asked) if asked > 2 * page else (asked + 2 * page, asked)
    regime = -(-regime // page) * page
    return regime, regime + 2 * page


def _recorded(
    spec: ModelSpec, model: nn.Module, weights: tuple[Weight, ...], before: int, chunk: int, recipes: Recipes
) -> tuple[list[Storage], tuple[Found, ...]]:
    ids = token_ids(spec, 1, before + chunk, seed=0).to("meta")
    marks = _marks(model, weights)
    try:
        with LifetimeRecorder(
            {}, recipes
        ):  # of no interest: it makes results as the one below does, once for all layers
            cache = step(model, ids[:, :before], None).cache if before else None
        found = cache_tensors(cache) if before else ()
        # Held until the end: the address of a storage that is gone is given to a new one.
        held = (ids, *walk_tensors(cache))
        for tensor in held:
            marks.setdefault(int(tensor.untyped_storage()._cdata), WeightMark(cut="given"))
        recorder = LifetimeRecorder(marks, recipes)
        with watch_experts(model, is_experts_path, recorder), recorder:
            output = _call(model, ids[:, before:], cache)
            kept = getattr(output, "past_key_values", None) or getattr(output, "cache", None)
    except (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Day0Error(
            spec.source,
            f"it does not run on meta, and so cache and activations cannot be read: {first_line[:200]}",
            hint=f"see `day0 trace {spec.source}` for module and line",
        ) from error
    for one in recorder.results(list(walk_tensors(kept))):
        one.op = "cache"
    return recorder.storages, found or cache_tensors(kept)


def _marks(model: nn.Module, weights: tuple[Weight, ...]) -> dict[int, WeightMark]:
    """Tell weights and buffers from what a run allocates; scales of packed experts are theirs too."""
    marks = {
        int(value.untyped_storage()._cdata): WeightMark(experts=".experts." in name)
        for name, value in (*model.named_parameters(), *model.named_buffers())
    }
    for one in weights:
        head = one.name.endswith("lm_head.weight")
        cut = one.cut if one.cut in ("out", "in") else "out" if head else ""
        marks[one.address] = WeightMark(cut=cut, experts=one.kind == "experts")
    return marks


def _call(model: nn.Module, ids: torch.Tensor, cache: Any) -> Any:
    """Call as a server does: logits of the last token alone, where the model can do so."""
    names = inspect.signature(model.forward).parameters
    last: dict[str, int] = {"logits_to_keep": 1} if "logits_to_keep" in names else {}
    held = {"cache" if "cache" in names else "past_key_values": cache}
    with torch.no_grad():
        return model(input_ids=ids, use_cache=True, **held, **last)


def _paired(recordings: list[list[Storage]], contexts: tuple[int, int], asked: int, chunk: int) -> ActivationSet:
    first, second = recordings
    same = len(first) == len(second) and all(
        (a.op, a.begin, a.end, len(a.shape)) == (b.op, b.begin, b.end, len(b.shape))
        for a, b in zip(first, second, strict=True)
    )
    exact = asked == contexts[1]
    note = "" if exact else f"extended from {contexts[0]} and {contexts[1]} tokens of context"
    if not same:
        first, note = second, f"the calls differ between contexts: taken as after {contexts[1]} tokens"
    span = contexts[1] - contexts[0]
    storages = []
    for a, b in zip(first, second, strict=True):
        if b.op == "cache" or b.of_experts:
            continue
        growth = (b.bytes - a.bytes) / span
        storages.append(
            Growing(
                begin=b.begin,
                end=b.end if b.end is not None else 1 << 60,
                fixed=round(b.bytes - growth * contexts[1]),
                per_token=growth,
                sharded=b.sharded,
                inside=growth > 0 and (b.sharded or _per_head(a.shape, b.shape, chunk)),
            )
        )
    return ActivationSet(storages=tuple(storages), chunk=chunk, exact=exact, note=note)


def _per_head(before: tuple[int, ...], after: tuple[int, ...], chunk: int) -> bool:
    """Say whether a tensor that grows with the context has a dimension besides batch, chunk, context and row."""
    grows = [a != b for a, b in zip(before, after, strict=False)]
    if not any(grows) or len(after) < 3:
        return False
    rest = [size for size, grew in zip(after, grows, strict=True) if not grew]
    if not grows[-1]:
        rest = rest[:-1]
    if chunk in rest:
        rest.remove(chunk)
    return int(torch.Size(rest).numel()) > 1


def plan_activations(found: ActivationSet, *, context: int, tokens: int, parts: int) -> Activations:
    """Plan for a context and for `parts` cards of tensor parallelism; more than a chunk's tokens scale all of it."""
    before = max(0, context - found.chunk)
    scale = max(1.0, tokens / found.chunk)
    lives, inside = [], []
    for one in found.storages:
        size = (one.fixed + one.per_token * before) * scale
        lives.append(Lifetime(one.begin, one.end, -(-round(size) // (parts if one.sharded else 1))))
        inside.append(one.inside)
    return Activations(lives=tuple(lives), inside=tuple(inside))
