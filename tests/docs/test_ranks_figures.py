"""The table of docs/ranks.md is made from the record beside it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
REMAKE = "run `python benchmarks/ranks_scaling.py --write-docs`"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ranks_scaling", ROOT / "benchmarks" / "ranks_scaling.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def document(**metrics: float) -> dict[str, Any]:
    run = {"ranks": 2, "status": "pass", "reasons": [], "prefill_efficiency": 0.5, "decode_efficiency": 0.75}
    case = {"name": "a", "class": "A", "set": {"x": "1"}, "dtype": "bfloat16", "backend": "nccl", "prompt_tokens": 9}
    return {
        "date": "2026-01-02",
        "device": "a card",
        "devices": 2,
        "versions": {"driver": "1.2"},
        "variables": {"NCCL_NVLS_ENABLE": "0"},
        "cases": [{**case, "notes": ["times only"], "runs": [{**run, "metrics": metrics}]}],
    }


def test_the_page_is_what_the_record_says(script: ModuleType) -> None:
    page = script.PAGE.read_text(encoding="utf-8")
    made = page.partition(script.BEGIN)[2].partition(script.END)[0].strip()
    assert made == script.docs_part().strip(), REMAKE


def test_a_record_becomes_a_table(script: ModuleType) -> None:
    text = script.docs_table(document(prefill_s=0.002, memory_over_plan=1.014, weight_bytes=float(1 << 30)))
    assert text.startswith("2026-01-02, 2 x a card; driver 1.2, NCCL_NVLS_ENABLE 0.")
    row = next(line for line in text.splitlines() if line.startswith("| a |"))
    assert row.split(" | ")[1:8] == ["2", "2.00", "50%", "not known", "75%", "none", "1.000"]
    assert row.endswith("| 1.014 | pass |")
    assert "**a**: A in bfloat16 over nccl, a prompt of 9 tokens; x 1. Times only." in text
