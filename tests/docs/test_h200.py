"""The page of an H200's figures says what its record says, and the record has the figures that were asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORD, PAGE = "docs/figures/h200.json", "docs/h200.md"
WANTED = ("mxfp4_to_fp8_fraction_of_copy", "sparse_decode_128k_over_dense")


def test_page_and_charts_are_those_of_the_record() -> None:
    command = [sys.executable, "benchmarks/gpu/table.py", RECORD, PAGE, "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def test_the_record_has_the_figures_with_marks_and_says_what_they_were_measured_on() -> None:
    record = json.loads((ROOT / RECORD).read_text(encoding="utf-8"))
    assert set(WANTED) <= set(record["figures"])
    assert "H200" in record["device"]
    assert record["date"] and record["driver"] and record["versions"]["torch"]
