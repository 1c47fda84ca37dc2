"""`day0 fit`: from a model and what is asked of it to a record that says how many cards, and what takes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from day0.analyzers.fit.activations import Measured, measure, unmeasured
from day0.analyzers.fit.cache import CACHE_KINDS
from day0.analyzers.fit.cards import CardBytes, Demand, cache_bytes, card_of, weight_bytes
from day0.analyzers.fit.formats import FORMATS, format_of_dtype
from day0.analyzers.fit.layouts import parse_layout
from day0.analyzers.fit.quantisation import formats_of
from day0.analyzers.fit.search import best_layout, layout_text, proposals, room_for, smallest
from day0.analyzers.fit.training import measure_training
from day0.analyzers.fit.weights import KINDS, ModelShape, Weight, active_parameters, count_weights, shape_of
from day0.errors import Day0Error
from day0.models.spec import ModelSpec
from day0.records import FitCard, FitOption, FitPlan, FitReport, FitRow

__all__ = ["FitRequest", "Study", "fit_model", "fit_study", "study_model"]

MAX_PARAMETERS = 10**15
"""A thousand times the largest model that was ever announced: beyond it somebody mistyped a size."""

GIB = 1 << 30
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class FitRequest:
    """What is asked."""

    memory: int
    """Bytes of one card."""
    device: str
    reserve: float = 0.1
    """Share of the memory that is left alone."""
    format: str = ""
    kv_format: str = "bf16"
    index_format: str = "fp8"
    workspace: str = "fp8"
    context: int = 0
    """Tokens of a sequence; 0 for the model's positions, at most 131072."""
    batch: int = 1
    chunk: int = 2048
    layout: str = ""
    cards: int = 0
    node: int = 8
    train: bool = False
    """Training in bfloat16 with Adam: gradients, states of the optimizer and what forward keeps for backward."""
    counts: tuple[int, ...] = field(default=(8, 16, 32, 64, 1024))


DEFAULT_CONTEXT = 131_072


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """A model, counted and run on meta: what does not depend on cards, formats and batch."""

    spec: ModelSpec
    model: nn.Module
    weights: tuple[Weight, ...]
    shape: ModelShape
    measured: Measured
    context: int
    unread: str = ""
    """Why cache and activations could not be read: the model does not run on meta. The weights are counted then."""


def fit_model(spec: ModelSpec, request: FitRequest, progress: Progress = lambda _: None) -> FitReport:
    """Count, measure, plan and search.

    Raises Day0Error: absurd sizes, a context beyond the model's positions, unknown formats, contradictory layouts.
    Of a model that does not run on meta the report holds the weights alone, and says so.
    """
    study = study_model(spec, context=request.context, chunk=request.chunk, progress=progress)
    return fit_study(study, request, progress)


def study_model(spec: ModelSpec, *, context: int, chunk: int, progress: Progress = lambda _: None) -> Study:
    """Build a model on meta, count its weights, and read its cache and lifetimes; a context of 0 is the model's own."""
    context = _context(spec, context)
    progress(f"building {spec.class_name} on meta")
    model = spec.build("meta")
    weights = count_weights(model)
    _refuse_absurd(spec, weights)
    shape = shape_of(model, weights)
    unread = ""
    try:
        measured = measure(spec, model, weights, shape, context=context, chunk=chunk, progress=progress)
    except Day0Error as error:
        measured, unread = unmeasured(min(chunk, context)), error.what
    return Study(
        spec=spec, model=model, weights=weights, shape=shape, measured=measured, context=context, unread=unread
    )


def fit_study(study: Study, request: FitRequest, progress: Progress = lambda _: None) -> FitReport:
    """Answer what is asked of a model that was studied at the request's context and chunk."""
    demand = Demand(
        weights=study.weights,
        shape=study.shape,
        measured=study.measured,
        formats=formats_of(study.model, request.format),
        context=study.context,
        batch=request.batch,
        chunk=study.measured.chunk,
        kv_format=request.kv_format,
        index_format=request.index_format,
        workspace=request.workspace,
    )
    if request.train:
        progress("running forward with gradients on meta")
        tokens = min(study.context, request.chunk)
        saved = measure_training(study.spec, study.weights, tokens, study.shape.hidden)
        demand = demand.changed(saved=saved, formats={}, chunk=tokens)
    progress("searching layouts")
    return _report(study.spec, request, demand).model_copy(update={"unread": study.unread})


def _context(spec: ModelSpec, asked: int) -> int:
    if spec.max_positions is not None and asked > spec.max_positions:
        raise Day0Error(
            f"--context {asked}",
            f"{spec.class_name} has {spec.max_positions:,} positions",
            hint=f"use at most --context {spec.max_positions}",
        )
    return asked or min(spec.max_positions or DEFAULT_CONTEXT, DEFAULT_CONTEXT)


def _refuse_absurd(spec: ModelSpec, weights: tuple[Weight, ...]) -> None:
    values = sum(one.values for one in weights)
    if values > MAX_PARAMETERS:
        what = f"it has {values:.3g} parameters, more than {MAX_PARAMETERS:.0e}"
        raise Day0Error(spec.source, what, hint="check the sizes given with --set")
    if not values:
        raise Day0Error(spec.source, "it has no weights", hint="is this the model that you meant?")


def _report(spec: ModelSpec, request: FitRequest, demand: Demand) -> FitReport:
    usable = int(request.memory * (1 - request.reserve))
    chosen, asked = _chosen(request, demand, usable)
    options = _options(request, demand, usable, chosen)
    found = (
        demand.plans.get((chosen.layout.tp, max(demand.chunk, -(-demand.batch // chosen.layout.dp))))
        if chosen
        else None
    )
    parameters = sum(one.values for one in demand.weights if one.parameter)
    return FitReport(
        model=spec.source,
        class_name=spec.class_name,
        overrides=spec.overrides,
        device=request.device,
        memory_bytes=request.memory,
        reserve_bytes=request.memory - usable,
        context=demand.context,
        batch=demand.batch,
        chunk=demand.chunk,
        parameters=parameters,
        active_parameters=active_parameters(demand.weights, demand.shape),
        weights=_weight_rows(demand),
        weight_bytes=sum(weight_bytes(one, demand.formats) for one in demand.weights),
        cache=_cache_rows(demand),
        asked=asked,
        fits=chosen is not None and chosen.total <= usable,
        card=_card(chosen, demand, usable) if chosen else None,
        plan=FitPlan(
            planned=found.fused.planned,
            unplanned=found.fused.unplanned,
            bound=found.fused.bound,
            written=found.written.planned,
            tensors=len(found.fused.offsets),
            strategy=found.fused.strategy,
            note=_note(demand),
        )
        if found
        else None,
        options=options,
        proposals=proposals(demand, chosen) if chosen else (),
    )


def _note(demand: Demand) -> str:
    found = demand.measured.activations
    scaled = f"recorded with {found.chunk} tokens and scaled to {demand.chunk}" if found.chunk < demand.chunk else ""
    return "; ".join(text for text in (found.note, scaled) if text)


def _chosen(request: FitRequest, demand: Demand, usable: int) -> tuple[CardBytes | None, str]:
    if request.layout:
        layout = parse_layout(request.layout, demand.shape)
        if request.cards and layout.cards != request.cards:
            what = f"{layout} takes {layout.cards} cards, and --cards says {request.cards}"
            raise Day0Error("--layout", what, hint="leave one of them out")
        return card_of(demand, layout), "layout"
    if request.cards:
        made = best_layout(demand, request.cards, request.node)
        if made is None:
            what = f"no layout of {request.cards} cards divides the {demand.shape.heads} heads and {demand.shape.layers} layers"
            raise Day0Error("--cards", what, hint="try a multiple of 8")
        return made, "cards"
    return smallest(demand, usable, request.node), "smallest"


def _options(request: FitRequest, demand: Demand, usable: int, chosen: CardBytes | None) -> tuple[FitOption, ...]:
    made: dict[int, CardBytes] = {}
    nodes = smallest(demand, usable, request.node, step=request.node)
    least = smallest(demand, usable, request.node) if request.layout or request.cards else chosen
    for one in (least, nodes, chosen):
        if one is not None:
            made.setdefault(one.layout.cards, one)
    for cards in request.counts:
        if cards not in made:
            best = best_layout(demand, cards, request.node)
            if best is not None:
                made[cards] = best
    return tuple(
        FitOption(
            cards=cards,
            layout=layout_text(one.layout),
            bytes_per_card=one.total,
            fits=one.total <= usable,
            sequences=room_for(one, demand, usable),
        )
        for cards, one in sorted(made.items())
    )


def _weight_rows(demand: Demand) -> tuple[FitRow, ...]:
    rows = []
    for kind, title in KINDS.items():
        own = [one for one in demand.weights if one.kind == kind]
        if own:
            rows.append(
                FitRow(
                    name=kind,
                    title=title,
                    format=_format_text(own, demand),
                    values=sum(one.values for one in own),
                    bytes=sum(weight_bytes(one, demand.formats) for one in own),
                    shared_by=_cut_text(own),
                )
            )
    return tuple(rows)


def _format_text(own: list[Weight], demand: Demand) -> str:
    """Return the formats in which most bytes lie, largest first."""
    sizes: dict[str, int] = defaultdict(int)
    for one in own:
        asked = demand.formats.get(one.kind, "")
        mine = one.native or format_of_dtype(one.dtype)
        same = weight_bytes(one, demand.formats) == FORMATS[asked].bytes_of(one.shape) if asked else False
        sizes[asked if same else mine] += weight_bytes(one, demand.formats)
    return ", ".join(sorted(sizes, key=lambda name: -sizes[name])[:2])


def _cut_text(own: list[Weight]) -> str:
    cut = sum(one.values for one in own if one.cut)
    whole = sum(one.values for one in own if not one.cut)
    by = "ep" if any(one.cut == "experts" for one in own) else "tp"
    return "every card" if not cut else by if not whole else f"{by}, {whole / (cut + whole):.0%} on every card"


def _cache_rows(demand: Demand) -> tuple[FitRow, ...]:
    rows = []
    single = demand.changed(batch=1)
    for kind, title in CACHE_KINDS.items():
        own = [one for one in demand.measured.cache if one.kind == kind]
        if not own:
            continue
        per_token = [one for one in own if one.per_token and one.window is None]
        each = sum(cache_bytes(one, single, 1) for one in own)
        rows.append(
            FitRow(
                name=kind,
                title=title,
                format=demand.index_format
                if kind == "index"
                else demand.kv_format
                if kind in ("latent", "kv", "window")
                else own[0].dtype,
                values=round(sum(one.per_token * demand.context if one.per_token else one.fixed for one in own)),
                bytes=each,
                shared_by="every card"
                if max(one.heads for one in own) == 1
                else f"tp up to {max(o.heads for o in own)}",
                layers=len({one.layer for one in own}),
                bytes_per_token=each / demand.context if per_token else 0.0,
            )
        )
    return tuple(rows)


def _card(one: CardBytes, demand: Demand, usable: int) -> FitCard:
    return FitCard(
        cards=one.layout.cards,
        tp=one.layout.tp,
        ep=one.layout.ep,
        pp=one.layout.pp,
        dp=one.layout.dp,
        stage=one.stage,
        weights={KINDS[kind]: size for kind, size in one.weights.items()},
        replicated=one.replicated,
        cache={CACHE_KINDS[kind]: size for kind, size in one.cache.items()},
        workspace=one.workspace,
        workspace_format=demand.workspace,
        activations=one.activations,
        communication=one.communication,
        saved=one.saved,
        gradients=one.gradients,
        optimizer=one.optimizer,
        total=one.total,
        usable=usable,
        free=usable - one.total,
        sequences=room_for(one, demand, usable),
        rounded=one.rounded,
    )
