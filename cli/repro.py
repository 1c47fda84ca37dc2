"""`day0 repro`: one failed case, run again in a worker."""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from day0.analyzers.checking.check import to_result
from day0.analyzers.checking.pool import Job, Pool, starter
from day0.analyzers.checking.reproducer import Reproducer, changed_files, present_files, read, with_present_sources
from day0.analyzers.checking.setting import load
from day0.cli.show_check import case_lines
from day0.cli.talk import Talk, safe
from day0.errors import ExitCode
from day0.records import CaseResult
from day0.reference_ops.torch_ops import register_operators

__all__ = ["repro"]


def repro(*, folder: Path, load: list[Path], case_timeout: float | None, json: bool) -> int:
    """Say whether the case still fails, and whether it does so in the same way."""
    talk = Talk(as_json=json)
    register_operators()
    about = read(folder)
    files = tuple(one.resolve() for one in load) or present_files(folder, about)
    for path in files:
        talk.note(f"runs the code of {path}")
    with talk.busy("repro"):
        result, notes = _run(folder, about, files, case_timeout)
    for note in (*(() if load else changed_files(about)), *notes):
        talk.note(note)
    _show(talk, about.result, result)
    if json:
        print(result.model_dump_json(indent=1))
    return int(ExitCode.GATE_FAILED if result.failed else ExitCode.OK)


def _run(
    folder: Path, about: Reproducer, files: tuple[Path, ...], case_timeout: float | None
) -> tuple[CaseResult, tuple[str, ...]]:
    setting, notes = with_present_sources(about, files)
    if case_timeout is not None:
        plan = setting.plan.model_copy(update={"case_timeout_s": case_timeout})
        setting = setting.model_copy(update={"plan": plan})
    loaded = load(setting)
    case = about.made_case(str(folder))
    owner = next((str(one.identity) for one in setting.lock.entries if case.signature_id in one.signatures), "native")
    with (
        _planting(about.plants),
        tempfile.TemporaryDirectory(prefix="day0-repro-") as place,
        Pool(starter(loaded, setting), Path(place) / "work", loaded.limits) as pool,
    ):
        answer = pool.ask(Job(question={"reproducer": str(folder.resolve())}, name=case.key))
        return to_result(answer, case, owner), (*notes, *pool.notes)


def _planting(names: tuple[str, ...]) -> AbstractContextManager[object]:
    if not names:
        return nullcontext()
    from day0.devices.faults.load import planted

    return planted(*names)


def _show(talk: Talk, before: CaseResult, now: CaseResult) -> None:
    word = "[red]still fails[/red]" if now.failed else "[green]passes now[/green]"
    facts = ("status", "rule", "reason")
    same = all(getattr(before, name) == getattr(now, name) for name in facts)
    how = ", in the same way" if same and now.failed else ", in another way" if now.failed else ""
    talk.say(f"{word}{how}: {safe(now.op)} {safe(now.shapes)} \\[{safe(now.regime)}] {safe(now.implementation)}")
    for line in case_lines(now):
        talk.say(f"  {safe(line)}")
    if now.failed and not same:
        talk.say(f"  [dim]the check said {safe(before.status)} by {safe(before.rule)}: {safe(before.reason)}[/dim]")
