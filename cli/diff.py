"""`day0 diff`: two run folders or records, or two phases of one trace."""

from __future__ import annotations

import json as jsonlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from day0.analyzers.diff.change import Change, Diff, Part
from day0.analyzers.diff.load import Kind, load_kinds
from day0.analyzers.diff.phases import compare_phases
from day0.cli.failures import clean
from day0.cli.rundir import BESIDE, FILES, MAX_RECORD_BYTES, RunFolder, write_atomically
from day0.cli.talk import Talk
from day0.codec import SCHEMAS, Envelope, decode
from day0.errors import Day0Error, ExitCode
from day0.records import CanaryReport, Inventory, Lock, NumericsReport, RanksReport, Record, Trace
from day0.reports.difference import diff_html, diff_markdown

__all__ = ["diff"]

TOP = 12
"""Rows of one table; `--all` shows every change."""

MARKS = {"worse": "[red]worse[/red]", "better": "[green]better[/green]", "other": ""}

PLACES = {**FILES, **BESIDE}

Side = dict[type[Record], Envelope[Any]]


def diff(
    *,
    old: Path,
    new: Path | None,
    phases: tuple[str, str] | None,
    only: list[str],
    gate: bool | None,
    everything: bool,
    json: bool,
    form: str = "terminal",
    output: Path | None = None,
) -> int:
    """Compare, say the worst first. Exit code 1 on a regression; `gate` says always or never."""
    kinds = _choose(only)
    _refuse_form(form, output, json=json)
    made, alike = (_phases(old, new, phases), False) if phases else _sides(old, new, kinds)
    talk = Talk(as_json=json or form != "terminal")
    if form == "terminal":
        _show(talk, made, everything=everything)
    else:
        talk.say(f"{_headline(made)}  {_safe(made.old)} → {_safe(made.new)}")
    if json:
        # Through text: only there pydantic writes infinity as a word, for which JSON has no number.
        print(jsonlib.dumps({"schema": "day0.diff/1", **jsonlib.loads(made.model_dump_json())}, indent=1))
    if form != "terminal":
        _write(FORMS[form](made), output)
    failed = made.count("worse") > 0 and (alike if gate is None else gate)
    return int(ExitCode.GATE_FAILED if failed else ExitCode.OK)


FORMS: dict[str, Callable[[Diff], str]] = {"markdown": diff_markdown, "html": diff_html}


def _refuse_form(form: str, output: Path | None, *, json: bool) -> None:
    if form not in ("terminal", *FORMS):
        raise Day0Error(f"--format {form}", "there is no such format", hint="use terminal, markdown or html")
    if json and form != "terminal":
        raise Day0Error(f"--format {form}", "--json is a format of its own", hint="leave one of the two away")
    if output is not None and form == "terminal":
        raise Day0Error(f"-o {output}", "the terminal's text goes to no file", hint="add --format markdown or html")


def _write(text: str, output: Path | None) -> None:
    if output is None:
        print(text, end="")
        return
    try:
        write_atomically(output, text)
    except OSError as error:
        raise Day0Error(f"-o {output}", f"cannot be written: {error.strerror}", hint="name another place") from None


def _choose(only: list[str]) -> tuple[Kind, ...]:
    kinds = load_kinds()
    names = tuple(one.name for one in kinds)
    for name in only:
        if name not in names:
            raise Day0Error(f"--only {name}", "there is no such kind of record", hint=f"use one of: {', '.join(names)}")
    return tuple(one for one in kinds if not only or one.name in only)


def _phases(old: Path, new: Path | None, names: tuple[str, str]) -> Diff:
    if new is not None:
        raise Day0Error(
            "--phases", "two phases of one trace are compared", hint=f"name one run: day0 diff {old} --phases …"
        )
    found = _read(old).get(Trace)
    if found is None:
        raise Day0Error(str(old), "there is no trace in it", hint="make one with `day0 trace`")
    return Diff(old=names[0], new=names[1], parts=(compare_phases(found.record, *names),))


def _sides(old: Path, new: Path | None, kinds: tuple[Kind, ...]) -> tuple[Diff, bool]:
    """Return what differs, and whether both sides are of one model on one device: only there worse is a regression."""
    if new is None:
        raise Day0Error(
            "day0 diff", "a second run or record is missing", hint=f"day0 diff {old} OTHER, or --phases A B"
        )
    a, b = _read(old), _read(new)
    shared = [kind for kind in kinds if kind.record in a and kind.record in b]
    if not shared:
        facts = tuple(f"{path} has {_names(side) or 'no record'}" for path, side in ((old, a), (new, b)))
        raise Day0Error("day0 diff", "the two sides have no kind of record in common", facts=facts, hint="see --only")
    parts = tuple(kind.compare(a[kind.record].record, b[kind.record].record) for kind in shared)
    records = [one.record for one in shared]
    made = Diff(old=str(old), new=str(new), warnings=_warnings(a, b, records), parts=parts)
    return made, _subject(a) == _subject(b)


def _subject(side: Side) -> tuple[object, ...]:
    """Return model and device as far as a side knows them."""
    trace, others = side.get(Trace), [one.record for one in side.values() if not isinstance(one.record, Trace)]
    model = trace.record.model if trace else None
    named = (model.source, model.overrides, model.dtype, model.adapted) if model else None
    return named, tuple(sorted({device for one in others if (device := _device(one))}))


def _names(side: Side) -> str:
    return ", ".join(name for kind, (_, name) in PLACES.items() if kind in side)


def _read(path: Path) -> Side:
    """Read all records of a run folder, or the one record in a file. Raises Day0Error if there is none."""
    if path.is_dir():
        folder = RunFolder(path)
        found = {kind: envelope for kind in PLACES if (envelope := folder.read(kind)) is not None}
        if not found:
            raise Day0Error(
                str(path), "there is no record in this folder", hint="begin with `day0 trace MODEL --run DIR`"
            )
        return found
    return _read_file(path)


def _read_file(path: Path) -> Side:
    if not path.exists():
        raise Day0Error(str(path), "there is no such run folder or record", hint="give a run folder or its trace.json")
    text = RunFolder(path.parent).read_text(path.name) if path.is_file() else None
    if text is None or len(text) > MAX_RECORD_BYTES:
        raise Day0Error(str(path), "this is no record", hint="give a run folder, or a file such as its trace.json")
    try:
        document = jsonlib.loads(text)
        name = str(document["schema"]).partition("/")[0]
    except (ValueError, KeyError, TypeError, RecursionError):
        hint = "give a run folder, or a file such as its trace.json"
        raise Day0Error(str(path), "this is no record of day0, or it is cut off", hint=hint) from None
    for kind, (schema, _) in SCHEMAS.items():
        if schema == name and kind in PLACES:
            return {kind: decode(kind, text, where=str(path), remake=f"day0 {PLACES[kind][0]}")}
    known = ", ".join(schema for schema, _ in SCHEMAS.values())
    raise Day0Error(str(path), f"records of schema '{clean(name)[:60]}' are not compared", hint=f"known: {known}")


# ------------------------------------------------------------------------------------------ environments


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fact:
    name: str
    matters: str


_FACTS = (
    _Fact(name="torch", matters="operators and their kernels may differ"),
    _Fact(name="transformers", matters="the model's code may differ"),
    _Fact(name="platform", matters="times and errors are those of another machine"),
    _Fact(name="python", matters=""),
    _Fact(name="day0", matters="records were made by another day0"),
    _Fact(name="planted", matters="a fault was planted on one side"),
)


def _warnings(old: Side, new: Side, kinds: list[type[Record]]) -> tuple[str, ...]:
    """Say in which ways the sides were made elsewhere: figures of one environment have to be measured again in another."""
    found: dict[str, None] = {}
    for kind in kinds:
        a, b = old[kind], new[kind]
        for fact in _FACTS:
            before, after = (one.environment.get(fact.name, "none") for one in (a, b))
            if before != after:
                found[f"{fact.name} {before} → {after}" + (f": {fact.matters}" if fact.matters else "")] = None
        before, after = _device(a.record), _device(b.record)
        if before != after:
            found[f"device {before} → {after}: verdicts and figures are those of another device"] = None
    for side, name in ((old, "before"), (new, "after")):
        found.update(dict.fromkeys(f"{name}: {text}" for text in _stale(side)))
    return tuple(found)


def _stale(side: Side) -> list[str]:
    """Say which records of one folder were made from others than those that lie beside them."""
    digests = {PLACES[kind][0]: envelope.digest for kind, envelope in side.items()}
    return [
        f"{PLACES[kind][1]} was made from another {stage}: run `day0 run` or `day0 {PLACES[kind][0]}` again"
        for kind, envelope in side.items()
        for stage, digest in envelope.inputs.items()
        if digests.get(stage, digest) != digest
    ]


def _device(record: Record) -> str:
    devices = (Inventory, Lock, NumericsReport, CanaryReport, RanksReport, Trace)
    return record.device if isinstance(record, devices) else ""


# ------------------------------------------------------------------------------------------------ screen


def _show(talk: Talk, made: Diff, *, everything: bool) -> None:
    talk.say(f"{_headline(made)}  {_safe(made.old)} → {_safe(made.new)}")
    for warning in made.warnings:
        talk.say(f"[yellow]careful[/yellow]: {_safe(warning)}")
    # What got worse comes first, wherever it stands.
    parts = sorted(made.parts, key=lambda part: not any(one.effect == "worse" for one in part.changes))
    for part in parts:
        _show_part(talk, part, everything=everything)


def _headline(made: Diff) -> str:
    """Return how many changes there are: by effect where any is worse or better, else by kind."""
    worse, better, other = (made.count(effect) for effect in ("worse", "better", "other"))
    if worse or better:
        colour = "red" if worse else "green"
        return f"[{colour}]{worse} worse[/{colour}], {better} better, {other} other changes"
    kinds = Counter(one.kind for part in made.parts for one in part.changes)
    if not kinds:
        return "[green]no difference[/green]"
    return "nothing worse; " + ", ".join(f"{_safe(kind)} {count}" for kind, count in kinds.items())


def _show_part(talk: Talk, part: Part, *, everything: bool) -> None:
    talk.say(f"\n[bold]{_safe(part.name)}[/bold]  {_safe(part.summary)}; {part.same:,} as they were")
    groups: dict[tuple[str, str], list[Change]] = {}
    for one in part.changes:
        groups.setdefault((one.effect, one.kind), []).append(one)
    for (effect, kind), members in groups.items():
        head = f"{MARKS[effect]} {kind}".strip()
        alike = [[one] for one in members] if everything else _alike(members)
        rows = alike if everything else alike[:TOP]
        hidden = len(members) - sum(len(row) for row in rows)
        more = f", {hidden} not shown; --all shows them" if hidden else ""
        talk.say(f"\n{head} ({len(members)}{more})")
        _show_rows(talk, rows)


def _alike(members: list[Change]) -> list[list[Change]]:
    """Put changes of one operator from the same to the same together, such as fifty cases that fail now."""
    groups: dict[tuple[str, ...], list[Change]] = {}
    for number, one in enumerate(members):
        # Figures differ in every row; only words are the same.
        alone = (str(number),) if any(text[-1:].isdigit() for text in (one.old, one.new)) else ()
        groups.setdefault((one.subject, one.old, one.new, *alone), []).append(one)
    return list(groups.values())


def _show_rows(talk: Talk, rows: list[list[Change]]) -> None:
    """One line with operator, both sides and calls; below it, dimmed, where and why."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold", max_width=34)
    table.add_column(overflow="fold")
    for members in rows:
        one, calls = members[0], sum(it.calls for it in members)
        times = f"{len(members)} × " if len(members) > 1 else ""
        lines = [f"{times}{_side(one)}" + (f"  [dim]{calls:,} calls[/dim]" if calls else "")]
        notes = "; ".join(text for text in (one.where, one.reason) if text)
        notes = f"first: {notes}" if notes and times else notes
        if notes:
            lines.append(f"[dim]{_safe(notes)}[/dim]")
        table.add_row(f"  {_safe(one.subject)}", "\n".join(lines))
    talk.out.print(table)


def _side(one: Change) -> str:
    if one.old and one.new:
        return f"{_safe(one.old)} [bold]→[/bold] {_safe(one.new)}"
    return _safe(one.new or one.old)


def _safe(text: object) -> str:
    return escape(clean(str(text)))
