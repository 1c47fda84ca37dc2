"""What each card of a layout has to hold."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from day0.analyzers.fit.activations import Activations, Measured, plan_activations
from day0.analyzers.fit.cache import CacheTensor
from day0.analyzers.fit.formats import FORMATS, format_of_dtype
from day0.analyzers.fit.layouts import Layout, stages_of
from day0.analyzers.fit.weights import ModelShape, Weight

__all__ = ["CardBytes", "Demand", "card_of", "quantisable", "weight_bytes"]

PAGE_TOKENS = 64
WORKSPACE_MARGIN = 1.2
"""Room for a fifth more experts than one layer has: the next layer's are converted while this one computes."""
FOUR_BITS = frozenset({"mxfp4", "nvfp4", "int4", "int4-g128"})
MIN_QUANTISED_COLUMNS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
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
    plans: dict[tuple[int, int], Activations] = field(default_factory=dict)
    """Plans that were made already, by cards of tensor parallelism and tokens."""


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
    """What did not divide evenly and was rounded up."""

    @property
    def total(self) -> int:
        """All of it, without the reserve."""
        fixed = self.workspace + self.activations + self.communication
        return sum(self.weights.values()) + sum(self.cache.values()) + fixed


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
    return CardBytes(
        layout=layout,
        stage=fullest,
        weights=one.weights,
        replicated=one.replicated,
        cache=one.cache,
        workspace=one.workspace,
        activations=one.activations,
        communication=one.communication,
        rounded=tuple(sorted(notes)),
    )


def _stage(demand: Demand, layout: Layout, number: int, layers: range, notes: set[str]) -> CardBytes:
    weights: dict[str, int] = defaultdict(int)
    per_layer: dict[int, int] = defaultdict(int)
    replicated = 0
    for weight in demand.weights:
        if not _stands_in(weight, layout, number, layers):
            continue
        size = _share(weight, weight_bytes(weight, demand.formats), layout, notes)
        if weight.kind == "experts" and weight.layer is not None:
            per_layer[weight.layer] += size
        else:
            weights[weight.kind] += size
        replicated += 0 if weight.cut else size
    if per_layer:
        held = sorted(per_layer.values(), reverse=True)
        weights["experts"] += sum(held[: demand.resident_layers] if demand.resident_layers else held)
    tokens = max(demand.chunk, math.ceil(demand.batch / layout.dp))
    return CardBytes(
        layout=layout,
        stage=number,
        weights=dict(weights),
        replicated=replicated,
        cache=_cache(demand, layout, layers),
        workspace=_workspace(demand, layout, layers, notes),
        activations=_activations(demand, layout.tp, tokens).fused.planned,
        communication=_communication(demand, layout, tokens),
        rounded=(),
    )


def _stands_in(weight: Weight, layout: Layout, stage: int, layers: range) -> bool:
    if weight.layer is not None:
        return weight.layer in layers
    last = stage == layout.pp - 1
    if weight.kind == "embedding":
        is_head = "embed_out" in weight.name or "lm_head" in weight.name
        return last if is_head else stage == 0 or (last and weight.tied)
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
            held[one.kind] += sequences * cache_bytes(one, demand, layout.tp)
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


def _workspace(demand: Demand, layout: Layout, layers: range, notes: set[str]) -> int:
    """Return room for the experts of one layer that lie on this card, converted, and a margin for the next ones."""
    own = [one for one in demand.weights if one.kind == "experts" and one.layer in layers and quantisable(one)]
    packed = [one for one in own if (demand.formats.get("experts") or one.native) in FOUR_BITS]
    if not demand.workspace or not packed:
        return 0
    per_layer: dict[int | None, int] = defaultdict(int)
    for one in packed:
        per_layer[one.layer] += _share(one, FORMATS[demand.workspace].bytes_of(one.shape), layout, notes)
    return math.ceil(max(per_layer.values()) * WORKSPACE_MARGIN)


def _activations(demand: Demand, tp: int, tokens: int) -> Activations:
    key = (tp, tokens)
    if key not in demand.plans:
        demand.plans[key] = plan_activations(
            demand.measured.activations, context=demand.context, tokens=tokens, parts=tp
        )
    return demand.plans[key]


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
