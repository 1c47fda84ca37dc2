"""The report as one HTML file: no script, no network, light and dark, on paper too."""

from __future__ import annotations

from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined

from day0 import __version__
from day0.reports import tables
from day0.reports.bundle import Bundle
from day0.reports.chart import COLOURS, draw
from day0.reports.clean import clean
from day0.reports.figures import bytes_text, share_text
from day0.reports.model_check import facts, model_tables
from day0.reports.summarise import summarise
from day0.reports.words import tone, word

__all__ = ["render_html"]


def render_html(bundle: Bundle) -> str:
    """Return the whole page."""
    summary = summarise(bundle)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            summary=summary,
            chart=draw(summary),
            problems=[text for stage in summary.stages if stage.status != "pass" for text in stage.problems],
            phases=tables.phases(bundle.trace),
            environment=tables.pairs("Environment", "what", "version", bundle.environment),
            hashes=tables.pairs("Records and their hashes", "record", "hash of the body", bundle.hashes),
            overrides=tables.pairs("Changed config fields", "field", "value", bundle.trace.model.overrides),
            adapted=tables.pairs(
                "Modules that call day0's operators", "adapter", "modules", bundle.trace.model.adapted
            ),
            blocks=tables.block_table(bundle.inventory) if bundle.inventory and bundle.inventory.blocks else None,
            model=bundle.numerics.model if bundle.numerics else None,
            model_facts=facts,
            model_tables=model_tables,
            tables=tables,
            colours=COLOURS,
            version=__version__,
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"share": share_text, "bytes": bytes_text, "clean": clean, "word": word, "tone": tone}
    return environment


def _template(name: str) -> str:
    return (resources.files("day0.reports") / "templates" / name).read_text(encoding="utf-8")
