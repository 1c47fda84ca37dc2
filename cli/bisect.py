"""`day0 check bisect`: run the user's own check with parts of the lock switched off, and name what makes it fail."""

from __future__ import annotations

import json as jsonlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from day0.analyzers.modules.bisect import Agreement, Answer, Sample, agree, bisect_sample
from day0.cli.rundir import FILES, RunFolder
from day0.cli.talk import Talk
from day0.codec import Envelope
from day0.errors import Day0Error, ExitCode
from day0.records import Inventory, Lock, LockEntry, Trace
from day0.reference_ops.torch_ops import register_operators
from day0.registry.fallback import cpu_fallback, refuse_fallback

__all__ = ["bisect"]

PLACEHOLDERS = ("{run}", "{lock}", "{seed}")
CANNOT_TELL = 125
_COPIED = tuple(FILES[kind][1] for kind in (Trace, Inventory))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trials:
    """Everything that one run of the command needs."""

    command: str
    timeout: float
    folder: RunFolder
    lock: Envelope[Lock]
    parts: tuple[int, ...]
    """Which entries of the lock can be switched off, by their place in it."""
    off: dict[int, LockEntry | None]
    """What stands in for each of them then; None: nothing, the device has a kernel of its own."""
    talk: Talk

    def run(self, on: frozenset[int], seed: int) -> Answer:
        """Run the command once with these parts on."""
        with tempfile.TemporaryDirectory(prefix="day0-bisect-") as name:
            place = RunFolder(Path(name))
            for file in _COPIED:
                if self.folder.file(file).is_file():
                    shutil.copyfile(self.folder.file(file), place.file(file))
            plan = self.folder.read_plan()
            if plan is not None:
                place.write_plan(plan)  # not copied: it names files from its folder on
            place.write(self._reduced(on), inputs=self.lock.inputs, environment=self.lock.environment)
            answer = self._answer(place, seed)
        self.talk.progress(f"seed {seed}: {answer} with {len(on)} of {len(self.parts)} on")
        return answer

    def _reduced(self, on: frozenset[int]) -> Lock:
        switched = {self.parts[number] for number in range(len(self.parts)) if number not in on}
        kept = [self.off[place] if place in switched else entry for place, entry in enumerate(self.lock.record.entries)]
        return self.lock.record.model_copy(update={"entries": tuple(entry for entry in kept if entry is not None)})

    def _answer(self, place: RunFolder, seed: int) -> Answer:
        text = self.command
        values = {"{run}": place.path, "{lock}": place.file(FILES[Lock][1]), "{seed}": seed}
        for name, value in values.items():
            text = text.replace(name, shlex.quote(str(value)))
        code = _run(text, self.timeout)
        if code in (126, 127):
            raise Day0Error(
                "--check", f"the shell cannot run it (exit code {code})", facts=(text,), hint="try it alone"
            )
        return "good" if code == 0 else "unknown" if code in (CANNOT_TELL, None) else "bad"


def _run(command: str, timeout: float) -> int | None:
    """Return the exit code of a command line, None after the time limit. Its whole group of processes is ended then."""
    process = subprocess.Popen(  # noqa: S603  # the user's own command line, which is what was asked for
        ["/bin/sh", "-c", command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return process.wait(timeout=timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def bisect(*, run: Path, check: str, samples: int, timeout: float, json: bool) -> int:
    """Run the command over subsets of the lock for several seeds. Exit code 0: it does not fail, or a cause is agreed on."""
    if not any(name in check for name in PLACEHOLDERS[:2]):
        what = "the command takes neither {run} nor {lock}, so switching parts off would change nothing"
        raise Day0Error(
            "--check", what, hint='for example --check "day0 check --level model --run {run} --seed {seed}"'
        )
    talk, folder = Talk(as_json=json), RunFolder(run)
    lock = folder.need(Lock)
    # Locks name our operators; torch has to know them.
    register_operators()
    parts, off, fixed = _parts(folder, lock.record)
    if not parts:
        raise Day0Error(str(run), "no entry of its lock can be switched off", facts=fixed[:5], hint="look at ops.lock")
    trials = _Trials(command=check, timeout=timeout, folder=folder, lock=lock, parts=parts, off=off, talk=talk)
    with talk.busy("bisect"):
        found = [bisect_sample(len(parts), seed, lambda on, seed=seed: trials.run(on, seed)) for seed in range(samples)]  # type: ignore[misc]
    result = agree(found)
    names = [_name(lock.record.entries[place]) for place in parts]
    _say(talk, names, found, result, fixed)
    if json:
        print(jsonlib.dumps(_plain(names, found, result, fixed), indent=1))
    fine = result.verdict == "agreed" or all(one.outcome == "passes" for one in found)
    return int(ExitCode.OK if fine else ExitCode.GATE_FAILED)


def _parts(folder: RunFolder, lock: Lock) -> tuple[tuple[int, ...], dict[int, LockEntry | None], tuple[str, ...]]:
    """Return what can be switched off, what stands in then, and why the rest cannot."""
    trace = folder.need(Trace).record
    signatures = {entry.id: entry.signature for entry in trace.entries}
    gaps = {entry.id for entry in folder.need(Inventory).record.entries if entry.is_gap}
    parts: list[int] = []
    off: dict[int, LockEntry | None] = {}
    fixed: list[str] = []
    for place, entry in enumerate(lock.entries):
        calls = [signatures[name] for name in entry.signatures if name in signatures]
        reason = "it runs on the CPU already" if entry.kind == "cpu_fallback" else ""
        needed = bool(gaps.intersection(entry.signatures))
        reason = reason or next((text for call in calls if needed and (text := refuse_fallback(call))), "")
        if reason:
            fixed.append(f"{_name(entry)} stays on: {reason}")
            continue
        parts.append(place)
        off[place] = _fallback(entry) if needed else None
    return tuple(parts), off, tuple(fixed)


def _fallback(entry: LockEntry) -> LockEntry:
    one = cpu_fallback(entry.operator)
    return LockEntry(
        operator=entry.operator,
        dtypes=entry.dtypes,
        signatures=entry.signatures,
        identity=one.identity,
        kind=one.kind,
        source_hash=one.source_hash,
        origin=one.origin,
        decisions=(),
    )


def _name(entry: LockEntry) -> str:
    return f"{entry.identity} for {', '.join(entry.dtypes) or 'no tensors'}"


def _cause(names: Sequence[str], cause: frozenset[int]) -> str:
    return " together with ".join(names[number] for number in sorted(cause))


def _say(talk: Talk, names: Sequence[str], samples: Sequence[Sample], result: Agreement, fixed: Sequence[str]) -> None:
    from rich.markup import escape

    for text in fixed:
        talk.say(f"[dim]{escape(text)}[/dim]")
    for one in samples:
        causes = "; ".join(_cause(names, cause) for cause in one.causes)
        told = one.reason if one.outcome != "found" or not causes else causes
        talk.say(f"sample {one.seed}: {escape(told)} [dim]({one.runs} runs)[/dim]")
    colour = {"agreed": "green", "not_found": "yellow"}.get(result.verdict, "yellow")
    talk.say(f"[{colour}]{result.verdict.replace('_', ' ')}[/{colour}]: {escape(result.reason)}")
    for cause, count in result.causes:
        talk.say(f"  {count} of {len(samples)} samples: {escape(_cause(names, cause))}")


def _plain(
    names: Sequence[str], samples: Sequence[Sample], result: Agreement, fixed: Sequence[str]
) -> dict[str, object]:
    def members(cause: frozenset[int]) -> list[str]:
        return [names[number] for number in sorted(cause)]

    return {
        "verdict": result.verdict,
        "reason": result.reason,
        "causes": [{"together": members(cause), "samples": count} for cause, count in result.causes],
        "samples": [
            {
                "seed": one.seed,
                "outcome": one.outcome,
                "reason": one.reason,
                "causes": [members(cause) for cause in one.causes],
                "runs": one.runs,
            }
            for one in samples
        ],
        "stays_on": list(fixed),
    }
