"""What a pipeline gets from `day0 run`: a job summary, annotations, a folder of artifacts. Verdicts never depend on it."""

from __future__ import annotations

import json as jsonlib
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from day0.cli.pipelines import SUMMARY_FILE, commands_stopped
from day0.cli.run_one import RunResult
from day0.cli.run_table import as_data, table_rows
from day0.cli.rundir import write_atomically
from day0.cli.talk import Talk
from day0.errors import Day0Error
from day0.reports.annotations import github_failure
from day0.reports.clean import clean
from day0.reports.mdtext import prose, table_lines

__all__ = ["CiOutputs"]

MAX_SUMMARY_BYTES = 900_000
"""GitHub drops a step's summary that is over 1 MiB."""
_FILES = ("plan.json", "timing.json", "ops.lock")
_FOLDERS = ("evidence", "repro")


@dataclass(frozen=True, kw_only=True, slots=True)
class CiOutputs:
    """What is asked for beside the run folders."""

    asked: bool = False
    """`--ci`: neither colours nor progress, and a job summary where the pipeline takes one."""
    annotations: str = ""
    """`github`: workflow commands on stdout."""
    artifacts: Path | None = None

    def refuse_what_cannot_be(self) -> None:
        """Raise Day0Error before anything runs: an unknown form, or a folder that cannot be written to."""
        if self.annotations not in ("", "github"):
            what = f"'{self.annotations}' is not known"
            raise Day0Error("--annotations", what, hint="use github; GitLab reads gitlab.json among the artifacts")
        if self.artifacts is None:
            return
        try:
            self.artifacts.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"cannot be used as a folder: {error.strerror}"
            raise Day0Error(f"--artifacts {self.artifacts}", what, hint="name another folder") from None

    def around(self, talk: Talk) -> AbstractContextManager[None]:
        """Keep GitHub from obeying what is printed meanwhile, where annotations are asked for."""
        return commands_stopped(as_json=talk.as_json) if self.annotations else nullcontext()

    def write(self, results: Sequence[RunResult], talk: Talk) -> None:
        """Write everything that was asked for, of each run what there is."""
        if self.artifacts is not None:
            _collect(self.artifacts, results)
            talk.out.print(f"artifacts: {clean(str(self.artifacts))}", markup=False, soft_wrap=True)
        if self.annotations:
            _annotate(results, to_stderr=talk.as_json)
        if self.asked and (path := os.environ.get(SUMMARY_FILE)):
            _append(Path(path), step_summary(results), talk)


def step_summary(results: Sequence[RunResult]) -> str:
    """Return the job summary in Markdown: the table of the runs, then what the report of each says in short."""
    heads, rows = table_rows(results)
    cells = [[prose(clean(cell)) for cell in row] for row in rows]
    parts = ["\n".join(["## day0", "", *table_lines(heads, cells, [head == "time" for head in heads])])]
    parts += [f"{prose(clean(one.name))}: {prose(clean(one.note))}" for one in results if one.note]
    reports = (Path(one.folder) / "report" / "summary.md" for one in results if _reported(one))
    parts += [text.strip() for path in reports if (text := _read(path))]
    kept: list[str] = []
    for part in parts:
        if sum(len(one.encode()) for one in kept) + len(part.encode()) > MAX_SUMMARY_BYTES:
            kept.append("More stands in the reports.")
            break
        kept.append(part)
    return "\n\n".join(kept) + "\n"


def _append(path: Path, text: str, talk: Talk) -> None:
    why = "it is no file" if path.exists() and not path.is_file() else ""  # a pipe would be waited for
    try:
        if not why:
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        why = str(error.strerror)
    if why:
        talk.note(f"{SUMMARY_FILE}: {path} cannot be written to ({why}); the run goes on without it")


def _annotate(results: Sequence[RunResult], *, to_stderr: bool) -> None:
    """Print workflow commands; a run without a report gets one that says so."""
    stream = sys.stderr if to_stderr else sys.stdout
    for one in results:
        text = _read(Path(one.folder) / "report" / "annotations.txt") if _reported(one) else ""
        print(
            text or github_failure(one.name, one.note or "it ended without a report"), end="", file=stream, flush=True
        )


def _reported(result: RunResult) -> bool:
    """Say whether the report is of this run: without stages it is what an earlier run left there."""
    return bool(result.stages) and not result.note


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _collect(target: Path, results: Sequence[RunResult]) -> None:
    """Copy what people look at; names do not change from run to run."""
    for one in results:
        place, folder = target / one.name, Path(one.folder)
        for name in ("report", *_FOLDERS):
            shutil.rmtree(place / name, ignore_errors=True)  # of an earlier run
        place.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            if (folder / name).is_file():
                shutil.copyfile(folder / name, place / name)
        for name in ("report", *_FOLDERS):
            if (folder / name).is_dir() and not place.resolve().is_relative_to(folder.resolve()):
                shutil.copytree(folder / name, place / name, ignore=_links, dirs_exist_ok=True)
    write_atomically(target / "summary.json", jsonlib.dumps(as_data(results), indent=1) + "\n")


def _links(folder: str, names: list[str]) -> set[str]:
    """Leave links out: they may lead anywhere."""
    return {name for name in names if (Path(folder) / name).is_symlink()}
