"""The pool with workers that die on purpose: the right case is blamed, and nothing is lost."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from day0.analyzers.checking.board import Board
from day0.analyzers.checking.limits import Limits
from day0.analyzers.checking.pool import Answer, Job, Pool
from day0.analyzers.checking.worker import Place
from day0.analyzers.resident import resident
from day0.errors import Day0Error

FORK = multiprocessing.get_context("fork")


def _serve(
    connection: Connection, place: Place, act: Callable[[str, Board, Connection], None], *, early: int = 0
) -> None:
    """Answer as a worker does; what a case does is a function of its name. `early` bytes are taken before it greets."""
    os.setsid()
    begun, held = resident(os.getpid()), os.urandom(early)
    faulthandler.disable()
    board = Board(Path(place.board))
    connection.send_bytes(json.dumps({"notes": [], "bytes": begun}).encode())
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            name = json.loads(connection.recv_bytes())["case"]
            board.operator(f"op of {name}")
            board.phase("device", 0.3)
            act(name, board, connection)
            board.phase("idle", 0.0)
            connection.send_bytes(json.dumps({"result": name, "reached": {}}).encode())
    del held


SEEN: list[str] = []


def _act(name: str, board: Board, connection: Connection) -> None:
    SEEN.append(name)
    if name == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "victim" and "poisons" in SEEN:
        os.abort()
    if name == "hangs":
        time.sleep(60)
    if name == "golden hangs":
        board.phase("reference", 0.3)
        time.sleep(60)
    if name == "eats":
        board.phase("device", 0.0)
        held = [bytearray(os.urandom(1) * (8 << 20)) for _ in range(40)]
        time.sleep(60)
        del held
    if name == "stays":
        board.phase("device", 0.0)
        time.sleep(60)
    if name == "garbage":
        connection.send_bytes(b"no answer")
        time.sleep(60)
    if name == "child":
        if os.fork() == 0:
            time.sleep(30)
        os._exit(7)


def _run(folder: Path, names: list[str], *, workers: int = 1, host: int = 1 << 40) -> dict[str, Answer]:
    def start(link: Connection, place: Place) -> multiprocessing.process.BaseProcess:
        return FORK.Process(target=_serve, args=(link, place, _act))

    jobs = [Job(question={"case": name}, name=name, blame=name) for name in names]
    with Pool(start, folder / "work", Limits(case_timeout_s=0.3, host_bytes=host), workers) as pool:
        found = [(answer.job.name, answer) for answer in pool.run(jobs)]
    assert not (folder / "work").exists()
    assert sorted(name for name, _ in found) == sorted(names), "each once, none lost"
    return dict(found)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_one_that_dies_is_blamed_and_the_others_are_answered(tmp_path: Path, workers: int) -> None:
    found = _run(tmp_path, ["a", "b", "dies", "c", "d"], workers=workers)
    assert (found["dies"].kind, found["dies"].message) == ("crashed", None)
    assert found["dies"].reason == "the process died of SIGSEGV in op of dies"
    assert all(found[name].message for name in "abcd")


def test_the_victim_of_an_earlier_case_passes_alone_and_that_is_said(tmp_path: Path) -> None:
    found = _run(tmp_path, ["poisons", "victim", "a"])
    assert found["victim"].message is not None
    assert (found["victim"].kind, found["victim"].reason) == ("crashed", "the process died of SIGABRT in op of victim")
    assert found["a"].message
    assert not found["a"].kind


ENDINGS = {
    "hangs": ("hung", "it did not end within 0.3 s, in op of hangs; the process was killed"),
    "golden hangs": ("slow", "its reference on the CPU did not end in the time that was allowed"),
    "eats": ("crashed", "out of memory: it took more than 0.1 GiB of the host in op of eats"),
    "garbage": ("crashed", "something else than an answer was written into the worker's pipe"),
    "child": ("crashed", "it ended the process with exit code 7 in op of child"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_every_other_way_to_end(tmp_path: Path, name: str) -> None:
    found = _run(tmp_path, ["a", name, "b"], host=100 << 20 if name == "eats" else 1 << 40)
    assert (found[name].kind, found[name].reason) == ENDINGS[name]
    assert found["b"].message


def test_memory_that_is_taken_before_the_first_look_counts(tmp_path: Path) -> None:
    def start(link: Connection, place: Place) -> multiprocessing.process.BaseProcess:
        return FORK.Process(target=_serve, args=(link, place, _act), kwargs={"early": 200 << 20})

    jobs = [Job(question={"case": "stays"}, name="stays", blame="stays")]
    with Pool(start, tmp_path / "work", Limits(case_timeout_s=5.0, host_bytes=100 << 20)) as pool:
        (answer,) = pool.run(jobs)
    assert answer.kind == "crashed"
    assert answer.reason.startswith("out of memory")


def test_a_worker_that_cannot_begin_says_why(tmp_path: Path) -> None:
    def serve(link: Connection, place: Place) -> None:
        link.send_bytes(json.dumps({"where": "device", "what": "is gone", "facts": [], "hint": "plug it in"}).encode())

    def start(link: Connection, place: Place) -> multiprocessing.process.BaseProcess:
        return FORK.Process(target=serve, args=(link, place))

    with pytest.raises(Day0Error, match="device: is gone"), Pool(start, tmp_path / "work", Limits()):
        pass
    assert not (tmp_path / "work").exists()


def test_each_worker_has_its_device_and_so_has_the_one_that_takes_its_place(tmp_path: Path) -> None:
    given: list[int | None] = []

    def start(link: Connection, place: Place) -> multiprocessing.process.BaseProcess:
        given.append(place.device)
        return FORK.Process(target=_serve, args=(link, place, _act))

    names = ["a", "dies", "b", "c"]
    jobs = [Job(question={"case": name}, name=name, blame=name) for name in names]
    with Pool(start, tmp_path / "work", Limits(case_timeout_s=5.0, host_bytes=1 << 40), 3) as pool:
        assert len(list(pool.run(jobs))) == len(names)
        assert pool.replaced
    assert given[:3] == [0, 1, 2]
    assert set(given[3:]) <= {0, 1, 2}
