"""The tables of docs/adapters.md are of the adapters that there are."""

from __future__ import annotations

import re
from pathlib import Path

from day0.models.adapters.load import load_adapters

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adapters.md"
REMAKE = "run `python benchmarks/adapter_coverage.py --compare --write-docs`"


def test_every_adapter_has_its_line_and_no_model_differs() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition("| adapter | operators | types |")[2].partition("\n\n")[0]
    rows = {
        cells[0]: cells for line in table.splitlines()[2:] if (cells := [one.strip() for one in line.split("|")[1:-1]])
    }
    assert set(rows) == set(load_adapters()), REMAKE
    for name, adapter in load_adapters().items():
        assert rows[name][1] == ", ".join(adapter.operators), REMAKE
    found = re.search(r"(\d+) small models were run in float64 with adapters and without; (\d+) differ", text)
    assert found, REMAKE
    assert int(found[1]) > 100
    assert found[2] == "0"
