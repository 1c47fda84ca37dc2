"""What training keeps between forward and backward, read from a run with gradients on meta."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from day0.analyzers.fit.lifetimes import LifetimeRecorder, Storage, WeightMark, watch_experts
from day0.analyzers.fit.weights import Weight, is_experts_path
from day0.errors import Day0Error
from day0.models.spec import ModelSpec, decoder_layers
from day0.models.workload import token_ids

__all__ = ["OPTIMIZER_FACTOR", "Saved", "measure_training"]

OPTIMIZER_FACTOR = 6
"""Adam beside bfloat16 weights: a float32 copy and two float32 moments are six times their bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """What lives at the end of a forward pass of one sequence, in bytes by layer; what is outside of layers is last."""

    whole: tuple[int, ...]
    divided: tuple[int, ...]
    """Of that, what tensor parallelism divides, before it is divided."""
    layer_input: int
    """What activation checkpointing keeps of a layer instead."""

    def of(self, layers: range, parts: int) -> list[int]:
        """Return the bytes of each of these layers on one of `parts` cards."""
        return [self.whole[one] + -(-self.divided[one] // parts) for one in layers]


def measure_training(spec: ModelSpec, weights: tuple[Weight, ...], tokens: int, hidden: int) -> Saved:
    """Run one sequence forward with gradients on meta.

    Raises Day0Error for a model whose experts are packed codes, and for one that does not run so.
    """
    if any(one.native for one in weights):
        what = "its experts are four-bit codes, which have no gradients"
        raise Day0Error("--train", what, hint="name a model whose weights are bfloat16")
    if spec.phases:
        what = "it brings its own inputs and takes no token ids: there is no sequence to train on"
        raise Day0Error(f"{spec.source} --train", what, hint="leave --train out: then its weights are counted")
    model = spec.build("meta").train()
    for value in model.parameters():
        if value.is_floating_point():
            value.requires_grad_(True)
    marks = {
        int(value.untyped_storage()._cdata): WeightMark(cut=_cuts(weights).get(name, ""))
        for name, value in (*model.named_parameters(), *model.named_buffers())
    }
    ids = token_ids(spec, 1, tokens, seed=0).to("meta")
    marks[int(ids.untyped_storage()._cdata)] = WeightMark(cut="given")
    recorder = LifetimeRecorder(marks)
    bounds: list[tuple[int, int]] = []
    try:
        with watch_experts(model, is_experts_path, recorder), _layer_bounds(model, recorder, bounds), recorder:
            # With a cache, which is dropped: without one, transformers looks into the positions for packed sequences.
            logits = model(input_ids=ids, use_cache=True).logits
    except (RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise Day0Error(f"{spec.source} --train", f"it does not run with gradients on meta: {first}") from error
    # Scores of attention, tokens against tokens, are what a fused operator works out again in the backward pass.
    kept = (one for one in recorder.storages if one.end is None and not one.of_weights)
    alive = [one for one in kept if one.shape.count(tokens) < 2]
    del logits
    return _by_layer(alive, bounds, tokens * hidden * spec.dtype.itemsize)


def _cuts(weights: tuple[Weight, ...]) -> dict[str, str]:
    return {one.name: one.cut for one in weights if one.cut in ("out", "in")}


@contextmanager
def _layer_bounds(model: nn.Module, recorder: LifetimeRecorder, bounds: list[tuple[int, int]]) -> Iterator[None]:
    """Note between which calls each decoder layer ran."""
    entered: list[int] = []

    def enter(module: nn.Module, args: object) -> None:
        entered.append(recorder.state.now)

    def leave(module: nn.Module, args: object, output: object) -> None:
        bounds.append((entered.pop(), recorder.state.now))

    handles = []
    for layer in decoder_layers(model).values():
        handles += [layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave)]
    try:
        with torch.enable_grad():
            yield
    finally:
        for handle in handles:
            handle.remove()


def _by_layer(alive: list[Storage], bounds: list[tuple[int, int]], layer_input: int) -> Saved:
    whole, divided = [0] * (len(bounds) + 1), [0] * (len(bounds) + 1)
    for one in alive:
        layer = next((n for n, (first, last) in enumerate(bounds) if first < one.begin <= last), len(bounds))
        (divided if one.sharded else whole)[layer] += one.bytes
    return Saved(whole=tuple(whole), divided=tuple(divided), layer_input=layer_input)
