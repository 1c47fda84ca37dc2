"""Tables of every signature and every case, and those that stand beside charts."""

from __future__ import annotations

import math

from day0.records import CaseResult, InventoryEntry
from day0.reports.bundle import Bundle
from day0.reports.cases import excess
from day0.reports.clean import clean
from day0.reports.figures import bytes_text, error_text, seconds_text, share_text
from day0.reports.links import linked
from day0.reports.performance import Speed
from day0.reports.summary import Beside, OperatorError, Point, Summary, Warned
from day0.reports.tables import Cell, Table, make_table, short

__all__ = [
    "beside_table",
    "case_table",
    "error_table",
    "point_table",
    "signature_table",
    "speed_table",
    "warned_table",
]


def signature_table(bundle: Bundle) -> Table:
    """Every traced signature on the device, heaviest first."""

    def cells(one: InventoryEntry) -> tuple[Cell, ...]:
        return (
            clean(one.op),
            clean(one.shapes, limit=160),
            one.verdict,
            f"{one.calls:,}",
            share_text(one.share),
            clean(one.module, limit=80),
        )

    entries = bundle.inventory.entries if bundle.inventory else ()
    ordered = sorted(entries, key=lambda one: (-one.share, -one.calls, one.op, one.id))
    columns = "operator:code | arguments:code | verdict:code | calls:number | share:number | first in:code"
    return make_table("Every signature, heaviest first", columns, ordered, cells, file="inventory.json")


_CASE_ORDER = ("crashed", "hung", "fail", "undelegated", "xpass", "fell_back", "xfail", "pass", "skipped")


def case_table(bundle: Bundle) -> Table:
    """Every case: those that fail first, then by how near they came to their limit."""

    def cells(one: CaseResult) -> tuple[Cell, ...]:
        near = excess(one) if one.error is not None and one.limit is not None else math.nan
        return (
            clean(one.op),
            clean(one.shapes, limit=160),
            clean(one.regime, limit=60),
            one.status,
            clean(short(one.implementation), limit=80),
            error_text(one.error),
            error_text(one.yardstick),
            error_text(one.limit),
            "" if math.isnan(near) else f"{near:.2g}",
        )

    def order(one: CaseResult) -> tuple[int, float, str, str]:
        near = excess(one) if one.error is not None else 0.0
        return _CASE_ORDER.index(one.status), -near, one.op, one.case

    cases = sorted(bundle.numerics.cases if bundle.numerics else (), key=order)
    columns = (
        "operator:code | arguments:code | regime | status:status | implementation:code | error:number"
        " | dtype's own:number | limit:number | of its limit:number"
    )
    return make_table("Every case, worst first", columns, cases, cells, file="numerics.json")


def error_table(summary: Summary) -> Table:
    """The worst case of each operator; the numerics chart in figures."""

    def cells(one: OperatorError) -> tuple[Cell, ...]:
        ratio = one.error / one.yardstick if one.yardstick else math.nan
        return (
            one.op, one.status, f"{one.cases:,}", error_text(one.error), error_text(one.yardstick),
            error_text(one.limit), "" if math.isnan(ratio) else f"{ratio:.2g}", one.regime,
        )  # fmt: skip

    columns = (
        "operator:code | status:status | cases:number | error:number | dtype's own:number | limit:number"
        " | over the dtype's own:number | regime"
    )
    return make_table("Worst case of each operator", columns, summary.errors, cells, file="numerics.json")


def warned_table(summary: Summary) -> Table:
    """Warnings by operator."""

    def cells(one: Warned) -> tuple[Cell, ...]:
        return (one.op, f"{one.cases:,}", one.shapes, one.texts)

    columns = "operator:code | cases:number | first:code | warning:notes"
    return make_table("Warnings by operator", columns, summary.warned, cells, file="numerics.json")


def point_table(points: tuple[Point, ...]) -> Table:
    """What operators do in their time; the roofline in figures."""

    def cells(one: Point) -> tuple[Cell, ...]:
        intensity = f"{one.flops / one.bytes:.3g}" if one.bytes and one.flops else ""
        rate = f"{one.flops / one.seconds / 1e9:.3g}" if one.flops and one.seconds else ""
        return (
            one.op, one.how, f"{one.calls:,}", seconds_text(one.seconds), bytes_text(one.bytes), intensity, rate,
            share_text(one.bandwidth_share or 0.0), share_text(one.compute_share or 0.0),
        )  # fmt: skip

    columns = (
        "operator:code | how | calls:number | time:number | moved:number | FLOP a byte:number | GFLOP/s:number"
        " | of the bandwidth:number | of the peak rate:number"
    )
    return make_table("What operators do in their time, slowest first", columns, points, cells, file="report.json")


def speed_table(speeds: tuple[Speed, ...]) -> Table:
    """How long steps took; the latency chart in figures."""

    def cells(one: Speed) -> tuple[Cell, ...]:
        span = f"{seconds_text(one.low)} to {seconds_text(one.high)}" if one.low and one.high else ""
        return (one.source, one.name, seconds_text(one.seconds), span, f"{one.samples:,}" if one.samples else "")

    columns = "in:code | what | time:number | interval:number | samples:number"
    return make_table("How long steps took", columns, speeds, cells, file="canary.json")


def beside_table(summary: Summary) -> Table:
    """What stands beside the five stages, and what is missing there."""

    def cells(one: Beside) -> tuple[Cell, ...]:
        record = linked("record", one.file) if one.status not in ("missing", "damaged") else ""
        again = one.command if one.status in ("missing", "damaged", "stale") else ""
        return (one.title, one.status, one.headline, again, (record,) if record else ())

    columns = "what | status:status | what came out | command:code | where:notes"
    return make_table("Beside the five stages", columns, summary.beside, cells)
