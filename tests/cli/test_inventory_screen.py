"""The first screen of the inventory and the support matrix, at the widths that terminals have."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from day0.cli import show_inventory
from day0.cli.app import app
from day0.cli.talk import Talk, _Console
from day0.devices.profile import load_profile
from day0.records import Inventory, InventoryBlock, InventoryEntry, Replacement


def day0(*arguments: object, columns: int = 120) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": str(columns), "NO_COLOR": "1"})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "toy"
    done = day0("trace", "toy", "--dtype", "float32", "--run", folder)
    assert done.exit_code == 0, done.output
    return folder


def _entry(op: str, share: float, **changes: object) -> InventoryEntry:
    fields: dict[str, object] = {
        "id": op,
        "op": op,
        "dtypes": ("bfloat16",),
        "shapes": "",
        "verdict": "missing",
        "device_verdict": "missing",
        "reason": "nobody wrote it",
        "evidence": "claimed",
        "calls": 7,
        "share": share,
        "effort": "gemm",
    }
    return InventoryEntry.model_validate(fields | changes)


def _screen(value: Inventory, width: int) -> list[str]:
    talk = Talk()
    shown = StringIO()
    talk.out = _Console(width=width, highlight=False, file=shown)
    show_inventory.inventory(talk, value)
    return shown.getvalue().splitlines()


WAY = Replacement(name="aten::b@1 base:loop==1.0", kind="decomposition", seconds=0.5, note="")
BLOCK = InventoryBlock(
    name="fused_experts",
    title="",
    operators=("day0::fused_experts",),
    recognised="module",
    reason="",
    sites=58,
    calls={"p": 58},
    share=0.6,
    gaps={"aten::b": 7, "aten::c": 3},
    closes=("aten::b",),
    saved=0.03,
)
FULL = Inventory(
    device="d",
    model="m",
    roofline_seconds=2.0,
    entries=(
        _entry("aten::b", 0.5, options=("aten::b@1 base:loop==1.0",), replacements=(WAY,)),
        _entry("aten::c", 0.1),
        _entry("aten::d", 0.4, verdict="native", device_verdict="native", effort=None),
    ),
    blocks=(BLOCK,),
)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_screen_says_what_how_much_and_what_first(width: int) -> None:
    lines = _screen(FULL, width)
    assert all(len(line) <= width for line in lines)
    text = " ".join(" ".join(lines).split())
    assert "m on d: 2 of 3 operators are gaps, 60.0% of the roofline time (1.2 s of 2 s), 14 of 21 calls" in text
    assert "by what is claimed" in text
    assert "first: close aten::b, or all of fused_experts at 58 sites (60.0%) in one kernel" in text
    assert text.index(" aten::b ") < text.index(" aten::c ")


def test_costs_are_given_beside_the_roofline() -> None:
    text = "\n".join(_screen(FULL, 120))
    assert "take base:loop==1.0, a decomposition: 500 ms on paper" in text
    assert "write a kernel; until then each call goes to the CPU and back" in text
    assert "58 × fused_experts: closes b; takes 3 calls of c; day0::fused_experts: none here yet" in text
    slower = WAY.model_copy(update={"seconds": 3.0})
    entries = (FULL.entries[0].model_copy(update={"replacements": (slower,)}), *FULL.entries[1:])
    text = "\n".join(_screen(FULL.model_copy(update={"entries": entries}), 120))
    assert "3 s on paper, 3 × the operator" in text


def test_a_device_without_gaps_is_told_so() -> None:
    lines = _screen(FULL.model_copy(update={"entries": FULL.entries[2:], "blocks": ()}), 80)
    assert "the device has everything that the model calls" in "\n".join(lines)
    assert "first:" not in "\n".join(lines)


def test_names_from_a_record_are_not_markup() -> None:
    evil = FULL.model_copy(update={"model": "[red]m\x1b[2J", "device": "[/]"})
    text = "\n".join(_screen(evil, 80))
    assert "[red]m" in text and "\x1b" not in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0"), (1.234, "1.23 s"), (0.0636, "63.6 ms"), (12e-6, "12 µs"), (5e-10, "0"), (4321.0, "4,321 s")],
)
def test_times_have_three_digits(seconds: float, text: str) -> None:
    assert show_inventory.seconds_text(seconds) == text


@pytest.mark.parametrize("width", [80, 120])
def test_the_toys_inventory_fits_on_a_screen(run: Path, width: int) -> None:
    done = day0("inventory", "--run", run, "--device", "sim", columns=width)
    lines = done.output.splitlines()
    assert done.exit_code == 0 and len(lines) <= 50
    assert all(len(line) <= width for line in lines)
    assert "rms_norm: closes rsqrt" in done.output


# ------------------------------------------------------------------------------------------- matrix


def test_the_matrix_shows_devices_side_by_side_and_changes_nothing(run: Path, tmp_path: Path) -> None:
    before = sorted((path.name, path.stat().st_mtime_ns) for path in run.iterdir())
    file = tmp_path / "support.csv"
    done = day0("matrix", "--run", run, "--device", "null", "--device", "sim", "--csv", file)
    assert done.exit_code == 0, done.output
    assert before == sorted((path.name, path.stat().st_mtime_ns) for path in run.iterdir())
    rows = list(csv.DictReader(StringIO(file.read_text())))
    rsqrt = next(row for row in rows if row["operator"] == "aten::rsqrt")
    assert (rsqrt["null"], rsqrt["sim"], rsqrt["sim gaps"]) == ("native", "missing", rsqrt["signatures"])
    covered = {row["operator"]: row for row in rows[-2:]}
    assert float(covered["covered"]["sim share"]) < float(covered["covered with registry"]["sim share"])
    assert float(covered["covered"]["sim share"]) < float(covered["covered"]["null share"])
    assert len({(row["operator"], row["dtypes"]) for row in rows}) == len(rows)


def test_the_matrix_agrees_with_the_inventory(run: Path) -> None:
    made = json.loads(day0("inventory", "--run", run, "--device", "sim", "--json").stdout)["body"]
    table = json.loads(day0("matrix", "--run", run, "--device", "sim", "--json").stdout)
    gaps = [entry for entry in made["entries"] if entry["device_verdict"] == "missing"]
    assert sum(row["cells"][0]["gaps"] for row in table["rows"]) == len(gaps)
    assert table["covered"][0] == pytest.approx(1.0 - sum(entry["share"] for entry in gaps))


def test_two_profiles_of_one_name_are_refused(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "mine.yaml"
    copy.write_text(Path(load_profile.__code__.co_filename).with_name("profiles").joinpath("sim.yaml").read_text())
    done = day0("matrix", "--run", run, "--device", "sim", "--device", copy)
    assert done.exit_code == 2
    assert "two of the profiles are named 'sim'" in done.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--device", "sim", "--device", "sim"], "'sim' was named twice"),
        (["--device", "simm"], "did you mean"),
        (["--device", "sim", "--csv", "trace.json"], "does not end in .csv"),
        (["--device", "sim", "--csv", "nowhere/x.csv"], "there is no folder"),
    ],
)
def test_mistakes_at_the_matrix_are_named(run: Path, arguments: list[str], text: str) -> None:
    done = day0("matrix", "--run", run, *arguments)
    assert done.exit_code == 2
    assert text in done.output
