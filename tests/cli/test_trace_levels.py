"""`day0 trace --level`, `--shapes` and `--world-size`, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from day0.cli import show_trace
from day0.cli.commands import trace
from day0.cli.show_trace import View
from day0.errors import Day0Error


def run(
    tmp_path: Path, *, model: str = "toy", as_json: bool = False, sets: tuple[str, ...] = (), **options: object
) -> int:
    arguments = {"level": "both", "shapes": [], "world_size": 1, **options}
    return trace(
        model=model,
        run=tmp_path / "run",
        sets=list(sets),
        dtype="float32",
        mode="auto",
        batch=1,
        phases=["prefill=4"],
        trust_remote_code=False,
        shrink=False,
        force=False,
        json=as_json,
        **arguments,  # type: ignore[arg-type]  # of several types
    )


def test_both_levels_are_shown_and_linked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 0
    shown = capsys.readouterr().out
    assert "operators below" in shown
    assert "F.linear" in shown
    assert "aten::mm" in shown


def test_one_level_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, level="op")
    assert "F.linear" not in capsys.readouterr().out
    run(tmp_path, level="call")
    shown = capsys.readouterr().out
    assert "F.linear" in shown
    assert "aten::mm " not in shown


def test_json_holds_both_levels_and_nothing_else_is_on_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, as_json=True, shapes=["linear"])
    body = json.loads(capsys.readouterr().out)["body"]
    ids = {entry["id"] for entry in body["entries"]}
    assert body["calls"]
    assert all(set(call["ops"]) <= ids for call in body["calls"])


def test_shapes_of_a_function(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, shapes=["linear"])
    shown = capsys.readouterr().out
    assert "torch.nn.functional.linear" in shown
    assert "float32[1,4," in shown
    assert "prefill" in shown


def test_a_level_that_there_is_not_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(Day0Error) as caught:
        run(tmp_path, level="kernel")
    assert caught.value.where == "--level"
    assert not (tmp_path / "run").exists()


def test_ranks_that_do_not_divide_a_model(tmp_path: Path) -> None:
    with pytest.raises(Day0Error, match="kda_heads is 3, which does not divide by 2 ranks"):
        run(tmp_path, world_size=2)


def test_another_number_of_ranks_is_another_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers.distributed.expert_parallel")
    sets = ("num_hidden_layers=1", "hidden_size=64", "intermediate_size=96", "vocab_size=128")
    run(tmp_path, model="hf:llama", sets=sets)
    assert "between ranks" not in capsys.readouterr().out
    run(tmp_path, model="hf:llama", sets=sets, world_size=2)
    shown = capsys.readouterr().out
    assert "between ranks" in shown
    assert "all_reduce" in shown
    assert "rank 0 of 2" in shown


def test_a_trace_of_an_older_day0_has_no_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from day0.cli.rundir import RunFolder
    from day0.cli.talk import Talk
    from day0.records import Trace

    run(tmp_path)
    record = RunFolder(tmp_path / "run").need(Trace).record.model_copy(update={"calls": ()})
    capsys.readouterr()
    show_trace.levels(Talk(as_json=False), record, View())
    assert "no functions were recorded" in capsys.readouterr().out
