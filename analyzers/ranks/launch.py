"""Start all ranks, watch them, name the one that dies or hangs, and leave nothing running."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from day0.analyzers.ranks.board import RankBoard
from day0.analyzers.ranks.setting import LEAVING, LOST, RanksSetting
from day0.errors import Day0Error
from day0.records import RankResult

__all__ = ["launch"]

POLL_S = 0.05
GRACE_S = 30.0
"""How long torchrun may take to end all ranks after one has ended."""
LOG_LINES = 12
LOG_BYTES = 1 << 16
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Warning)?(: |$)")
LAST_WORDS_S = 0.5
"""What a hanging rank gets to write where it stands."""
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ranks:
    folder: Path
    process: subprocess.Popen[bytes]
    boards: tuple[RankBoard, ...]


def launch(setting: RanksSetting, folder: Path, progress: Progress = lambda _: None) -> tuple[RankResult, ...]:
    """Start the ranks of a setting in a folder of their own and wait for their end; facts are then in the folder.

    Returns how each rank ended. Whatever happens, no process of theirs is left.
    Raises Day0Error where torchrun itself cannot begin.
    """
    (folder / "setting.json").write_text(setting.model_dump_json(), encoding="utf-8")
    with _running(setting, folder) as ranks:
        hung = _watch(ranks, progress)
        if hung:
            _last_words(ranks)
    codes = _exit_codes(folder)
    if ranks.process.returncode and not codes and not hung:
        _refuse_start(folder, ranks.process.returncode)
    ends = tuple(_end(ranks, number, codes, hung) for number in range(setting.ranks))
    for board in ranks.boards:
        board.close()
    return _with_causes(ends)


def _refuse_start(folder: Path, code: int) -> None:
    lines = (folder / "torchrun.log").read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
    what = f"torchrun ended with exit code {code} and no rank did"
    facts = tuple(line[:300] for line in lines[-LOG_LINES:])
    raise Day0Error("ranks", what, facts=facts, hint="is there room in the temporary folder, and a free port?")


@contextmanager
def _running(setting: RanksSetting, folder: Path) -> Iterator[_Ranks]:
    boards = tuple(RankBoard(folder / f"board-{number}") for number in range(setting.ranks))
    command = [sys.executable, "-m", "day0.analyzers.ranks.torchrun", str(folder)]
    with (folder / "torchrun.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    ranks = _Ranks(folder=folder, process=process, boards=boards)
    try:
        yield ranks
    finally:
        _kill(ranks)


def _watch(ranks: _Ranks, progress: Progress) -> dict[int, str]:
    """Wait until torchrun ends, or nobody has time left; then return which ranks hang, and where."""
    shown, ended = "", 0.0
    while ranks.process.poll() is None:
        where = ranks.boards[0].where
        if where != shown:
            progress(f"rank 0: {where}")
            shown = where
        if any(board.pid and board.where != LEAVING and not _alive(board.pid) for board in ranks.boards):
            # It is torchrun's to say how that one ended, and to end the others, which wait for it.
            ended = ended or time.monotonic()
            late = time.monotonic() > ended + GRACE_S
        else:
            late = all(board.late for board in ranks.boards)
        if late:
            return _hanging(ranks.boards)
        time.sleep(POLL_S)
    return {}


def _hanging(boards: tuple[RankBoard, ...]) -> dict[int, str]:
    """Name those for whom the others wait: who waits in no collective; if all do, who has entered the fewest."""
    acting = {number: board for number, board in enumerate(boards) if not board.waits and _alive(board.pid)}
    waiting = next((board.inside for board in boards if board.waits), "")
    if acting:
        others = f"the others wait in {waiting}" if waiting else "it said no word for longer than it may take"
        return {
            n: f"it hangs {f'at the call of {b.inside}' if b.inside else 'outside of collectives'}; {others}"
            for n, b in acting.items()
        }
    fewest = min(board.collectives for board in boards)
    behind = {number: board for number, board in enumerate(boards) if board.collectives == fewest}
    if len(behind) == len(boards):
        return dict.fromkeys(behind, f"all ranks wait for each other in their collective {fewest}")
    return {
        n: f"it waits in {b.inside}, its collective {fewest}, and the others are further" for n, b in behind.items()
    }


def _last_words(ranks: _Ranks) -> None:
    for board in ranks.boards:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if board.pid:
                os.kill(board.pid, signal.SIGUSR1)
    time.sleep(LAST_WORDS_S)


def _kill(ranks: _Ranks) -> None:
    """End torchrun's group and every rank's own, and wait until they are gone."""
    groups = {ranks.process.pid, *(board.pid for board in ranks.boards if board.pid)}
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    ranks.process.wait()
    for board in ranks.boards:
        until = time.monotonic() + 5.0
        while board.pid and _alive(board.pid) and time.monotonic() < until:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(board.pid, signal.SIGKILL)
            time.sleep(0.01)


def _alive(pid: int) -> bool:
    """Say whether a process runs; one that has ended and was not asked for its code does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


# ---------------------------------------------------------------------------------------- how they ended


def _exit_codes(folder: Path) -> dict[int, int]:
    try:
        codes = json.loads((folder / "exit_codes.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {int(rank): int(code) for rank, code in codes.items()}


def _end(ranks: _Ranks, number: int, codes: dict[int, int], hung: dict[int, str]) -> RankResult:
    board = ranks.boards[number]
    where = board.where or "starting"
    where = f"{where}, in {board.inside}" if board.inside else where
    code, lines = codes.get(number), _tail(ranks.folder, number)
    if number in hung:
        return RankResult(rank=number, status="hung", reason=hung[number], phase=where, log_tail=lines)
    said = _exception(lines)
    # torchrun ends all when one ends, also one that is still at raising.
    ended = code is None or code == -signal.SIGTERM
    if ended and not said:
        return RankResult(rank=number, status="stopped" if codes or hung else "done", phase=where)
    # What a rank raises that has given its part to a collective, or lost a connection, is that another one was lost.
    lost = bool(board.inside) and (board.waits or LOST.search(said) is not None)
    status = "stopped" if said and lost else "raised" if said else "died"
    reason = said or _how(code or 0)
    return RankResult(rank=number, status=status, reason=reason, phase=where, exit_code=code, log_tail=lines)


def _how(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code} and without a word"
    names = {int(one): one.name for one in signal.Signals}
    return f"killed by signal {-code} ({names.get(-code, 'unknown')})"


def _tail(folder: Path, number: int) -> tuple[str, ...]:
    try:
        with (folder / f"log-{number}").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    lines = [line.removeprefix(f"[rank{number}]: ")[:300] for line in text.rstrip().splitlines()]
    stacks = [place for place, line in enumerate(lines) if line.endswith("(most recent call first):")]
    # Where a rank stands begins with the innermost line; a traceback ends with it.
    return tuple(lines[stacks[-1] :][:LOG_LINES] if stacks else lines[-LOG_LINES:])


def _exception(lines: tuple[str, ...]) -> str:
    """Return the line that names an exception, at the end of a traceback."""
    if not any(line.startswith(("Traceback", "  File ")) for line in lines):
        return ""
    return next((line for line in reversed(lines) if _EXCEPTION.match(line)), "")


def _with_causes(ends: tuple[RankResult, ...]) -> tuple[RankResult, ...]:
    """Say of ranks that were stopped for whom; where nobody is guilty, those that raised are."""
    guilty = [one for one in ends if one.status in ("died", "hung", "raised")]
    if not guilty:
        return tuple(one.model_copy(update={"status": "raised"}) if one.log_tail else one for one in ends)
    cause = ", ".join(f"rank {one.rank}" for one in guilty)
    lost = {"reason": f"it lost {cause}", "log_tail": ()}
    return tuple(one.model_copy(update=lost) if one.status == "stopped" else one for one in ends)
