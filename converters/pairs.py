"""How exact each pair of formats is, as one line each."""

from __future__ import annotations

from dataclasses import dataclass

from day0.converters.formats.load import load_formats
from day0.converters.targets._target import Target
from day0.converters.targets.load import load_targets
from day0.converters.weight import Format

__all__ = ["Pair", "pairs"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """From one format to another."""

    source: str
    target: str
    statement: str


def pairs() -> tuple[Pair, ...]:
    """Return all pairs."""
    return tuple(
        Pair(source=form.name, target=target.name, statement=_statement(form, target))
        for form in load_formats().values()
        for target in load_targets().values()
    )


def _statement(form: Format, target: Target) -> str:
    return target.from_mx if form.mx is not None else target.from_values
