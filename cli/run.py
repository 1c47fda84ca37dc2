"""`day0 run`: playbooks to runs, one run here, several in processes of their own."""

from __future__ import annotations

import json as jsonlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from day0.cli import show
from day0.cli.ci import CiOutputs
from day0.cli.plans import parse_set
from day0.cli.playbook_include import playbook_path
from day0.cli.playbook_matrix import PlannedRun, pick, read_playbook
from day0.cli.run_many import Setting, perform_runs
from day0.cli.run_one import Job, RunFlags, RunResult, StageLine, open_session, perform_run
from day0.cli.run_table import as_data, exit_code, show_table
from day0.cli.talk import Talk, stopwatch
from day0.cli.walk import plan_of
from day0.errors import Day0Error, ExitCode

__all__ = ["run"]


def run(
    *,
    playbooks: Sequence[Path],
    run: Path | None,
    variables: Sequence[str],
    only: Sequence[str],
    parallel: int,
    fail_fast: bool,
    dry_run: bool,
    json: bool,
    ci: bool,
    annotations: str,
    artifacts: Path | None,
    **flags: Any,
) -> int:
    """`day0 run`: all stages of every run that the playbooks ask for; `flags` are those of `RunFlags`."""
    asked = RunFlags(plain=ci, **flags)
    outputs = CiOutputs(asked=ci, annotations=annotations, artifacts=artifacts)
    outputs.refuse_what_cannot_be()
    talk = Talk(as_json=json, plain=ci)
    jobs, several = _jobs(playbooks, run, variables, only, asked)
    if dry_run:
        return _dry_run(jobs, asked, talk, json=json)
    if not several:
        return _one(jobs[0], asked, talk, outputs, json=json)
    setting = Setting(flags=asked, parallel=parallel, fail_fast=fail_fast, as_json=json, width=talk.out.width)
    with outputs.around(talk):
        results, interrupted = perform_runs(jobs, setting, talk)
        show_table(talk, results)
    outputs.write(results, talk)
    if json:
        print(jsonlib.dumps(as_data(results), indent=1))
    return exit_code(results, interrupted=interrupted)


def _one(job: Job, flags: RunFlags, talk: Talk, ci: CiOutputs, *, json: bool) -> int:
    """Perform a run in this process and print its report with `--json`."""
    lines: list[StageLine] = []
    with stopwatch() as seconds:
        try:
            with ci.around(talk):
                code = perform_run(job, flags, talk, lines.append)
        except Day0Error as error:
            # A pipeline keeps what there is.
            ci.write([_result(job, int(error.exit_code), lines, note=f"{error.where}: {error.what}")], talk)
            raise
    ci.write([_result(job, code, lines, seconds=seconds[0])], talk)
    if json:
        print((job.folder / "report" / "report.json").read_text(encoding="utf-8"), end="")
    return code


def _result(job: Job, code: int, lines: Sequence[StageLine], *, seconds: float = 0.0, note: str = "") -> RunResult:
    return RunResult(
        name=job.name,
        playbook=str(job.run.playbook),
        folder=str(job.folder),
        code=code,
        seconds=round(seconds, 3),
        stages=tuple(lines),
        note=note,
    )


def _jobs(
    playbooks: Sequence[Path], folder: Path | None, variables: Sequence[str], only: Sequence[str], flags: RunFlags
) -> tuple[list[Job], bool]:
    """Return the runs with their folders, and whether they are several: by their form, not by what `--only` leaves."""
    given = dict(parse_set(text, flag="--var", example="device=sim") for text in variables)
    read = [(path, read_playbook(path, given)) for path in map(playbook_path, playbooks)]
    found = [run for _, runs in read for run in runs]
    several = len(playbooks) > 1 or any(run.chosen for run in found)
    _refuse_equal_names(found)
    if flags.device is not None and any("device" in run.chosen for run in found):
        what = "the device is an axis of the matrix"
        raise Day0Error("--device", what, hint=f"--var device={flags.device}, or pick runs with --only")
    parent = folder if folder is not None else Path("runs")
    picked = [flags.over(one) for one in pick(found, only)]
    return [Job(run=one, folder=_folder(one, parent, folder, several=several)) for one in picked], several


def _folder(run: PlannedRun, parent: Path, asked: Path | None, *, several: bool) -> Path:
    return parent / run.name if several or asked is None else asked


def _refuse_equal_names(runs: Sequence[PlannedRun]) -> None:
    for name, count in Counter(run.name for run in runs).items():
        if count > 1:
            facts = tuple(str(run.playbook) for run in runs if run.name == name)
            hint = "give each playbook a name of its own, or run them one by one with --run"
            raise Day0Error(
                f"run '{name}'", "two playbooks have this name, and so one run folder", facts=facts, hint=hint
            )


def _dry_run(jobs: Sequence[Job], flags: RunFlags, talk: Talk, *, json: bool) -> int:
    found: list[dict[str, Any]] = []
    for job in jobs:
        session = open_session(job, flags, talk)
        show.title(talk, job.run.plan, job.run.playbook, session.folder)
        rows = plan_of(session)
        show.plan(talk, rows)
        talk.say("")
        found.append(
            {
                "name": job.name,
                "playbook": str(job.run.playbook),
                "run": str(job.folder),
                "chosen": dict(job.run.chosen),
                "stages": [asdict(row) for row in rows],
            }
        )
    if json:
        print(jsonlib.dumps({"runs": found}, indent=1))
    return int(ExitCode.OK)
