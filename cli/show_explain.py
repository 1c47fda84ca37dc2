"""Why a lock holds what it holds, for people."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from day0.cli.failures import clean
from day0.cli.talk import Talk

if TYPE_CHECKING:
    from day0.cli.explain import Explained
    from day0.records import Lock

__all__ = ["explained"]

COLOURS = {"chosen": "green", "comes later": "dim", "refused": "yellow"}


def _safe(text: object) -> str:
    return escape(clean(str(text)))


def explained(talk: Talk, lock: Lock, found: Sequence[Explained]) -> None:
    """Each operator with its candidates in the order in which they were tried."""
    decisions = "1 decision" if len(found) == 1 else f"{len(found)} decisions"
    talk.say(f"lock for {_safe(lock.device)}, namespace {_safe(lock.namespace)}: {decisions}")
    for one in found:
        outcome = f"{_safe(one.chosen)} ({_safe(one.kind)})" if one.chosen else "[red]nothing[/red]"
        calls = "1 signature" if one.signatures == 1 else f"{one.signatures} signatures"
        dtypes = _counted(one.dtypes) or "no tensors"
        talk.say(f"\n[bold]{_safe(one.operator)}[/bold]  [dim]{_safe(dtypes)}; {calls}[/dim]\n  → {outcome}")
        talk.out.print(Padding(_candidates(one), (0, 0, 0, 2)))
        if one.why:
            talk.out.print(Padding(f"[yellow]{_safe(one.why)}[/yellow]", (0, 0, 0, 2)))


def _counted(dtypes: Sequence[str]) -> str:
    """Return `bfloat16 × 5, int32` for a long tuple of dtypes."""
    groups = [(name, len(list(many))) for name, many in itertools.groupby(dtypes)]
    return ", ".join(name if count == 1 else f"{name} × {count}" for name, count in groups)


def _candidates(one: Explained) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=36)
    table.add_column(overflow="fold")
    for number, candidate in enumerate(one.candidates, 1):
        colour = COLOURS[candidate.outcome]
        outcome = f"[{colour}]{candidate.outcome}[/{colour}]"
        table.add_row(str(number), outcome, _safe(candidate.name), _safe(candidate.reason))
    return table
