"""The tables of records beside the five stages."""

from __future__ import annotations

from collections.abc import Iterator

from day0.records import EndpointPrompt, EndpointReport, FigureResult, FitReport, GateResult, RankResult, RanksReport
from day0.reports.bundle import Bundle
from day0.reports.clean import clean
from day0.reports.figures import bytes_text, error_text, share_text
from day0.reports.links import Link, linked
from day0.reports.tables import Cell, Table, make_table

__all__ = ["endpoint_tables", "fit_tables", "rank_tables", "tables_beside"]


def tables_beside(bundle: Bundle, name: str) -> tuple[Table, ...]:
    """Return the tables of one record by its name; none where it is not there."""
    if name == "fit" and bundle.fit is not None:
        return fit_tables(bundle.fit)
    if name == "endpoint" and bundle.endpoint is not None:
        return endpoint_tables(bundle.endpoint)
    if name == "ranks" and bundle.ranks is not None:
        return rank_tables(bundle.ranks)
    return ()


def fit_tables(found: FitReport) -> tuple[Table, ...]:
    """Return what a card holds, what a sequence takes in the cache, other numbers of cards, and what would help."""
    return tuple(table for table in (_room(found), _cache(found), _options(found), _proposals(found)) if table.rows)


def _room(found: FitReport) -> Table:
    return make_table(
        "What a card holds",
        "what | size:number | share:number",
        list(_parts(found)),
        lambda one: (clean(one[0]), bytes_text(one[1]), share_text(one[1] / (found.memory_bytes or 1))),
        file="fit.json",
    )


def _parts(found: FitReport) -> Iterator[tuple[str, int]]:
    """Yield everything that takes memory on the fullest card, weights first."""
    card = found.card
    if card is None:
        return
    parts = [*sorted(card.weights.items(), key=lambda one: -one[1])]
    parts += [(f"cache: {name}", size) for name, size in card.cache.items()]
    parts += [
        ("workspace", card.workspace),
        ("activations", card.activations),
        ("communication", card.communication),
        ("kept for backward", card.saved),
        ("gradients", card.gradients),
        ("optimizer", card.optimizer),
        ("reserve", found.reserve_bytes),
        ("free", max(0, card.free)),
    ]
    yield from ((name, size) for name, size in parts if size)


def _cache(found: FitReport) -> Table:
    return make_table(
        "Cache of one sequence",
        "what | layers:number | a token:number | size:number | format | divided by",
        found.cache,
        lambda one: (
            clean(one.title), f"{one.layers:,}", f"{one.bytes_per_token:,.0f} B", bytes_text(one.bytes),
            clean(one.format), clean(one.shared_by),
        ),
        file="fit.json",
    )  # fmt: skip


def _options(found: FitReport) -> Table:
    return make_table(
        "Other numbers of cards",
        "cards:number | layout:code | a card:number | fits | sequences:number",
        found.options,
        lambda one: (
            f"{one.cards:,}", clean(one.layout), bytes_text(one.bytes_per_card), "yes" if one.fits else "no",
            f"{one.sequences:,}",
        ),
        file="fit.json",
    )  # fmt: skip


def _proposals(found: FitReport) -> Table:
    return make_table(
        "What would take less",
        "what | saved on a card:number | how:notes",
        found.proposals,
        lambda one: (clean(one.title), bytes_text(one.bytes_saved), clean(one.why)),
        file="fit.json",
    )


def endpoint_tables(found: EndpointReport) -> tuple[Table, ...]:
    """Return gates, figures, and the prompts that part from the reference."""
    parted = [one for one in found.results if one.status != "pass"]
    made = (
        make_table("Gates of the server", _GATES, found.gates, gate_cells, file="endpoint.json"),
        make_table(
            "Figures of the server", _FIGURES, sorted(found.figures.items()), figure_cells, file="endpoint.json"
        ),
        make_table("Prompts that are not simply equal", _PROMPTS, parted, _prompt_cells, file="endpoint.json"),
    )
    return tuple(table for table in made if table.rows)


_GATES = "gate:code | value:number | status:status | why:notes"
_FIGURES = "figure:code | value:number | samples:number | why:notes"
_PROMPTS = "prompt:code | status:status | token:number | margin:number | why:notes"


def gate_cells(gate: GateResult) -> tuple[Cell, ...]:
    """Return rule, value with its interval, status and reason."""
    value = "not measured" if gate.value is None else f"{gate.value:.4g}"
    span = f" ({gate.low:.3g} to {gate.high:.3g})" if gate.low is not None and gate.high is not None else ""
    status = "undecided" if gate.verdict == "inconclusive" and gate.passed else "pass" if gate.passed else "fail"
    return (clean(f"{gate.metric} {gate.rule} {gate.limit:g}"), f"{value}{span}", status, clean(gate.reason))


def figure_cells(one: tuple[str, FigureResult]) -> tuple[Cell, ...]:
    """Return name, value with unit and interval, samples, and why there is none."""
    name, figure = one
    value = "not measured" if figure.value is None else f"{figure.value:.4g} {clean(figure.unit)}".strip()
    span = f" ({figure.low:.3g} to {figure.high:.3g})" if figure.low is not None and figure.high is not None else ""
    return (clean(name), f"{value}{span}", f"{figure.samples:,}" if figure.samples else "", clean(figure.why))


def _prompt_cells(one: EndpointPrompt) -> tuple[Cell, ...]:
    lines: tuple[str | Link, ...] = (
        clean(one.reason),
        clean(f"server: {one.text}") if one.text else "",
        clean(f"reference: {one.expected_text}") if one.expected_text else "",
        linked("request", one.body),
    )
    token = "" if one.position is None else f"{one.position + 1:,}"
    return (clean(one.name), one.status, token, error_text(one.margin), tuple(line for line in lines if line))


def rank_tables(found: RanksReport) -> tuple[Table, ...]:
    """Return the runs, the scaling, and the ranks that did not come to their end."""
    lost = [(run.ranks, one) for run in found.runs for one in run.results if one.status not in ("done", "stopped")]
    made = (
        make_table(
            "Runs on several ranks",
            "ranks:number | status:status | planted:code | why:notes",
            found.runs,
            lambda run: (f"{run.ranks:,}", run.status, clean(run.planted), tuple(map(clean, run.reasons))),
            file="ranks.json",
        ),
        make_table(
            "How it scales",
            "ranks:number | prefill:number | a token:number | efficiency:number | in decode:number"
            " | collectives:number | weights:number",
            found.scaling,
            lambda one: (
                f"{one.ranks:,}", f"{one.prefill_s * 1e3:.1f} ms", f"{one.decode_s * 1e3:.1f} ms",
                f"{one.prefill_efficiency * 100:.0f} %", f"{one.decode_efficiency * 100:.0f} %",
                f"{one.collective_share * 100:.0f} %", bytes_text(one.weight_bytes),
            ),
            file="ranks.json",
        ),
        make_table(
            "Ranks that did not end well",
            "rank:number | of:number | status:status | in:code | why:notes",
            lost,
            lambda pair: _lost_cells(*pair),
            file="ranks.json",
        ),
    )  # fmt: skip
    return tuple(table for table in made if table.rows)


def _lost_cells(ranks: int, one: RankResult) -> tuple[Cell, ...]:
    lines = tuple(clean(line) for line in (one.reason, *one.log_tail[-3:]) if line)
    return (f"{one.rank:,}", f"{ranks:,}", one.status, clean(one.phase), lines)
