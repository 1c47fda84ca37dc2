"""`day0 canary ranks` from the command line: what is refused, what is shown, where the record goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from day0.cli import show_ranks
from day0.cli.canary_ranks import FILE
from day0.cli.talk import Talk
from day0.codec import decode
from day0.records import GateResult, RankResult, RankScale, RanksReport, RanksRun
from tests.flow.conftest import run_day0

METRICS = {
    "prefill_s": 0.25,
    "decode_s": 0.05,
    "weight_bytes": 3.0 * 2**20,
    "weights_over_fit": 1.01,
    "decode_collective_share": 0.5,
    "decode_collective_share_least": 0.25,
    "logits_same_bits": 1.0,
    "collectives_unsupported": 0.0,
    "ranks_lost": 0.0,
}


def report(*runs: RanksRun, scaling: tuple[RankScale, ...] = ()) -> RanksReport:
    return RanksReport(
        model="hf:llama",
        class_name="LlamaForCausalLM",
        overrides={"num_hidden_layers": "32 -> 2"},
        dtype="bfloat16",
        seed=0,
        device="cpu",
        backend="gloo",
        prompt_tokens=40,
        new_tokens=8,
        runs=runs,
        scaling=scaling,
    )


def shown(found: RanksReport, capsys: pytest.CaptureFixture[str]) -> str:
    show_ranks.report(Talk(), found)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ranks", "two"), "error: ranks two: 'two' is no number of ranks"),
        (("ranks", "2"), "there is no trace yet"),
        (("ranks", "2", "--shrink"), "error: --shrink: it belongs to --model"),
        (("ranks", "2", "--model", "toy"), "kda_heads is 3, which does not divide by 2 ranks"),
        (("ranks", "2", "--model", "toy", "--device", "sim"), "torch has no collectives for 'sim'"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = run_day0("canary", *arguments, "--run", "none", cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "hint: " in done.stderr
    assert not (tmp_path / "none").exists()


def test_a_run_that_passed_is_shown_with_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    run = RanksRun(ranks=2, status="pass", metrics=METRICS)
    scale = [
        RankScale(
            ranks=ranks,
            prefill_s=0.25,
            decode_s=0.05,
            prefill_efficiency=1.0 / ranks,
            decode_efficiency=0.5,
            collective_share=0.5,
            weight_bytes=3 << 20,
        )
        for ranks in (1, 2)
    ]
    text = shown(report(run, scaling=tuple(scale)), capsys)
    assert "hf:llama (made smaller)" in text
    assert "✓ 2 ranks: pass" in text
    assert "decode 50.0 ms a token" in text
    assert "25% to 50% of a token's time" in text
    assert text.splitlines()[-1].split() == ["2", "250.0", "50.0", "50%", "50%", "50%", "3.00"]


def test_a_lost_rank_is_shown_with_the_end_of_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    log = tuple(f"line {number}" for number in range(9))
    results = (
        RankResult(rank=0, status="stopped", reason="it lost rank 1"),
        RankResult(rank=1, status="died", reason="killed", log_tail=(*log, "the [bold]last\x1b[31m line")),
    )
    lost = RanksRun(ranks=2, planted="ranks_killed", status="fail", reasons=("rank 1 died: killed",), results=results)
    text = shown(report(lost), capsys)
    assert "✗ 2 ranks; planted: ranks_killed: fail" in text
    assert "rank 1 died: killed" in text
    assert "the log of rank 1:" in text
    assert "rank 0:" not in text
    assert "line 3" not in text
    assert "the [bold]last" in text, "what ranks print is no markup"
    assert "\x1b" not in text


def test_a_gate_without_an_answer_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    gate = GateResult(
        metric="weights_over_fit",
        rule="<=",
        limit=1.1,
        value=None,
        verdict="inconclusive",
        passed=True,
        reason="weights_over_fit is not known: it does not run on meta",
    )
    text = shown(report(RanksRun(ranks=1, status="pass", gates=(gate,), metrics={"ranks_lost": 0.0})), capsys)
    assert "not decided: weights_over_fit is not known" in text
    never = RanksRun(ranks=2, planted="ranks_averaged", status="pass", metrics={"planted_calls": 0.0})
    assert "the planted fault was never reached" in shown(report(never), capsys)


@pytest.mark.slow
def test_the_record_stands_in_the_run_folder(tmp_path: Path) -> None:
    pytest.importorskip("transformers.distributed.expert_parallel")
    assert run_day0("trace", "hf:llama", "--shrink", "--run", "r", cwd=tmp_path).returncode == 0
    done = run_day0("canary", "ranks", "1,2", "--run", "r", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    text = (tmp_path / "r" / FILE).read_text()
    found = decode(RanksReport, text, where=FILE, remake="day0 canary ranks")
    assert [one.ranks for one in found.record.scaling] == [1, 2]
    planted = run_day0(
        "canary", "ranks", "2", "--run", "r", "--device", "cpu", "--plant", "ranks_dropped", cwd=tmp_path
    )
    assert planted.returncode == 1
    assert "the contribution of rank 1 is missing" in planted.stdout
    assert json.loads((tmp_path / "r" / FILE).read_text())["environment"]["planted"] == "ranks_dropped"
