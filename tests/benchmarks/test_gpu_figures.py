"""The record of figures and its page: merged from several runs, checked, and the page says what the record says.

All values here are stand-ins; those of a device are committed in docs/figures/.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from day0.errors import Day0Error
from tests.benchmarks.beside import FOLDER, load

ROOT = Path(__file__).parents[2]
figures, page_tables = load("figures"), load("page_tables")

PAGE = "# A device\n\nbefore\n\n<!-- figures: begin -->\n<!-- figures: end -->\n\nafter\n"


def case(ms: float, **more: Any) -> dict[str, Any]:
    """One timed case: 100 MB and hardly any arithmetic."""
    return {"ms": ms, "bytes": 100_000_000, "flops": 1000, "gb_s": 100 / ms, "tflops": 0.0, **more}


def kernels(**more: Any) -> dict[str, Any]:
    """What kernels.py writes."""
    return {
        "schema": figures.SCHEMA,
        "date": "2026-01-02",
        "device": "Stand-in 1",
        "driver": "1.2",
        "versions": {"torch": "2.11.0", "fla-core": "none"},
        "ceilings": {"copy_gb_s": 1000.0, "bf16_tflops": 100.0},
        "operators": {
            "rms_norm": {
                "status": "pass",
                "check": {"passed": 7, "failed": []},
                "cases": {
                    "prefill": case(
                        0.2,
                        peers={"torch_eager": {"ms": 0.6, "ratio": 3.0}, "other": {"not_run": "no | such <b>thing"}},
                    )
                },
            },
            "moe_router": {"status": "it took longer than 9 s"},
        },
        "figures": {"mxfp4_to_fp8_fraction_of_copy": 0.95},
        **more,
    }


def sweep(context: int, topk: int = 2048, **more: Any) -> dict[str, Any]:
    """One row of a sweep."""
    ms = {"indexer": 0.1, "selection": 0.1, "sparse attention": 0.2, "sparse layer": 0.5, "dense, our kernel": 2.0}
    return {"context": context, "batch": 8, "topk": topk, **({"ms": ms} | more if "not_run" not in more else more)}


def model() -> dict[str, Any]:
    """What model.py writes."""
    row = {"case": "k 4096 x 2", "way": "sparse", "ms": 1.5, "how": "graph", "model": "k", "context": 4096, "batch": 2}
    parts = {"contexts": {"status": "done", "rows": [{**row, "kv_bytes": 1 << 20, "kv_bytes_of_heads": 1 << 24}]}}
    parts["experts"] = {"status": "it took longer than 1 s", "rows": []}
    named = {"expert_cache_over_none_batch_8_mxfp8": 1.5, "conversion_share_of_decode_batch_8_mxfp8": 0.04}
    return {**kernels(operators={}), "model": parts, "figures": named}


def write(tmp_path: Path) -> tuple[Path, Path, list[str]]:
    """Return record, page and parts as files."""
    (tmp_path / "figures").mkdir()
    record, page = tmp_path / "figures" / "one.json", tmp_path / "one.md"
    page.write_text(PAGE)
    rows = [sweep(4096), sweep(131072), sweep(131072, 512), sweep(1 << 20, not_run="no time was left")]
    parts = {
        "kernels.json": json.dumps(kernels()),
        "model.json": json.dumps(model()),
        "sweeps.json": json.dumps({"schema": "day0.sweeps/1", "rows": rows}),
        "sparse.log": "some words\nfigure: sparse_decode_128k_over_dense 9.5\nfigure: two words here\n",
    }
    for name, text in parts.items():
        (tmp_path / name).write_text(text)
    return record, page, [str(tmp_path / name) for name in parts]


def table(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [sys.executable, str(FOLDER / "table.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_one_command_makes_record_page_and_charts_and_another_finds_what_was_changed(tmp_path: Path) -> None:
    record, page, parts = write(tmp_path)
    done = table(record, page, "--merge", *parts)
    assert (done.returncode, done.stderr) == (0, "")
    text = page.read_text()
    assert text.startswith("# A device\n\nbefore") and text.endswith("after\n")
    for wanted in (
        "MXFP4 to FP8, of the speed of a copy | 0.95 | 0.90",
        "| `rms_norm` | 7 | prefill | 0.2000 | copy | 500 GB/s | 0.50 | torch eager 3.0 |",
        "other: no &#124; such &lt;b&gt;thing",
        "| 128 Ki | 8 | 2048 | 0.100 | 0.100 | 0.200 | 0.500 | 2.000 | 4.0 |",
        "8 at a time, mxfp8 | 1.50 | 1.4",
        "1 MiB of 16",
        "figures/one-contexts.svg",
    ):
        assert wanted in text, wanted
    assert figures.read_figures(record)["figures"]["sparse_decode_128k_over_dense"] == 9.5
    assert sorted(path.name for path in record.parent.glob("*.svg")) == [
        f"one-{name}.svg" for name in ("contexts", "models", "operators", "selection")
    ]
    assert table(record, page, "--check").returncode == 0
    page.write_text(text.replace("| 0.50 |", "| 0.90 |"))
    assert table(record, page, "--check").returncode == 1
    page.write_text(text)
    data = json.loads(record.read_text())
    data["sweeps"][0]["ms"]["sparse layer"] = 0.25
    record.write_text(json.dumps(data))
    said = table(record, page, "--check")
    assert said.returncode == 1 and "one-contexts.svg says something else" in said.stdout


def test_what_was_not_timed_replaces_no_time_and_fractions_follow_the_highest_ceiling() -> None:
    first = figures.merge(None, [("a", kernels())])
    assert first["figures"]["rms_norm_prefill_fraction_of_copy"] == 0.5
    late = kernels(operators={"rms_norm": {"status": "it took longer"}}, date="2026-01-03")
    late["ceilings"] = {"copy_gb_s": 2000.0, "bf16_tflops": 90.0}
    second = figures.merge(first, [("b", late)])
    assert second["operators"]["rms_norm"]["cases"]["prefill"]["ms"] == 0.2
    assert second["figures"]["rms_norm_prefill_fraction_of_copy"] == 0.25
    assert second["ceilings"] == {"copy_gb_s": 2000.0, "bf16_tflops": 100.0}
    assert second["date"] == "2026-01-03"
    # A package that only one of the runs had belongs to its figures.
    late["versions"] = {"torch": "2.11.0", "fla-core": "0.6.0"}
    both = figures.merge(figures.merge(first, [("b", late)]), [("a", kernels())])
    assert both["versions"] == {"torch": "2.11.0", "fla-core": "0.6.0"}
    checked = kernels(operators={"rms_norm": {"status": "pass", "check": {"passed": 9, "failed": []}}})
    again = figures.merge(second, [("d", checked)])["operators"]["rms_norm"]
    assert again["check"]["passed"] == 9 and again["cases"]["prefill"]["ms"] == 0.2
    quicker = kernels(operators={"rms_norm": {"status": "pass", "cases": {"prefill": case(0.1)}}})
    third = figures.merge(second, [("c", quicker)])
    assert third["operators"]["rms_norm"]["cases"]["prefill"]["peers"]["torch_eager"]["ratio"] == pytest.approx(6.0)


def test_parts_of_two_devices_are_not_mixed() -> None:
    first = figures.merge(None, [("a", kernels())])
    with pytest.raises(Day0Error, match="measured on Stand-in 2"):
        figures.merge(first, [("b", kernels(device="Stand-in 2"))])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("cut.json", '{"schema": "day0.figures/1", "fig', "it is no JSON"),
        ("other.json", '{"schema": "day0.figures/9"}', "its schema is 'day0.figures/9'"),
        ("list.json", "[1]", "its schema is None"),
        ("rows.json", '{"schema": "day0.sweeps/1"}', "`rows` is missing"),
        ("empty.log", "nothing\n", "no line of it says"),
        ("nan.log", "figure: a nan\n", "figure a is 'nan', no number"),
    ],
)
def test_a_bad_part_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(Day0Error, match=said):
        figures.read_part(tmp_path / name)


@pytest.mark.parametrize("field", ["date", "operators", "figures", "ceilings"])
def test_a_record_without_a_fact_is_refused(tmp_path: Path, field: str) -> None:
    record = figures.merge(None, [("a", kernels())])
    del record[field]
    (tmp_path / "one.json").write_text(json.dumps(record))
    with pytest.raises(Day0Error, match=field):
        figures.read_figures(tmp_path / "one.json")


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    record, page, parts = write(tmp_path)
    page.write_text("# A device\n")
    done = table(record, page, "--merge", *parts)
    assert done.returncode == 2 and "has no lines" in done.stderr and "Traceback" not in done.stderr


def test_text_from_outside_stays_text() -> None:
    assert page_tables.escape("a|b\n<script> `x`") == "a&#124;b &lt;script&gt; \\`x\\`"


def test_hits_between_two_ends_are_computed_along_a_line() -> None:
    none = {"case": "of 8", "way": "nothing kept", "ms": 40.0, "hit_rate": 0.0, "conversion_share": 0.5}
    cache = {"case": "of 8", "way": "cache", "ms": 10.0, "hit_rate": 1.0, "conversion_share": 0.0}
    # A hit saves 30 ms; 20 ms of conversion at none of them.
    assert "| of 8 | 100.0% | 38% | 97.3% | 2.01 | 2.55 |" in page_tables.by_hits(
        [none, cache, {"case": "x", "way": "y"}]
    )
    assert page_tables.by_hits([none]) == ""
