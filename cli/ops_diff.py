"""`day0 ops diff`: two locks, a lock and what is installed, or two contracts as `ops show --json` gives them."""

from __future__ import annotations

import json as jsonlib
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from day0.cli.rundir import FILES, RunFolder
from day0.cli.talk import Talk, safe
from day0.codec import decode
from day0.errors import Day0Error, ExitCode
from day0.records import Lock
from day0.registry.lock_diff import LockChange, against_installed, between_locks

__all__ = ["ops_diff"]

CONTRACT = ("version", "schema", "mathematics", "comparison", "tolerance", "attributes", "source", "samples")
"""Fields of a contract that mean something to who implements it."""

COLOURS = {"gap opened": "red", "removed": "red", "contract": "yellow", "added": "green", "gap closed": "green"}


def ops_diff(*, old: Path, new: Path | None, load: list[Path], without: list[str], json: bool) -> int:
    """Compare; exit code 1 if anything differs."""
    before = _read(old)
    after = _read(new) if new is not None else None
    if isinstance(before, Lock) and not isinstance(after, dict):
        changes = _of_locks(before, after, load, without)
    elif isinstance(before, dict) and not isinstance(after, Lock):
        changes = _of_contracts(before, after if after is not None else _contract_now(before))
    else:
        raise Day0Error("day0 ops diff", "one side is a lock and the other a contract", hint="give two of one kind")
    talk = Talk(as_json=json)
    _show(talk, changes, old, new)
    if json:
        print(jsonlib.dumps({"same": not changes, "changes": [asdict(one) for one in changes]}, indent=1))
    return int(ExitCode.GATE_FAILED if changes else ExitCode.OK)


def _of_locks(before: Lock, after: Lock | None, load: list[Path], without: list[str]) -> tuple[LockChange, ...]:
    if after is not None:
        return between_locks(before, after)
    from day0.registry.collect import collect

    return against_installed(before, collect(tuple(load), without=tuple(without)))


def _of_contracts(before: dict[str, Any], after: dict[str, Any]) -> tuple[LockChange, ...]:
    if before["name"] != after["name"]:
        raise Day0Error(
            "day0 ops diff",
            f"two contracts are of two operators, {before['name']} and {after['name']}",
            hint="give two versions of one operator",
        )
    return tuple(
        LockChange(what="contract", operator=before["name"], before=_text(was), after=_text(now), why=f"{name} differs")
        for name in CONTRACT
        if (was := before.get(name)) != (now := after.get(name))
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else jsonlib.dumps(value)


def _contract_now(before: dict[str, Any]) -> dict[str, Any]:
    from day0.cli.ops import contract_facts
    from day0.reference_ops.load import load_operator

    return contract_facts(load_operator(before["name"]))


def _read(path: Path) -> Lock | dict[str, Any]:
    """Read a lock, from a run folder or a file, or the contract in a file. Raises Day0Error for anything else."""
    if path.is_dir():
        return RunFolder(path).need(Lock).record
    text = RunFolder(path.parent).read_text(path.name)
    hint = f"give a run folder, its {FILES[Lock][1]}, or what `day0 ops show OPERATOR --json` prints"
    if text is None:
        raise Day0Error(str(path), "there is no such run folder or lock", hint=hint)
    try:
        document = jsonlib.loads(text)
    except (ValueError, RecursionError):
        raise Day0Error(str(path), "this is no lock, or it is cut off", hint=hint) from None
    if isinstance(document, dict) and isinstance(document.get("name"), str) and "mathematics" in document:
        return document
    if not isinstance(document, dict) or not str(document.get("schema", "")).startswith("day0.lock/"):
        raise Day0Error(str(path), "this is neither a lock nor a contract", hint=hint)
    return decode(Lock, text, where=str(path), remake="day0 register --force").record


def _show(talk: Talk, changes: tuple[LockChange, ...], old: Path, new: Path | None) -> None:
    other = str(new) if new is not None else "what is installed"
    if not changes:
        talk.say(safe(f"{old} and {other} say the same"))
        return
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in changes:
        colour = COLOURS.get(one.what, "cyan")
        table.add_row(f"[{colour}]{one.what}[/{colour}]", safe("\n".join(_lines(one))))
    talk.out.print(table)
    talk.say(safe(f"\n{len(changes)} difference{'' if len(changes) == 1 else 's'} between {old} and {other}"))


def _lines(one: LockChange) -> list[str]:
    dtypes = ", ".join(name if count == 1 else f"{count} × {name}" for name, count in Counter(one.dtypes).items())
    lines = [f"{one.operator} ({dtypes})" if dtypes else one.operator]
    lines += [f"- {one.before}"] if one.before else []
    lines += [f"+ {one.after}"] if one.after else []
    return [*lines, one.why] if one.why else lines
