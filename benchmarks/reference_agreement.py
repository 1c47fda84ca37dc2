"""How far our references are from other people's code; `--write-docs` puts the table into the documentation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from day0.reference_ops.agreement._verify import COLUMNS, Agreement, cells, choose, missing, verify

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference_agreement.md"
INTRODUCTION = """# Agreement of the references

What an operator means is its reference in `reference_ops/`. Each row calls a reference and somebody else's code on the
same inputs. The error is the largest difference over the largest magnitude, for choices and codes the share or number
that differs, or what the variant says; limit 0 means bit for bit. Rows against `day0` compare with a definition written
a second time where nobody else's code can be installed.

`day0 ops verify` makes this table anew from what is installed. This copy is written by
`python benchmarks/reference_agreement.py --write-docs`; errors of size 1e-16 vary between machines.
"""


def main() -> int:
    """Print the table; exit code 1 if a reference differs, or if docs are asked for and something is not installed."""
    done = verify(choose(None))
    print(table(done))
    absent = missing(done)
    failed = any(one.failed for one in done)
    if "--write-docs" in sys.argv[1:]:
        if failed or absent:
            print(f"not written: {'something differs' if failed else 'not installed: ' + ', '.join(absent)}")
            return 1
        PAGE.write_text(f"{INTRODUCTION}\n{table(done)}\n", encoding="utf-8")
    compared = {one.comparison.operator for one in done if one.verdict == "agrees"}
    print(f"figure: operators_compared {len(compared)}")
    return int(failed)


def table(done: Sequence[Agreement]) -> str:
    """Return the table in Markdown."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(cells(one) for one in done)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
