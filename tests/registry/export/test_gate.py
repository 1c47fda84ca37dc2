"""From receipts to a verdict; receipts come from processes that may be killed and folders that anybody can write to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from day0.errors import Day0Error
from day0.registry.export.gate import Coverage, Expected, Process, judge, newest_run, read_receipts
from day0.registry.export.runtime.receipts import ReceiptBook
from tests.registry.export.conftest import lock_of

LOCK = "sha256:" + "1" * 64
NORM = "day0::rms_norm@1 base:mine==1.0"


def receipt(pid: int, parent: int = 1, *, started: float = 1.0, **more: Any) -> dict[str, Any]:
    return {
        "schema": "day0.receipt/1",
        "lock": LOCK,
        "engine": "vllm",
        "engine_version": "0.32.0",
        "role": "worker",
        "pid": pid,
        "parent": parent,
        "started": started,
        "written": started,
        "bound": [],
        "declined": [],
        "calls": [],
        **more,
    }


def call(site: str = "a", count: int = 3, shapes: str = "[3, 8] [8]") -> dict[str, Any]:
    return {
        "identity": NORM,
        "dtypes": "float32 float32",
        "target": "RMSNorm",
        "site": site,
        "count": count,
        "captured": 0,
        "shapes": {shapes: count},
        "more_shapes": 0,
    }


def bound(*sites: str) -> list[dict[str, str]]:
    return [{"target": "RMSNorm", "site": site} for site in sites]


def verdict(folder: Path, kernels: Path, *receipts: dict[str, Any], tested: tuple[str, ...] = ()) -> Coverage:
    folder.mkdir(exist_ok=True)
    for one in receipts:
        (folder / f"{one['pid']}.json").write_text(json.dumps(one))
    (entry,) = lock_of(kernels, "day0::rms_norm").entries
    expected = Expected(entry=entry, targets=frozenset({"RMSNorm"}), tested_shapes=frozenset(tested))
    (covered,) = judge([expected], newest_run(read_receipts(folder, LOCK).processes))
    return covered


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "receipts"


def test_called_everywhere(folder: Path, kernels: Path) -> None:
    front, worker = receipt(1), receipt(2, 1, started=2.0, bound=bound("a", "b"), calls=[call("a"), call("b", 4)])
    covered = verdict(folder, kernels, front, worker)
    assert (covered.status, covered.calls, covered.reason) == ("called", 7, "")
    assert covered.sites == ("RMSNorm a", "RMSNorm b")


@pytest.mark.parametrize(
    ("receipts", "said"),
    [
        ([], "no process wrote a receipt: the plugin was not loaded"),
        ([receipt(1)], "the plugin was loaded, and no RMSNorm of the engine asked for it"),
        ([receipt(1, bound=bound("a", "b"))], "2 places were bound to it and none called it"),
        (
            [receipt(1, declined=[{"target": "RMSNorm", "site": "a", "reason": "bfloat16", "count": 2}])],
            "the engine's own code ran: RMSNorm a: bfloat16",
        ),
        (
            [receipt(1, declined=[{"target": "RMSNorm", "site": "", "reason": "gemma3", "meant": True, "count": 2}])],
            "the engine built RMSNorm for others only: gemma3",
        ),
    ],
)
def test_inert_says_what_is_known(folder: Path, kernels: Path, receipts: list[dict[str, Any]], said: str) -> None:
    covered = verdict(folder, kernels, *receipts)
    assert covered.status == "inert"
    assert covered.reason == said


def test_partly_names_the_places(folder: Path, kernels: Path) -> None:
    idle = verdict(folder, kernels, receipt(1, bound=bound("a", "b"), calls=[call("a")]))
    assert (idle.status, idle.reason) == ("partly", "1 of 2 places never called it: RMSNorm b")
    row = {"target": "RMSNorm", "site": "b", "reason": "no residual", "count": 1}
    own = verdict(folder, kernels, receipt(1, bound=bound("a"), calls=[call("a")], declined=[row]))
    assert own.status == "partly"
    assert "the engine's own code ran: RMSNorm b: no residual" in own.reason


def test_a_rank_in_which_nothing_runs_shows(folder: Path, kernels: Path) -> None:
    ranks = [
        receipt(number, 1, started=2.0, bound=bound("a"), calls=[call("a")] * (number < 4)) for number in (2, 3, 4)
    ]
    covered = verdict(folder, kernels, receipt(1), *ranks)
    assert (covered.status, covered.idle) == ("partly", ("RMSNorm a in process 4",))


def test_an_older_run_does_not_vouch_for_a_newer_one(folder: Path, kernels: Path) -> None:
    old = [receipt(10, started=1.0), receipt(11, 10, started=2.0, bound=bound("a"), calls=[call("a")])]
    new = [receipt(20, started=3.0), receipt(21, 20, started=4.0)]
    assert verdict(folder, kernels, *old).status == "called"
    assert verdict(folder, kernels, *new).status == "inert"


def test_a_pid_that_was_used_again_is_no_parent(folder: Path, kernels: Path) -> None:
    child = receipt(11, 10, started=1.0, calls=[call("a")])
    later = receipt(10, 1, started=2.0)
    assert verdict(folder, kernels, child, later).status == "inert"


def test_shapes_outside_the_tested_set_are_listed(folder: Path, kernels: Path) -> None:
    process = receipt(1, calls=[call(shapes="[3, 8] [8]"), call("b", shapes="[9, 8] [8]")])
    assert verdict(folder, kernels, process, tested=("[3, 8] [8]",)).outside == ("[9, 8] [8]",)
    assert verdict(folder, kernels, process).outside == ()


HOSTILE = {
    "cut.json": b'{"schema": "day0.receipt/1", "lock": "sha',
    "empty.json": b"",
    "binary.json": b"\xff\xfe\x00\x01",
    "list.json": b"[]",
    "deep.json": b"[" * 100_000,
    "other.json": json.dumps({**receipt(7), "schema": "day0.receipt/9"}).encode(),
    "negative.json": json.dumps(receipt(7, calls=[{**call(), "count": -1}])).encode(),
    "huge.json": json.dumps(receipt(7, calls=[{**call(), "count": 10**40}])).encode(),
    "nan.json": json.dumps(receipt(7, started=float("nan"))).encode(),
    "text.json": json.dumps(receipt(7, calls="all of them")).encode(),
}


def test_half_written_and_hostile_files_take_no_part_and_are_named(folder: Path, kernels: Path) -> None:
    folder.mkdir()
    for name, data in HOSTILE.items():
        (folder / name).write_bytes(data)
    (folder / "folder.json").mkdir()
    (folder / ".1.part").write_text("half")
    covered = verdict(folder, kernels, receipt(1, bound=bound("a"), calls=[call("a")]))
    assert covered.status == "called"
    reading = read_receipts(folder, LOCK)
    assert sorted(text.partition(":")[0] for text in reading.unreadable) == sorted((*HOSTILE, "folder.json"))


def test_receipts_of_another_lock_are_counted_and_take_no_part(folder: Path, kernels: Path) -> None:
    covered = verdict(folder, kernels, receipt(1, calls=[call()], lock="sha256:" + "2" * 64))
    assert covered.status == "inert"
    assert read_receipts(folder, LOCK).of_other_locks == 1


def test_a_folder_that_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Day0Error, match="receipts cannot be read: No such file or directory") as caught:
        read_receipts(tmp_path / "none", LOCK)
    assert "installed where the engine runs" in caught.value.hint


def test_the_first_call_is_on_disk_at_once_and_counts_are_lower_bounds(folder: Path) -> None:
    book = ReceiptBook(folder, lock=LOCK, engine="vllm", engine_version="0.32.0", role="test")
    (empty,) = read_receipts(folder, LOCK).processes
    assert empty.calls == ()
    for number in range(1, 8):
        book.ran(NORM, "float32 float32", "RMSNorm", "a", f"[{number}, 8]", captured=False)
        (process,) = read_receipts(folder, LOCK).processes
        assert process.calls[0].count == 1 << (number.bit_length() - 1)
    book.write()
    (process,) = read_receipts(folder, LOCK).processes
    assert process.calls[0].count == 7
    assert sorted(process.calls[0].shapes) == [f"[{number}, 8]" for number in range(1, 8)]


def test_shapes_are_kept_up_to_a_bound(folder: Path) -> None:
    book = ReceiptBook(folder, lock=LOCK, engine="vllm", engine_version="0.32.0", role="test")
    for number in range(100):
        book.ran(NORM, "float32 float32", "RMSNorm", "a", f"[{number}, 8]", captured=False)
    (row,) = book.document()["calls"]
    assert (row["count"], len(row["shapes"]), row["more_shapes"]) == (100, 64, 36)


def test_an_aten_operator_that_nothing_called_says_where_it_would_have_been(kernels: Path) -> None:
    (entry,) = lock_of(kernels, "aten::erfinv").entries
    expected = Expected(entry=entry, targets=frozenset({"aten"}), tested_shapes=frozenset())
    (covered,) = judge([expected], [Process.model_validate(receipt(1))])
    assert covered.status == "inert"
    assert covered.reason.endswith("nothing called it through torch's dispatcher; compiled graphs do not")
