"""`day0 ops new`: write an operator, a kernel and their tests that run at once; all of them or none."""

from __future__ import annotations

import json as jsonlib
import os
import tempfile
from pathlib import Path
from typing import get_args

from rich.markup import escape

from day0.cli.failures import clean
from day0.cli.new_files import Kind, Scaffold, is_checkout, near, plan_kernel, plan_operator
from day0.cli.talk import Talk
from day0.errors import Day0Error, ExitCode, near_names

__all__ = ["ops_new", "write_all"]


def ops_new(*, name: str, folder: Path, kind: str | None, operator: str | None, json: bool) -> int:
    """Decide what to write, refuse what is there, write it and say what to do next."""
    checkout = is_checkout(folder)
    plan = _plan(name, kind, operator, checkout=checkout)
    write_all(folder, plan.files)
    talk = Talk(as_json=json)
    paths = [str(folder / path) for path in plan.files]
    for path in paths:
        _line(talk, f"wrote {path}")
    if plan.kind == "operator" and (remark := near(name)):
        talk.note(f"operators of nearly that name exist: {remark.removeprefix('did you mean ').rstrip('?')}")
    where = "" if folder == Path() else f" (in {folder})"
    _line(talk, f"\nnext{where}:")
    for line in plan.next:
        _line(talk, f"  {line}")
    if json:
        print(jsonlib.dumps({"kind": plan.kind, "operator": plan.operator, "files": paths, "next": list(plan.next)}))
    return int(ExitCode.OK)


def _line(talk: Talk, text: str) -> None:
    """Print a path or a command, which nothing may break into lines."""
    talk.out.print(escape(clean(text)), soft_wrap=True)


def _plan(name: str, kind: str | None, operator: str | None, *, checkout: bool) -> Scaffold:
    kind = kind or ("kernel" if operator else "operator")
    kinds = get_args(Kind)
    if kind not in kinds:
        raise Day0Error("--kind", f"'{kind}' is not known", hint=near_names(kind, kinds) or f"use {' or '.join(kinds)}")
    if kind == "kernel":
        if operator is None:
            raise Day0Error("--kind kernel", "of which operator?", hint=f"day0 ops new {name} --for day0::rms_norm")
        return plan_kernel(name, operator, checkout=checkout)
    if operator is not None:
        raise Day0Error("--for", "a new operator is for no other", hint="leave --for away, or take --kind kernel")
    return plan_operator(name, checkout=checkout)


def write_all(folder: Path, files: dict[str, str]) -> None:
    """Write new files, each whole, all of them or none; nothing that exists is touched.

    Raises Day0Error where one exists or cannot be written; then no file and no folder is left behind.
    """
    if not folder.is_dir():
        raise Day0Error(str(folder), "there is no such folder", hint="make it, or name another with --dir")
    there = [path for path in files if os.path.lexists(folder / path)]
    if there:
        raise Day0Error(
            str(folder),
            f"{len(there)} of {len(files)} files exist already, and nothing is overwritten",
            facts=tuple(there),
            hint="take another name, or another folder with --dir",
        )
    made: list[Path] = []
    try:
        for path, text in files.items():
            _make_folders((folder / path).parent, made)
            _write_new(folder / path, text, made)
    except BaseException as error:
        _remove(made)
        if isinstance(error, FileExistsError):
            raise Day0Error(
                str(error.filename2 or error.filename), "it exists already", hint="take another name"
            ) from None
        if isinstance(error, OSError):
            where, what = str(error.filename or folder), f"cannot be written: {error.strerror}"
            raise Day0Error(where, what, hint="name another folder with --dir") from None
        raise


def _make_folders(folder: Path, made: list[Path]) -> None:
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir()
        made.append(one)


def _write_new(path: Path, text: str, made: list[Path]) -> None:
    """Write under another name, then give it the name in one step, which fails if somebody has it by now."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        os.link(temporary, path)
        made.append(path)
    finally:
        temporary.unlink(missing_ok=True)


def _remove(made: list[Path]) -> None:
    for path in reversed(made):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
