"""The selftest for people: what was missed, false alarms, then the table beside the usual rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from day0.cli.talk import Talk, safe

if TYPE_CHECKING:
    from day0.records import SelftestReport

__all__ = ["report"]

SHOWN = 20
"""False alarms on the terminal; the record holds all of them."""


def report(talk: Talk, found: SelftestReport) -> None:
    """Say what the check is worth."""
    from day0.analyzers.selftest.table import alarm_rows, detection_rows, how_rows

    talk.say(f"selftest on {safe(found.device)}, what is right over {found.seeds} seeds\n")
    _missed(talk, found)
    _alarms(talk, found)
    _table(talk, detection_rows(found))
    talk.say("")
    _table(talk, alarm_rows(found))
    talk.say("\nhow faults were found")
    for words, count in how_rows(found):
        talk.say(f"  {count:>4}  {words}")
    lost = sum(not one.is_found for one in found.faults)
    alarms = sum(len(one.alarms) for one in found.right)
    talk.say(f"\n{len(found.faults) - lost} of {len(found.faults)} planted faults found, {alarms} false alarms")


def _missed(talk: Talk, found: SelftestReport) -> None:
    from day0.analyzers.selftest.table import missed

    for one in missed(found):
        talk.say(f"[red]missed[/red] {safe(one.name)} ({safe(one.family)}): {safe(one.does)}")
        talk.say(f"  {safe(one.operator.reason)}; {safe(one.source.split()[0])}")
        if one.model.reason:
            talk.say(f"  models: {safe(one.model.reason)}")


def _alarms(talk: Talk, found: SelftestReport) -> None:
    alarms = [(right.subject, alarm) for right in found.right for alarm in right.alarms]
    for subject, one in alarms[:SHOWN]:
        talk.say(f"[red]false alarm[/red] {safe(subject)}: {safe(one.op)} {safe(one.shapes)}")
        talk.say(f"  {safe(one.case)}: {safe(one.status)} by {safe(one.rule)}, {safe(one.reason)}")
    if len(alarms) > SHOWN:
        talk.say(f"and {len(alarms) - SHOWN} more false alarms; --json holds all of them")


def _table(talk: Talk, rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, title in enumerate(rows[0]):
        table.add_column(safe(title), justify="right" if number else "left", overflow="fold")
    for row in rows[1:]:
        table.add_row(*map(safe, row))
    talk.out.print(table)
