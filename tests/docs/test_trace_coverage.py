"""The coverage table in the documentation is whole, and the benchmark that writes it survives what models do."""

from __future__ import annotations

import importlib.util
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
ROOT = Path(__file__).resolve().parents[2]
REMAKE = "run `python benchmarks/trace_coverage.py --all --write-docs`"


def _benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("trace_coverage", ROOT / "benchmarks" / "trace_coverage.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["trace_coverage"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


BENCHMARK = _benchmark()


def _page() -> str:
    return (ROOT / "docs" / "trace_coverage.md").read_text(encoding="utf-8")


def _sections() -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = {}
    for part in _page().split("\n## ")[1:]:
        rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in part.splitlines() if line.startswith("| ")]
        found[part.splitlines()[0]] = [[cell.strip() for cell in row] for row in rows[2:]]
    return found


def test_every_type_stands_in_the_table_once() -> None:
    names = [row[0] for rows in _sections().values() for row in rows]
    assert sorted(names) == sorted((*BENCHMARK.causal_types(), *BENCHMARK.EXTRA)), REMAKE


def test_every_failure_and_every_config_that_cannot_be_built_has_a_cause_a_line_and_a_next_step() -> None:
    sections = _sections()
    rows = [*sections["Built, but not traced"], *sections["The default config cannot be built"]]
    assert rows
    for row in rows:
        *_, cause, line, step = row
        assert len(cause) > 20, row
        assert re.search(r"\.py:\d+", line), row
        assert len(step) > 10, row


def test_the_figures_follow_from_the_table_and_reach_the_mark() -> None:
    sections = _sections()
    extra = set(BENCHMARK.EXTRA)
    failed = len(sections["Built, but not traced"])
    traced = len([row for row in sections["Traced"] if row[0] not in extra])
    share = float(re.findall(r"figure: trace_success ([\d.]+)", _page())[0])
    assert share == pytest.approx(traced / (traced + failed), abs=1e-4)
    assert share >= 0.98
    assert int(re.findall(r"figure: configs_built (\d+)", _page())[0]) == traced + failed


def test_the_models_of_today_show_their_phases() -> None:
    rows = {row[0]: row[3:] for row in _sections()["Traced"]}
    for name, phases in {"glm5_next": 5, "kimi_k25": 3, "deepseek_v4": 4}.items():
        assert len([cell for cell in rows[name] if re.fullmatch(r"[\d,]+", cell)]) == phases


@pytest.mark.parametrize(("fate", "cause"), [("hang", "no end in 1 s"), ("crash", "the process died, exit code 7")])
def test_a_model_that_hangs_or_crashes_ends_its_own_process_only(
    fate: str, cause: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def trace_one(name: str) -> Any:
        if name == fate == "hang":
            time.sleep(60)
        if name == fate == "crash":
            os._exit(7)
        row = BENCHMARK.Row(name=name, versions=BENCHMARK._versions(), built=True, traced=True, mode="meta")
        row.phases = {"prefill": 3}
        return row

    monkeypatch.setattr(BENCHMARK, "trace_one", trace_one)
    results = tmp_path / "rows.jsonl"
    BENCHMARK.main(["--only", "first", fate, "last", "--limit", "1", "--results", str(results)])
    text = capsys.readouterr().out
    assert cause in text
    assert "last: built, meta: prefill 3" in text
    assert "figure: trace_success 0.6667\nfigure: configs_built 3" in text
    BENCHMARK.main(["--only", "first", fate, "last", "--results", str(results)])
    assert cause not in capsys.readouterr().out.splitlines()[0], "what is done is not done again"


def test_a_failure_is_told_with_module_line_and_next_step() -> None:
    row = BENCHMARK.trace_one("nemotron")
    assert not row.built
    assert "models/nemotron/modeling_nemotron.py:" in row.line
    assert "num_key_value_heads" in row.hint


@pytest.mark.slow
def test_every_type_is_traced_or_has_a_named_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    BENCHMARK.main(["--all", "--results", str(tmp_path / "rows.jsonl")])
    share = float(re.findall(r"figure: trace_success ([\d.]+)", capsys.readouterr().out)[0])
    assert share >= 0.98
