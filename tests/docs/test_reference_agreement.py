"""The table of agreements in the documentation is the one that would be written now."""

from __future__ import annotations

import re
from pathlib import Path

from day0 import __version__
from day0.reference_ops.agreement._load import load_comparisons
from day0.reference_ops.agreement._verify import COLUMNS

ROOT = Path(__file__).resolve().parents[2]
REMAKE = "run `python benchmarks/reference_agreement.py --write-docs`"


def rows() -> list[tuple[str, ...]]:
    text = (ROOT / "docs" / "reference_agreement.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    split = [tuple(cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]) for line in lines]
    assert split[0] == COLUMNS and set(split[1]) == {"---"}
    return split[2:]


def pinned() -> dict[str, str]:
    """Return the releases that everybody installs, by name as Python packages compare names."""
    files = (ROOT / name for name in ("constraints.txt", "requirements-nodeps.txt"))
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    found = re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def test_the_table_names_exactly_the_comparisons_that_exist() -> None:
    written = [(operator, variant, against) for operator, variant, against, *_ in rows()]
    assert written == [(one.operator, one.variant, one.against) for one in load_comparisons()], REMAKE


def test_the_table_has_the_releases_that_everybody_installs() -> None:
    known = {**pinned(), "day0": __version__}
    for row, one in zip(rows(), load_comparisons(), strict=True):
        name, _, version = row[3].partition(" ")
        assert name == one.distribution and version == known[re.sub(r"[-_.]+", "-", name).lower()], REMAKE


def test_errors_in_the_table_are_within_the_limits_that_stand_now() -> None:
    for row, one in zip(rows(), load_comparisons(), strict=True):
        *_, error, limit, verdict = row
        assert limit == f"{one.limit:.2g}" and verdict == "agrees", REMAKE
        # Written with two figures, so the last one may be rounded up.
        assert float(error) <= one.limit * 1.05, row
