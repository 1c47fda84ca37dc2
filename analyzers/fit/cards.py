"""What each card of a layout has to hold."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from day0.analyzers.fit.activations import Activations, Measured, plan_activations
from day0.analyzers.fit.cache import CacheTensor
from day0.analyzers.fit.formats import FORMATS, format_of_dtype
from day0.analyzers.fit.layouts import Layout, stages_of
from day0.analyzers.fit.training import OPTIMIZER_FACTOR, Saved
from day0.analyzers.fit.weights import ModelShape, Weight

__all__ = ["CardBytes", "Demand", "Merged", "cache_bytes", "card_of", "merge_weights", "quantisable", "weight_bytes"]

PAGE_TOKENS = 64
WORKSPACE_MARGIN = 1.2
"""Room for a fifth more experts than one layer has: the next layer's are converted while this one computes."""
FOUR_BITS = frozenset({"mxfp4", "nvfp4", "int4", "int4-g128"})
MIN_QUANTISED_COLUMNS = 32


@dataclass(frozen=True, slots=True)
class Merged:
    """Weights of a layer that are divided in the same way: one of them, and the bytes of all."""

    weight: Weight
    bytes: int
    workspace: int
    """Bytes of them in the format into which they are converted while the model runs."""

    @property
    def key(self) -> tuple[object, ...]:
        """Return what is the same in layers that are alike."""
        one = self.weight
        return (one.kind, one.cut, one.units, self.bytes, self.workspace)


ByLayer = dict[int | None, tuple[Merged, ...]]


@dataclass(frozen=True, slots=True)
class _Share:
    weights: dict[str, int]
    replicated: int
    workspace: int
    notes: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What is to be held: the model, its formats, and how much is asked of it."""

    weights: tuple[Weight, ...]
    shape: ModelShape
    measured: Measured
    formats: Mapping[str, str]
    """By kind of weight; where a kind is not named, as the model holds it."""
    context: int
    batch: int
    chunk: int
    kv_format: str = "bf16"
    index_format: str = "fp8"
    workspace: str = ""
    """Format into which four-bit experts are converted while the model runs; empty where the device computes in it."""
    resident_layers: int | None = None
    """Expert layers that lie on the card at one time; None for all of them."""
    saved: Saved | None = None
    """What training keeps; None where the model only answers."""
    checkpointing: bool = False
    """Keep the inputs of layers alone, and run a layer again in the backward pass."""
    optimizer_divided: bool = False
    """Each data-parallel replica holds its part of the optimizer's states alone."""
    plans: dict[tuple[int, int], Activations] = field(default_factory=dict)
    """Plans that were made already, by cards of tensor parallelism and tokens."""
    shares: dict[tuple[object, ...], _Share] = field(default_factory=dict)
    caches: dict[tuple[object, ...], int] = field(default_factory=dict)

    @cached_property
    def by_layer(self) -> ByLayer:
        """Return the weights of each layer, those together that are divided in the same way."""
        return merge_weights(self.weights, self.formats, self.workspace)

    def changed(self, **changes: Any) -> Demand:
        """Return another demand; of what was worked out, only the plans stay, where they do not depend on it."""
        keep = {} if "context" in changes else self.plans
        return replace(self, **changes, plans=keep, shares={}, caches={})


@dataclass(frozen=True, kw_only=True, slots=True)
class CardBytes:
    """One card of the fullest pipeline stage."""

    layout: Layout
    stage: int
    weights: dict[str, int]
    replicated: int
    """Of the weights: what every card of a stage holds whole."""
    cache: dict[str, int]
    workspace: int
    activations: int
    communication: int
    rounded: tuple[str, ...]
    saved: int = 0
    """Kept between forward and backward."""
    gradients: int = 0
    optimizer: int = 0
    """What did not divide evenly and was rounded up."""

    @property
    def total(self) -> int:
        """All of it, without the reserve."""
        fixed = self.workspace + self.activations + self.communication
        training = self.saved + self.gradients + self.optimizer
        return sum(self.weights.values()) + sum(self.cache.values()) + fixed + training


def quantisable(weight: Weight) -> bool:
    """Say whether checkpoints store such a weight in few bits: matrices of linear layers and experts, nothing else."""
    matrix = len(weight.shape) >= (3 if weight.kind == "experts" and weight.shape[0] == weight.units else 2)
    wide = bool(weight.shape) and min(weight.shape[-2:]) >= MIN_QUANTISED_COLUMNS
    return matrix and wide and "conv" not in weight.name and "weights_proj" not in weight.name


def weight_bytes(weight: Weight, formats: Mapping[str, str]) -> int:
    """Return the bytes of a weight in the format of its kind, or as the model holds it."""
    own = weight.native or format_of_dtype(weight.dtype)
    asked = formats.get(weight.kind, "")
    few = bool(asked) and FORMATS[asked].bits <= 8
    if not asked or (few and not quantisable(weight)):
        return FORMATS[own].bytes_of(weight.shape)
    if not few and own == "fp32":
        return FORMATS["fp32"].bytes_of(weight.shape)  # what a model keeps in float32, it keeps there for a reason
    return FORMATS[asked].bytes_of(weight.shape)


def card_of(demand: Demand, layout: Layout) -> CardBytes:
    """Return what a card of the fullest stage holds."""
    notes: set[str] = set()
    stages = stages_of(demand.shape.layers, layout.pp)
    held = [_stage(demand, layout, number, layers, notes) for number, layers in enumerate(stages)]
    fullest = max(range(len(held)), key=lambda number: held[number].total)
    one = held[fullest]
    if layout.pp > 1 and demand.shape.layers % layout.pp:
        sizes = sorted({len(layers) for layers in stages})
        notes.add(f"{demand.shape.layers} layers in stages of {sizes[0]} or {sizes[-1]}")
    return replace(one, stage=fullest, rounded=tuple(sorted(notes)))


def _stage(demand: Demand, layout: Layout, number: int, layers: range, notes: set[str]) -> CardBytes:
    weights: dict[str, int] = defaultdict(int)
    experts: list[int] = []
    replicated = workspace = 0
    for layer in (None, *layers):
        own = [one for one in demand.by_layer.get(layer, ()) if _stands_in(one.weight, layout, number)]
        share = _layer_share(demand, layout, tuple(own))
        for kind, size in share.weights.items():
            if kind != "experts":
                weights[kind] += size
        experts.append(share.weights.get("experts", 0))
        replicated += share.replicated
        workspace = max(workspace, share.workspace)
        notes.update(share.notes)
    if any(experts):
        held = sorted(experts, reverse=True)
        weights["experts"] += sum(held[: demand.resident_layers] if demand.resident_layers else held)
    tokens = max(demand.chunk, math.ceil(demand.batch / layout.dp))
    trains = demand.saved is not None
    total = sum(weights.values())
    states = OPTIMIZER_FACTOR * total if trains else 0
    return CardBytes(
        layout=layout,
        stage=number,
        weights=dict(weights),
        replicated=replicated,
        cache={} if trains else _cache(demand, layout, layers),
        workspace=0 if trains else math.ceil(workspace * WORKSPACE_MARGIN),
        saved=_saved(demand, layout, number, layers),
        gradients=total if trains else 0,
        optimizer=-(-states // layout.dp) if demand.optimizer_divided else states,
        activations=_activations(demand, layout.tp, tokens).fused.planned,
        communication=_communication(demand, layout, tokens),
        rounded=(),
    )


def _layer_share(demand: Demand, layout: Layout, own: tuple[Merged, ...]) -> _Share:
    """Return what a card holds of a layer; layers are alike, so each sort is looked at once."""
    key = (layout.tp, layout.ep, tuple(one.key for one in own))
    found = demand.shares.get(key)
    if found is None:
        weights: dict[str, int] = defaultdict(int)
        notes: set[str] = set()
        replicated = workspace = 0
        for one in own:
            size = _share(one.weight, one.bytes, layout, notes)
            weights[one.weight.kind] += size
            replicated += 0 if one.weight.cut else size
            workspace += _share(one.weight, one.workspace, layout, notes)
        found = demand.shares[key] = _Share(dict(weights), replicated, workspace, frozenset(notes))
    return found


def merge_weights(weights: tuple[Weight, ...], formats: Mapping[str, str], workspace: str) -> ByLayer:
    """Add up the weights of each layer that are divided in the same way."""
    found: dict[int | None, dict[tuple[object, ...], Merged]] = defaultdict(dict)
    for one in weights:
        key = (one.kind, one.cut, one.units, _is_head(one), one.tied)
        packed = (formats.get(one.kind) or one.native) in FOUR_BITS and one.kind == "experts" and quantisable(one)
        converted = FORMATS[workspace].bytes_of(one.shape) if workspace and packed else 0
        before = found[one.layer].get(key)
        found[one.layer][key] = Merged(
            weight=one,
            bytes=weight_bytes(one, formats) + (before.bytes if before else 0),
            workspace=converted + (before.workspace if before else 0),
        )
    return {layer: tuple(rows.values()) for layer, rows in found.items()}


def _is_head(weight: Weight) -> bool:
    return "embed_out" in weight.name or "lm_head" in weight.name


def _stands_in(weight: Weight, layout: Layout, stage: int) -> bool:
    """Say in which stage a weight outside of the layers stands; a tied head is a second copy in the last one."""
    if weight.layer is not None:
        return True
    last = stage == layout.pp - 1
    if weight.kind == "embedding":
        return last if _is_head(weight) else stage == 0 or (last and weight.tied)
    return last if weight.kind == "norm" else stage == 0


def _share(weight: Weight, size: int, layout: Layout, notes: set[str]) -> int:
    """Return the bytes of a card's part: the largest one where the parts are not equal."""
    if weight.cut == "experts":
        inner = layout.tp // math.gcd(layout.tp, layout.ep) if layout.ep < layout.tp else 1
        return -(-_part(size, weight.units, layout.ep, "experts", notes) // inner)
    if not weight.cut or weight.units == 1:
        return size
    parts = layout.tp
    if weight.kind == "attention" and parts > weight.units:
        parts = weight.units  # fewer key heads than cards: several cards hold the same one
    what = {"vocab": "words", "out": "rows", "in": "rows"}[weight.cut]
    return _part(size, weight.units, parts, what, notes)


def _part(size: int, units: int, parts: int, what: str, notes: set[str]) -> int:
    if units % parts:
        notes.add(f"{units:,} {what} over {parts} cards: {-(-units // parts):,} each at most")
    return -(-size * -(-units // parts) // units)


def _cache(demand: Demand, layout: Layout, layers: range) -> dict[str, int]:
    sequences = -(-demand.batch // layout.dp)
    held: dict[str, int] = defaultdict(int)
    for one in demand.measured.cache:
        if one.layer in layers:
            key = (layout.tp, one.kind, one.per_token, one.fixed, one.window, one.row, one.dtype, one.heads)
            if key not in demand.caches:
                demand.caches[key] = cache_bytes(one, demand, layout.tp)
            held[one.kind] += sequences * demand.caches[key]
    return dict(held)


def cache_bytes(one: CacheTensor, demand: Demand, tp: int) -> int:
    """Return what a layer keeps of one sequence on one card: whole pages of tokens, heads divided."""
    tokens = demand.context if one.window is None else min(demand.context, one.window)
    tokens = -(-tokens // PAGE_TOKENS) * PAGE_TOKENS if one.window is None else tokens
    values = one.per_token * tokens + one.fixed
    size = math.ceil(values * _bytes_per_value(one, demand))
    parts = min(tp, one.heads) if one.heads > 1 else 1
    return -(-size // parts)


def _bytes_per_value(one: CacheTensor, demand: Demand) -> float:
    """Return bytes with scales: FP8 rows have a float32 for each 128 values; the rotated part of a latent row none."""
    own = FORMATS[format_of_dtype(one.dtype)].bits / 8
    asked = {"latent": demand.kv_format, "kv": demand.kv_format, "window": demand.kv_format}.get(one.kind, "")
    asked = demand.index_format if one.kind == "index" else asked
    if asked != "fp8" or not one.per_token:
        return own
    if one.kind in ("kv", "window"):
        return 1.0
    rank = demand.shape.latent_rank
    if one.kind == "index":
        return (one.row + 4 * -(-one.row // 128)) / one.row
    quantised = min(one.row, rank) if one.row >= rank else 0
    return (quantised + 4 * -(-quantised // 128) + own * (one.row - quantised)) / one.row


def _activations(demand: Demand, tp: int, tokens: int) -> Activations:
    key = (tp, tokens)
    if key not in demand.plans:
        demand.plans[key] = plan_activations(
            demand.measured.activations, context=demand.context, tokens=tokens, parts=tp
        )
    return demand.plans[key]


def _saved(demand: Demand, layout: Layout, stage: int, layers: range) -> int:
    """Return what lies between forward and backward; a pipeline has as many sequences under way as stages follow."""
    found = demand.saved
    if found is None:
        return 0
    sequences = -(-demand.batch // layout.dp)
    under_way = sequences if layout.pp == 1 else min(sequences, layout.pp - stage)
    outside = range(len(found.whole) - 1, len(found.whole)) if stage == layout.pp - 1 else range(0)
    sizes = found.of(layers, layout.tp)
    last = sum(found.of(outside, layout.tp))
    if demand.checkpointing:
        return under_way * (found.layer_input * len(layers) + last) + max(sizes, default=0)
    return under_way * (sum(sizes) + last)


def _communication(demand: Demand, layout: Layout, tokens: int) -> int:
    """Return buffers beside the activations: what comes in and goes out of sums, of experts and between stages."""
    row = 2  # bfloat16
    total = 0
    if layout.tp > 1:
        total += 2 * tokens * demand.shape.hidden * row
    if layout.ep > 1:
        routed = -(-tokens * demand.shape.experts_per_token // layout.tp)
        total += 4 * routed * demand.shape.expert_width * row
    if layout.pp > 1:
        total += 2 * tokens * demand.shape.hidden * row
    return total
