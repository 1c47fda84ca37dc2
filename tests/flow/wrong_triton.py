"""Kernels in Triton with one fault each, as somebody else would bring them: files for `--with`.

`python -m tests.flow.wrong_triton FOLDER` writes them. Each is preferred over the right one that it was copied from.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.kernels.planted import PLANTED

__all__ = ["FAULTS", "write_wrong"]

KERNELS = Path(__file__).resolve().parents[2] / "kernels" / "triton"
FAULTS = (
    "mask_one_short",
    "ties_the_other_way",
    "router_ties_the_other_way",
    "last_rows_of_an_expert",
    "decay_after_the_read",
)
"""Of `tests/kernels/planted.py`: those whose kernels the toy calls in bfloat16."""


def write_wrong(folder: Path) -> dict[str, Path]:
    """Write a file for each fault, and return them by operator."""
    return {f"day0::{PLANTED[fault].operator}": _write(fault, folder) for fault in FAULTS}


def _write(fault: str, folder: Path) -> Path:
    one = PLANTED[fault]
    source = (KERNELS / f"{one.operator}.py").read_text(encoding="utf-8")
    for right, wrong in ((one.right, one.wrong), *one.also, ('id="triton"', 'id="outside"'), ("rank=50", "rank=1")):
        if right not in source:
            raise ValueError(f"{fault}: {right!r} stands no longer in the kernel")
        source = source.replace(right, wrong)
    path = folder / f"wrong_{one.operator}.py"
    path.write_text(source, encoding="utf-8")
    return path


if __name__ == "__main__":
    for written in write_wrong(Path(sys.argv[1])).values():
        sys.stdout.write(f"--with {written}\n")
