"""Conversions on the screen."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from day0.cli.talk import Talk
from day0.cli.talk import safe as harmless

if TYPE_CHECKING:
    from day0.converters.convert import Step
    from day0.records import ConvertedWeight, ConvertReport

__all__ = ["checked", "done", "formats", "plan", "speed"]

MOST_WEIGHTS = 12
WORDS = {
    "exact": "exact",
    "exact_with_subnormals": "exact with subnormals",
    "bounded": "bounded",
    "refused": "refused",
}
ORDER = ("refused", "bounded", "exact_with_subnormals", "exact")


def safe(text: str) -> str:
    """Return a name from outside on one line: a second one would look as if we had said it."""
    return harmless(text.replace("\n", "\N{REPLACEMENT CHARACTER}"))


def size(count: float) -> str:
    """Return bytes for a person."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.2f} {unit}"
        count /= 1024
    return ""


def many(count: int, what: str) -> str:
    """Return a number of things."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def speed(step: Step) -> str:
    """Return the progress line."""
    rate = step.done / step.seconds if step.seconds > 0 else 0.0
    return f"{step.file}: {size(rate)}/s, {step.left:,.0f} s left"


def plan(talk: Talk, report: ConvertReport, target: str) -> None:
    """Show what would be done."""
    talk.say(f"would convert {many(len(report.weights), 'weight')} to {safe(report.parameters.to)} in {safe(target)}")
    _verdicts(talk, report)
    _weights(talk, report)
    files = Table(box=None, pad_edge=False)
    files.add_column("file", overflow="fold")
    files.add_column("bytes", justify="right", no_wrap=True)
    files.add_column("", no_wrap=True)
    for file in report.files[:MOST_WEIGHTS]:
        files.add_row(safe(file.name), f"{file.bytes:,}", file.kind)
    talk.out.print(files)
    if len(report.files) > MOST_WEIGHTS:
        talk.say(f"and {len(report.files) - MOST_WEIGHTS:,} more files")
    _end(talk, report)


def done(talk: Talk, report: ConvertReport, target: str, tier: str) -> None:
    """Show what was done."""
    talk.say(
        f"converted {many(len(report.weights), 'weight')} to {safe(report.parameters.to)} in {safe(target)} ({tier} tier)"
    )
    _verdicts(talk, report)
    if any(one.exactness != "exact" for one in report.weights):
        _weights(talk, report)
    _end(talk, report)


def _verdicts(talk: Talk, report: ConvertReport) -> None:
    groups: dict[tuple[str, str, str], list[ConvertedWeight]] = defaultdict(list)
    for one in report.weights:
        groups[one.exactness, one.source, one.target].append(one)
    table = Table(box=None, pad_edge=False)
    for name in ("verdict", "weights", "values changed", "subnormal", "from", "to"):
        table.add_column(name, justify="right" if name in ("weights", "values changed", "subnormal") else "left")
    for key in sorted(groups, key=lambda key: (ORDER.index(key[0]), key)):
        found = groups[key]
        table.add_row(
            WORDS[key[0]], f"{len(found):,}", _sum(found, "changed"), _sum(found, "subnormal"), key[1], key[2]
        )
    talk.out.print(table)
    for bound in sorted({one.bound for one in report.weights if one.bound}):
        talk.say(f"a value changes by at most {safe(bound)}")
    if nan := sum(one.nan for one in report.weights):
        talk.say(f"{nan:,} values are NaN, as they were")


def _sum(weights: list[ConvertedWeight], field: str) -> str:
    counts = [getattr(one, field) for one in weights]
    return "not counted" if any(one is None for one in counts) else f"{sum(counts):,}"


def _weights(talk: Talk, report: ConvertReport) -> None:
    """Show the weights that are worst off."""
    bad = sorted(
        (one for one in report.weights if one.exactness != "exact"),
        key=lambda one: (ORDER.index(one.exactness), -(one.changed or 0), one.name),
    )
    if not bad:
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("weight", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    table.add_column("changed", justify="right")
    for one in bad[:MOST_WEIGHTS]:
        count = "not counted" if one.changed is None else f"{one.changed:,}"
        table.add_row(safe(one.name), WORDS[one.exactness], safe(one.why) if one.why else count)
    talk.out.print(table)
    if len(bad) > MOST_WEIGHTS:
        talk.say(f"and {len(bad) - MOST_WEIGHTS:,} more; --json has them all")


def _end(talk: Talk, report: ConvertReport) -> None:
    talk.say(
        f"{size(report.source_bytes)} of weights become {size(report.bytes)}; kept as they are: {many(len(report.kept), 'tensor')}"
    )
    if report.dropped:
        talk.say(f"{len(report.dropped):,} scales of activations are left out, such as {safe(report.dropped[0])}")
    if report.left:
        more = f" and {len(report.left) - 5:,} more" if len(report.left) > 5 else ""
        talk.note(f"not taken along: {', '.join(report.left[:5])}{more}".replace("\n", " "))
    for note in report.notes:
        talk.note(note.replace("\n", " "))


def checked(talk: Talk, weights: int, values: int, tensors: int, wrong: tuple[str, ...]) -> None:
    """Show what a comparison found."""
    if not wrong:
        talk.say(
            f"compared {values:,} values of {many(weights, 'weight')} and {many(tensors, 'other tensor')}: as reported"
        )
        return
    talk.say(f"{len(wrong):,} of {weights + tensors:,} tensors are not as reported")
    for one in wrong[:MOST_WEIGHTS]:
        talk.say(f"  {safe(one)}")


def formats(talk: Talk, found: dict[str, Any]) -> None:
    """Show the lists."""
    for title, key in (
        ("reads", "formats"),
        ("writes", "targets"),
        ("maps of names", "architectures"),
        ("tiers", "tiers"),
    ):
        table = Table(
            box=None, pad_edge=False, title=title, title_justify="left", title_style="bold", show_header=False
        )
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, summary in found[key].items():
            table.add_row(name, summary)
        talk.out.print(table)
    table = Table(box=None, pad_edge=False, title="how exact", title_justify="left", title_style="bold")
    for name in ("from", "to", "is"):
        table.add_column(name, overflow="fold")
    merged: dict[tuple[str, str], list[str]] = defaultdict(list)
    for pair in found["pairs"]:
        merged[pair["target"], pair["statement"]].append(pair["source"])
    for (target, statement), sources in merged.items():
        table.add_row(", ".join(sources), target, statement)
    talk.out.print(table)
