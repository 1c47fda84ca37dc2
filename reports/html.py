"""The report as one HTML file that opens offline: light and dark, on paper too, whole without its script.

The one script and the one style sheet are ours and named by their hashes in the page's policy; texts of records are
texts, and rows that only the script shows are data, which no browser runs.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined

from day0 import __version__
from day0.reports import more_tables, tables
from day0.reports.answers import answers
from day0.reports.beside_tables import tables_beside
from day0.reports.bundle import Bundle
from day0.reports.charts.gates import draw_gates
from day0.reports.charts.marks import COLOURS, TONES, Drawing
from day0.reports.charts.numerics import draw_numerics
from day0.reports.charts.rates import draw_latency, draw_peaks, draw_rates
from day0.reports.charts.roofline import draw_roofline
from day0.reports.charts.time_shares import draw_shares
from day0.reports.clean import clean
from day0.reports.figures import bytes_text, share_text
from day0.reports.glossary import glossary
from day0.reports.links import Link, linked
from day0.reports.model_check import facts, model_tables
from day0.reports.performance import speeds
from day0.reports.rowdata import PageRows
from day0.reports.summarise import summarise
from day0.reports.summary import Summary
from day0.reports.tables import Table
from day0.reports.words import CASES, SIGNS, STAGES, tone, word

__all__ = ["render_html"]


def render_html(bundle: Bundle) -> str:
    """Return the whole page."""
    summary, rows = summarise(bundle), PageRows()
    style, script = _file("report.css") + _colours(), _file("report.js")
    body = _environment(rows).get_template("report.html.j2")
    drawn = _drawings(summary, bundle)
    return body.render(
        summary=summary,
        answers=answers(summary),
        time=drawn["time"],
        errors=drawn["errors"],
        gates=drawn["gates"],
        speed=[one for name in ("roofline", "peaks", "latency", "rates") if (one := drawn[name]) is not None],
        problems=[text for stage in summary.stages if stage.status != "pass" for text in stage.problems],
        stage={stage.name: stage for stage in summary.stages},
        every_signature=more_tables.signature_table(bundle),
        every_case=more_tables.case_table(bundle),
        **_evidence(bundle),
        model=bundle.numerics.model if bundle.numerics else None,
        model_facts=facts,
        model_tables=model_tables,
        beside={one.name: tables_beside(bundle, one.name) for one in summary.beside},
        glossary=glossary(),
        tables=tables,
        more_tables=more_tables,
        words=_words(),
        rows=rows,
        style=style,
        script=script,
        style_hash=_policy_hash(style),
        script_hash=_policy_hash(script),
        version=__version__,
    )


def _drawings(summary: Summary, bundle: Bundle) -> dict[str, Drawing | None]:
    return {
        "time": draw_shares(summary),
        "errors": draw_numerics(summary),
        "gates": draw_gates(summary),
        "roofline": draw_roofline(summary, bundle),
        "peaks": draw_peaks(summary),
        "latency": draw_latency(speeds(bundle)),
        "rates": draw_rates(summary),
    }


def _evidence(bundle: Bundle) -> dict[str, Table | None]:
    model = bundle.trace.model
    return {
        "phases": tables.phases(bundle.trace),
        "environment": tables.pairs("Environment", "what", "version", bundle.environment),
        "hashes": tables.hashes(bundle.hashes),
        "overrides": tables.pairs("Changed config fields", "field", "value", model.overrides),
        "adapted": tables.pairs("Modules that call day0's operators", "adapter", "modules", model.adapted),
        "blocks": tables.block_table(bundle.inventory) if bundle.inventory and bundle.inventory.blocks else None,
    }


def _environment(rows: PageRows) -> Environment:
    environment = Environment(
        loader=FunctionLoader(_file),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"share": share_text, "bytes": bytes_text, "clean": clean, "word": word, "tone": tone}
    environment.filters |= {"rest": rows.add, "sign": lambda status: SIGNS[tone(status)], "linked": linked}
    environment.tests |= {"link": lambda value: isinstance(value, Link)}
    return environment


def _file(name: str) -> str:
    return (resources.files("day0.reports") / "templates" / name).read_text(encoding="utf-8")


def _colours() -> str:
    """Return a class for each colour that a chart's key has."""
    named: list[tuple[str, str]] = [*COLOURS.items(), *TONES.items()]
    return "".join(f".k-{name} {{ --key: {colour}; }}\n" for name, colour in named)


def _policy_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _words() -> str:
    """Return what the script needs to write a status as the template does: tone, sign and word."""
    statuses = sorted({*CASES, *STAGES})
    return json.dumps({status: [tone(status), SIGNS[tone(status)], word(status)] for status in statuses})
