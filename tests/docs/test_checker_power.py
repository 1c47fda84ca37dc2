"""The page on how good the check is: its tables are whole, and the benchmark that writes them can."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from day0.devices.faults.load import load_faults
from day0.records import FaultScore, Found, RightScore, SelftestReport

ROOT = Path(__file__).resolve().parents[2]
REMAKE = "run `python benchmarks/checker_power.py --write-docs`"


def _benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("checker_power", ROOT / "benchmarks" / "checker_power.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BENCHMARK = _benchmark()


def _page() -> str:
    return (ROOT / "docs" / "checker_power.md").read_text(encoding="utf-8")


def test_every_planted_fault_stands_in_the_table() -> None:
    rows = re.findall(r"^\| ([a-z0-9_]+) \|", _page().split("### Every fault")[1], re.MULTILINE)
    wanted = {name for name, one in load_faults().items() if one.is_fault}
    assert wanted <= set(rows), (REMAKE, sorted(wanted - set(rows)))


def test_what_is_missed_is_named_with_a_reason() -> None:
    page = _page()
    lost = re.search(r"\| all \| (\d+) \| (\d+)/", page)
    assert lost, REMAKE
    missed = page.split("### Missed")[1].split("###")[0]
    rows = [line for line in missed.splitlines() if line.startswith("| ") and "---" not in line]
    assert max(0, len(rows) - 1) == int(lost[1]) - int(lost[2]), REMAKE


def test_the_tables_go_between_their_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Found(how="missed", reached=3, reason="a | b")
    fault = FaultScore(
        name="one",
        family="views",
        source="https://example.org",
        does="is wrong",
        operators=("aten::neg",),
        held_out=False,
        operator=found,
        model=Found(how="not_measured"),
        usual={"cosine 0.99": True},
    )
    right = RightScore(subject="clean device", judged=4, alarms=(), usual_judged=4, usual={"cosine 0.99": 1})
    report = SelftestReport(device="null", seeds=1, usual=("cosine 0.99",), faults=(fault,), right=(right,))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BENCHMARK.BEGIN}\nold\n{BENCHMARK.END}\nafter\n", encoding="utf-8")
    monkeypatch.setattr(BENCHMARK, "PAGE", page)
    BENCHMARK.write(BENCHMARK.tables(report))
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| one | is wrong | a \\| b | https://example.org |" in text
    assert "| clean device | 4 | 0 | 1/4 |" in text
