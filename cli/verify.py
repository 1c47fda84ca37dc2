"""`day0 report verify`: recompute the evidence of a run folder, and name what does not hold together."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from day0.cli.rundir import FILES, RunFolder
from day0.cli.session import environment
from day0.cli.talk import Talk, safe
from day0.cli.verifying.beside import compare_beside
from day0.cli.verifying.found import Found, summed
from day0.cli.verifying.manifest import compare_manifest
from day0.cli.verifying.pins import compare_pins
from day0.cli.verifying.records import compare_records, read_records
from day0.codec import encode
from day0.errors import Day0Error, ExitCode
from day0.playbook import Playbook
from day0.records import Lock, VerifyReport
from day0.reports.figures import counted

__all__ = ["verify", "verify_folder"]


def verify(*, run: Path, json: bool) -> int:
    """Recompute, show, and end with 1 if anything is not as it was. Raises Day0Error where there is nothing to verify."""
    talk, folder = Talk(as_json=json), RunFolder(run)
    if not folder.file("plan.json").exists() and not any(folder.has(kind) for kind in FILES):
        raise Day0Error(str(run), "this is not a run folder: there is no record in it", hint="begin with `day0 trace`")
    with talk.busy("verify"):
        report, digests = verify_folder(folder, talk)
    _show(talk, run, report)
    if json:
        print(encode(report, inputs=digests, environment=environment()), end="")
    return int(ExitCode.GATE_FAILED if report.problems else ExitCode.OK)


def verify_folder(folder: RunFolder, talk: Talk) -> tuple[VerifyReport, dict[str, str]]:
    """Return what was found, and the hashes of the records that could be read."""
    found = Found()
    records = read_records(folder, found)
    compare_records(folder, records, found)
    plan = _plan(folder)
    if Lock in records:
        compare_pins(records[Lock].record, plan, found)
    compare_beside(folder, records, plan, found)
    _elsewhere(records[Lock].environment if Lock in records else {}, found)
    digests = {FILES[kind][0]: one.digest for kind, one in records.items() if kind in FILES}
    return summed((found, compare_manifest(folder, talk.progress))), digests


def _plan(folder: RunFolder) -> Playbook | None:
    try:
        return folder.read_plan()
    except Day0Error:
        return None  # named already, with the records


def _elsewhere(then: dict[str, str], found: Found) -> None:
    now = environment()
    changed = [f"{name} {then[name]} then, {now[name]} now" for name in now if then.get(name, now[name]) != now[name]]
    if changed:
        found.unchecked.append("what was measured, which only another check can tell; made with " + "; ".join(changed))


def _show(talk: Talk, run: Path, report: VerifyReport) -> None:
    files = counted(len({one.file for one in report.problems}), "file")
    if report.problems:
        talk.say(f"[red]{counted(len(report.problems), 'problem')}[/red] in {files} of {safe(run)}\n")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in ("file", "where", "what"):
            table.add_column(name, overflow="fold")
        for one in report.problems:
            table.add_row(safe(one.file), safe(one.field), safe(one.what))
        talk.out.print(table)
    else:
        talk.say(f"[green]the evidence of {safe(run)} holds together[/green]")
    talk.say("\nrecomputed:")
    for what, count in report.checked.items():
        talk.say(f"  {count:,} {safe(what)}")
    if report.unchecked:
        talk.say("could not be checked:")
        for text in report.unchecked:
            talk.say(f"  {safe(text)}")
