"""Carry a plan out: shards side by side, each under its final name when it is complete, the index last."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from day0 import __version__
from day0.converters.companions import index_names, write_companions
from day0.converters.folder import MANIFEST
from day0.converters.header import read_header
from day0.converters.journal import JOURNAL, Journal, Stamps
from day0.converters.plan import Item, Plan, refuse_inexact
from day0.converters.processes import can_fork, write_in_processes
from day0.converters.shard import Stopped, write_shard
from day0.converters.summary import report_of, size_of
from day0.converters.textfile import read_text
from day0.converters.tiers._tier import Tier
from day0.converters.verdict import Verdict, acceptable
from day0.converters.writer import PART, sync_folder
from day0.errors import Day0Error
from day0.records.convert import ConvertReport

__all__ = ["MANIFEST", "Step", "convert"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """How far a conversion is."""

    done: int
    total: int
    """Bytes of the source."""
    written: int
    seconds: float
    file: str

    @property
    def left(self) -> float:
        """Seconds to go, as far as one can say."""
        return self.seconds * (self.total - self.done) / self.done if self.done else 0.0


Watch = Callable[[Step], None]


def convert(
    plan: Plan,
    target: Path,
    tier: Tier,
    *,
    jobs: int = 1,
    environment: dict[str, str] | None = None,
    watch: Watch = lambda _: None,
) -> ConvertReport:
    """Write the result into a folder, going on where an earlier run ended.

    Raises Day0Error: verdicts that the parameters do not allow, a folder that is the source or holds something else, a
    conversion with other parameters begun there, too little space, whatever reading and writing may meet.
    """
    refuse_inexact(plan)
    _check_target(plan, target)
    finished = _finished(plan, target)
    if finished is not None:
        return finished
    journal = _begin(plan, target)
    try:
        verdicts = _shards(plan, target, tier, journal, jobs, watch)
        _refuse_changed(plan, plan.items())
        plan = _with_verdicts(plan, verdicts)
        report = report_of(plan, done=True)
        write_companions(plan, target, report, environment or {})
        journal.remove()
        sync_folder(target)
    except OSError as error:
        what = f"cannot be written: {error.strerror or error}"
        raise Day0Error(str(target), what, hint="make room, and run the same command to go on") from None
    finally:
        journal.close()
    return report


def _identity(plan: Plan) -> dict[str, object]:
    return {
        "source": plan.folder.fingerprint(),
        "parameters": json.loads(plan.parameters.model_dump_json()),
        "day0": __version__,
    }


def _check_target(plan: Plan, target: Path) -> None:
    # realpath: Path.resolve raises for links that lead to themselves, up to Python 3.12.
    source, here = (Path(os.path.realpath(one)) for one in (plan.folder.path, target))
    if here == source or (here.exists() and here.samefile(source)):
        raise Day0Error(str(target), "it is the source, which is never written to", hint="name another folder")
    if here.is_relative_to(source) or source.is_relative_to(here):
        what = "source and result would lie within each other"
        raise Day0Error(str(target), what, hint="name a folder beside the source")
    if target.is_symlink() and not target.exists():
        raise Day0Error(str(target), "it is a link to nowhere", hint="remove the link, or name another folder")
    if target.exists() and not target.is_dir():
        raise Day0Error(str(target), "there is a file of that name", hint="name a folder")
    if target.is_dir():
        ours = (target / JOURNAL).exists() or (target / MANIFEST).exists()
        if not ours and any(target.iterdir()):
            raise Day0Error(str(target), "it holds something else already", hint="name a new or an empty folder")


def _finished(plan: Plan, target: Path) -> ConvertReport | None:
    """Return the report of a conversion that was completed here with the same parameters, if its files are there."""
    from day0.codec import decode

    path = target / MANIFEST
    if not path.exists() or (target / JOURNAL).exists():
        return None
    again = f"name another folder, or remove {MANIFEST} if it is not day0's"
    found = decode(ConvertReport, read_text(path, hint=again), where=str(path), remake="day0 convert").record
    if (found.source, found.parameters) != (plan.folder.fingerprint(), plan.parameters):
        what = "it holds the result of another conversion"
        raise Day0Error(str(target), what, hint="name another folder; a result is never overwritten")
    for file in found.files:
        whole = target / file.name
        if file.kind == "weights" and (not whole.is_file() or whole.stat().st_size != file.bytes):
            what = f"{file.name} is missing or has another size than {file.bytes:,} bytes"
            raise Day0Error(str(target), what, hint=f"remove {MANIFEST} and run it again into a new folder")
    recorded = {file.name for file in found.files}
    for name in (*plan.shards, "config.json", *index_names(plan)):
        if not (target / name).is_file() or (name in plan.shards and name not in recorded):
            what = f"{name} is missing" if name not in plan.shards else f"{MANIFEST} does not name {name}"
            raise Day0Error(str(target), what, hint="run it again into a new folder")
    return found


def _begin(plan: Plan, target: Path) -> Journal:
    try:
        target.mkdir(parents=True, exist_ok=True)
        if not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        journal = Journal(target, _identity(plan))
    except OSError as error:
        raise Day0Error(str(target), f"cannot be written: {error.strerror}", hint="check its permissions") from None
    try:
        for name in list(journal.done):
            if not _complete(plan, target, name, journal.stamps[name]):
                del journal.done[name]
        for left in target.glob("*" + PART):
            if not left.is_dir():
                left.unlink()
        _refuse_full(plan, target, journal)
    except BaseException:
        journal.close()
        raise
    return journal


def _complete(plan: Plan, target: Path, name: str, stamps: Stamps) -> bool:
    """Say whether a file that the journal names is what the plan would make it, as far as its header says.

    Not where a source file was written since: its shapes are the same, and its values may be others.
    """
    items = plan.shards.get(name)
    if items is None or not (target / name).is_file() or stamps != _stamps(plan, items):
        return False
    try:
        header = read_header(target / name)
    except Day0Error:
        return False
    planned = {one.name: (one.dtype, one.shape) for item in items for one in item.outputs.values()}
    return {one.name: (one.dtype, one.shape) for one in header.tensors.values()} == planned


def _stamps(plan: Plan, items: tuple[Item, ...]) -> Stamps:
    """Return size and time of the source files that items are read from, as they were when their headers were read."""
    parts = [part for item in items if item.weight is not None for part in item.weight.parts.values()]
    parts += [item.kept for item in items if item.kept is not None]
    headers = {name: plan.folder.shards[name] for name in sorted({part.file.name for part in parts})}
    return {name: [one.size, one.changed_at] for name, one in headers.items()}


def _refuse_changed(plan: Plan, items: tuple[Item, ...]) -> None:
    for name, (size, changed_at) in _stamps(plan, items).items():
        path = plan.folder.shards[name].path
        found = path.stat() if path.exists() else None
        if found is None or (found.st_size, found.st_mtime_ns) != (size, changed_at):
            what = "it was written while it was converted: values of two versions may be mixed"
            raise Day0Error(str(path), what, hint="run the same command again; what was made from it is made anew")


def _refuse_full(plan: Plan, target: Path, journal: Journal) -> None:
    needed = sum(size_of(items) for name, items in plan.shards.items() if name not in journal.done)
    free = shutil.disk_usage(target).free
    if needed > free:
        what = f"{needed:,} bytes are still to be written, and {free:,} are free"
        raise Day0Error(str(target), what, hint="make room or name a folder on another disk; nothing was written")


# ------------------------------------------------------------------------------------------------------ shards


class _Progress:
    """Counts what all workers have done, and tells them when to stop."""

    def __init__(self, total: int, written: dict[str, int], watch: Watch) -> None:
        self.total, self.watch, self.written = total, watch, written
        self.done = 0
        self.began = time.monotonic()
        self.stop = threading.Event()
        self._lock = threading.Lock()

    def step(self, file: str, count: int) -> None:
        """Add what was done."""
        if self.stop.is_set():
            raise Stopped
        with self._lock:
            self.done += count
            share = self.done / self.total if self.total else 1.0
            total = sum(self.written.values())
            seconds = time.monotonic() - self.began
            self.watch(Step(done=self.done, total=self.total, written=int(total * share), seconds=seconds, file=file))


def _shards(
    plan: Plan, target: Path, tier: Tier, journal: Journal, jobs: int, watch: Watch
) -> dict[str, dict[str, Verdict]]:
    open_ = {name: items for name, items in plan.shards.items() if name not in journal.done}
    total = sum(item.source_bytes for items in open_.values() for item in items)
    progress = _Progress(total, {name: size_of(items) for name, items in open_.items()}, watch)
    lock = threading.Lock()

    def write(name: str, step: Callable[[int], None]) -> dict[str, Verdict]:
        return write_shard(target / name, open_[name], plan.parameters, tier.decode, step)

    def finished(name: str, found: dict[str, Verdict]) -> None:
        _refuse_changed(plan, open_[name])
        _refuse_surprise(plan, open_[name], found)
        with lock:
            journal.add(name, found, _stamps(plan, open_[name]))

    if jobs > 1 and len(open_) > 1 and tier.forks and can_fork():
        write_in_processes(tuple(open_), target, write, jobs, step=progress.step, finished=finished)
    else:
        _in_threads(tuple(open_), write, jobs, progress, finished)
    return journal.done


def _in_threads(
    names: tuple[str, ...],
    write: Callable[[str, Callable[[int], None]], dict[str, Verdict]],
    jobs: int,
    progress: _Progress,
    finished: Callable[[str, dict[str, Verdict]], None],
) -> None:
    def one(name: str) -> None:
        if progress.stop.is_set():
            return
        try:
            finished(name, write(name, lambda count: progress.step(name, count)))
        except Stopped:
            return

    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        running = [pool.submit(one, name) for name in names]
        try:
            ended, _ = wait(running, return_when=FIRST_EXCEPTION)
            for done in ended:
                done.result()
        finally:
            # On a failure or Ctrl-C the others stop at their next tile and leave no half file.
            progress.stop.set()


def _refuse_surprise(plan: Plan, items: tuple[Item, ...], found: dict[str, Verdict]) -> None:
    """Refuse what came out worse than its scales had promised: then the source is not what was planned with."""
    for item in items:
        if item.weight is None or item.target is None or item.verdict.changed is None:
            continue
        got = found[item.weight.name]
        if not acceptable(got, plan.parameters):
            count = got.changed if got.changed is not None else 0
            what = f"{count:,} of its values changed, and its scales had said otherwise"
            raise Day0Error(item.weight.name, what, hint="did the source change meanwhile? run it again")


def _with_verdicts(plan: Plan, verdicts: dict[str, dict[str, Verdict]]) -> Plan:
    shards = {
        name: tuple(
            replace(item, verdict=verdicts[name].get(item.weight.name, item.verdict))
            if item.weight is not None
            else item
            for item in items
        )
        for name, items in plan.shards.items()
    }
    return replace(plan, shards=shards)
