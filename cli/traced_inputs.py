"""`day0 export-inputs`, and what an imported text says beside its calls."""

from __future__ import annotations

import json as jsonlib
import sys
from collections import defaultdict
from pathlib import Path

from rich.markup import escape

from day0.analyzers.traced_inputs.exporting import Exported, export_trace
from day0.cli.failures import clean
from day0.cli.rundir import RunFolder, write_atomically
from day0.cli.talk import Talk
from day0.errors import Day0Error, ExitCode
from day0.records import ImportedText, Trace

__all__ = ["export_inputs", "show_imported"]

TOP = 15
"""Reasons on the terminal; `--json` has all of them."""


def export_inputs(*, run: Path, out: Path | None, extended: bool, force: bool, json: bool) -> int:
    """Write the trace of a run folder as text: into a file, else on stdout with all talk on stderr."""
    trace = RunFolder(run).need(Trace).record
    made = export_trace(trace, extended=extended)
    if not made.signatures:
        raise Day0Error(str(run), "the trace has no call that the text could hold", hint="see --extended")
    talk = Talk(as_json=json or out is None)
    if out is not None:
        _write(out, made.text, force=force)
    elif not json:
        sys.stdout.write(made.text)
    _say(talk, trace, made, out)
    if json:
        print(jsonlib.dumps(_facts(made, out), indent=1))
    return int(ExitCode.OK)


def _write(out: Path, text: str, *, force: bool) -> None:
    if out.is_dir() or (out.exists() and not out.is_file()):
        raise Day0Error(f"--out {out}", "this is a folder, a device or a pipe", hint="name a file, or leave --out away")
    if not out.parent.is_dir():
        raise Day0Error(f"--out {out}", "there is no such folder", hint=f"make it with `mkdir -p {out.parent}`")
    if out.exists() and not force and out.read_bytes() != text.encode():
        raise Day0Error(f"--out {out}", "this file is there and says something else", hint="overwrite it with --force")
    write_atomically(out, text)


def _say(talk: Talk, trace: Trace, made: Exported, out: Path | None) -> None:
    where = f" to {out}" if out else ""
    talk.say(escape(clean(f"{made.operators} operators with {made.signatures:,} signatures{where}")))
    if trace.imported is not None:
        text = f"as imported from {trace.imported.file}, byte for byte; {made.kept_lines} calls in their own spelling"
        talk.say(escape(clean(text)))
    if made.losses:
        talk.say("\nnot in the text, since it has no place for it:")
    for what, count in sorted(made.losses.items(), key=lambda item: (-item[1], item[0])):
        talk.say(f"  {count:>6,} × {what}")
    reasons: dict[str, int] = defaultdict(int)
    for reason in made.left_out.values():
        reasons[reason] += 1
    for reason, count in sorted(reasons.items()):
        talk.say(f"[yellow]left out {count} signatures[/yellow]: {escape(clean(reason))}; --extended writes them")


def _facts(made: Exported, out: Path | None) -> dict[str, object]:
    return {
        "file": str(out) if out else None,
        "operators": made.operators,
        "signatures": made.signatures,
        "kept_lines": made.kept_lines,
        "losses": made.losses,
        "left_out": made.left_out,
        **({} if out else {"text": made.text}),
    }


def show_imported(talk: Talk, imported: ImportedText) -> None:
    """Say which lines of a text are not in the trace, and why."""
    refused = [(number, line) for number, line in enumerate(imported.lines, start=1) if line.refused]
    if not refused:
        return
    calls = sum(1 for line in imported.lines if line.entry) + len(refused)
    talk.say(f"\n[yellow]{len(refused):,} of {calls:,} calls are in the text and not in the trace[/yellow]:")
    groups: dict[str, list[int]] = defaultdict(list)
    for number, line in refused:
        groups[line.refused].append(number)
    for reason, numbers in list(groups.items())[:TOP]:
        more = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
        talk.say(f"  line {numbers[0]}{more}: {escape(clean(reason))}")
    if len(groups) > TOP:
        talk.say(f"  and {len(groups) - TOP} more reasons in the record")
