"""The model level of the check in a report: its tables, its tests for JUnit, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from day0.records import LogitsResult, ModelCheck, ModuleResult, NumericsReport, WaysResult
from day0.reports.bundle import Bundle
from day0.reports.clean import clean
from day0.reports.figures import error_text
from day0.reports.summary import Action
from day0.reports.tables import ROWS, Column, Kind, Table

__all__ = ["ModelTest", "facts", "judged", "model_actions", "model_problems", "model_tables", "model_tests"]

NEAREST = 12
"""Modules that pass are shown when they came nearest to their limit; growth is shown for as many layers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelTest:
    """One part of the model level, as a test."""

    name: str
    passed: bool
    skipped: bool
    message: str


def judged(numerics: NumericsReport | None) -> bool:
    """Say whether a report judged a whole model."""
    return numerics is not None and numerics.model is not None and numerics.model.status != "skipped"


def model_problems(numerics: NumericsReport) -> tuple[str, ...]:
    """Return why the model level failed, if it did."""
    model = numerics.model
    return (f"model: {clean(model.reason)}",) if model is not None and model.status == "fail" else ()


def model_actions(bundle: Bundle) -> list[Action]:
    """Return what to do about a model that failed although none of its operators need have."""
    model = bundle.numerics.model if bundle.numerics else None
    if model is None or model.status != "fail":
        return []
    what = f"Repair {model.first_divergent}" if model.first_divergent else "Repair the model on the device"
    command = bundle.command("check", "--level", "model", "--force")
    return [Action(kind="repair", what=what, why=model.reason, command=command, share=0.0, blocking=True)]


def facts(model: ModelCheck) -> list[str]:
    """Return what the model level says in sentences, the verdict first."""
    lines = [f"{model.status}: {model.reason}" if model.reason else model.status]
    if model.first_divergent:
        lines.append(f"first divergent module: {model.first_divergent}")
    if model.non_finite is not None:
        one = model.non_finite
        also = "; the same dtype on the CPU makes them too" if one.also_on_cpu else ""
        what = f"{one.elements} elements, in {one.phase}{also}"
        lines.append(f"first maker of NaN or infinity: {one.module} ({one.class_name}), {what}")
    if model.choices_lost:
        lines.append("choices were made by other operators than in the golden and could not be followed")
    elif model.choices:
        lines.append(
            f"{model.choices_moved} of {model.choices} rows of experts or tokens were near ties and fell otherwise, "
            f"{model.choices_wrong} were wrong"
        )
    return [clean(line) for line in (*lines, *model.notes)]


def model_tables(model: ModelCheck) -> tuple[Table, ...]:
    """Return modules that fail, else those nearest to their limit; the growth of the error; phases; logits."""
    bad = [one for one in model.modules if "fail" in (one.fresh.status, one.cumulative.status)]
    near = sorted(model.modules, key=_nearness, reverse=True)
    found = (
        _modules("Modules that fail, in the order of the pass", bad),
        _modules("Modules nearest to their limit", [] if bad else near[:NEAREST]),
        _growth(model),
        _ways(model.ways),
        _logits(model.logits),
    )
    return tuple(table for table in found if table.rows)


def model_tests(model: ModelCheck) -> Iterator[ModelTest]:
    """Yield one test for the modules together, and one for each other part."""
    if model.status == "skipped":
        yield ModelTest(name="model", passed=False, skipped=True, message=clean(model.reason))
        return
    others: list[WaysResult | LogitsResult] = [*model.ways, *model.logits]
    alone = model.status == "fail" and not any(one.status == "fail" for one in others)
    wrong = bool(model.first_divergent or alone or model.choices_wrong)
    yield ModelTest(name="modules", passed=not wrong, skipped=False, message=clean(model.reason) if wrong else "")
    for way in model.ways:
        skipped = way.status == "skipped"
        yield ModelTest(name=way.name, passed=way.status != "fail", skipped=skipped, message=clean(way.reason))
    for one in model.logits:
        name = f"{one.decoding} decoding"
        yield ModelTest(name=name, passed=one.status == "pass", skipped=False, message=clean(one.reason))


def _nearness(one: ModuleResult) -> float:
    return one.fresh.error / one.fresh.limit if one.fresh.limit else 0.0


def _modules(caption: str, rows: list[ModuleResult]) -> Table:
    def cells(one: ModuleResult) -> tuple[str | tuple[str, ...], ...]:
        status = one.fresh.status if one.fresh.status != "skipped" else one.cumulative.status
        figures = (one.fresh.error, one.fresh.yardstick, one.fresh.limit, one.cumulative.error)
        why = tuple(clean(part.reason) for part in (one.fresh, one.cumulative) if part.status == "fail")
        name = clean(one.module or "(model)")
        return (name, clean(one.class_name), clean(one.phase), status, *map(error_text, figures), why)

    kinds: tuple[tuple[str, Kind], ...] = (
        ("module", "code"), ("class", "code"), ("in", "text"), ("status", "status"), ("own error", "number"),
        ("dtype's own", "number"), ("limit", "number"), ("built up", "number"), ("why", "notes"),
    )  # fmt: skip
    return _table(caption, kinds, [cells(one) for one in rows])


def _growth(model: ModelCheck) -> Table:
    """What has built up behind each module that stands for a layer: those with the fewest dots that are called in a row."""
    layers = [one for one in model.modules if one.fresh.status != "skipped" and _is_layer(one)]
    rows = [
        (clean(one.module), clean(one.phase), *map(error_text, (one.cumulative.error, one.cumulative.yardstick)))
        for one in layers
    ]
    kinds: tuple[tuple[str, Kind], ...] = (
        ("layer", "code"), ("in", "text"), ("built up", "number"), ("on the CPU", "number"),
    )  # fmt: skip
    return _table("How the error grows from layer to layer", kinds, rows)


def _is_layer(one: ModuleResult) -> bool:
    return one.module.rpartition(".")[2].isdecimal() and not any(
        part.isdecimal() for part in one.module.split(".")[:-1]
    )


def _ways(ways: tuple[WaysResult, ...]) -> Table:
    rows = [
        (
            clean(one.name), one.status, *map(error_text, (one.difference, one.yardstick, one.limit)),
            f"{one.flips} of {one.positions}", clean(one.reason),
        )
        for one in ways
    ]  # fmt: skip
    kinds: tuple[tuple[str, Kind], ...] = (
        ("two ways to the same logits", "text"), ("status", "status"), ("apart", "number"), ("on the CPU", "number"),
        ("limit", "number"), ("other best token", "number"), ("why", "text"),
    )  # fmt: skip
    return _table("Two ways to the same logits", kinds, rows)


def _logits(logits: tuple[LogitsResult, ...]) -> Table:
    rows = [
        (
            f"{one.decoding}, seed {one.seed}", one.status, *map(error_text, (one.kl_mean, one.kl_mean_cpu, one.kl_limit)),
            f"{one.overlap:.0%}", "none" if one.first_divergent is None else str(one.first_divergent), clean(one.reason),
        )
        for one in logits
    ]  # fmt: skip
    kinds: tuple[tuple[str, Kind], ...] = (
        ("decoding", "text"), ("status", "status"), ("KL", "number"), ("on the CPU", "number"), ("limit", "number"),
        ("best 5 shared", "number"), ("first other token", "number"), ("why", "text"),
    )  # fmt: skip
    return _table("Logits with the history that the golden chose", kinds, rows)


def _table(
    caption: str, columns: tuple[tuple[str, Kind], ...], rows: Sequence[tuple[str | tuple[str, ...], ...]]
) -> Table:
    left = len(rows) - ROWS
    return Table(
        caption=caption,
        columns=tuple(Column(name=name, kind=kind) for name, kind in columns),
        rows=tuple(rows[:ROWS]),
        more=f"and {left:,} more in numerics.json" if left > 0 else "",
    )
