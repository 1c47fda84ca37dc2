"""Make a run folder with a lock for the smoke checkpoint: `lock.py FOLDER KERNELS OPERATOR…`."""

from __future__ import annotations

import sys
from pathlib import Path

from day0.cli.rundir import write_atomically
from day0.codec import encode
from day0.records import Lock, LockEntry
from day0.registry.collect import collect

DTYPES = {
    "day0::rms_norm": ("float32", "float32"),
    "day0::fused_add_rms_norm": ("float32", "float32", "float32"),
    "day0::gated_activation": ("float32",),
    "day0::moe_router": ("float32", "float32"),
    "aten::silu": ("float32",),
}


def main(folder: Path, kernels: Path, operators: list[str]) -> None:
    """Write `ops.lock` with the smoke implementation of each operator, in the dtypes of the checkpoint."""
    known = {one.operator: one for one in collect((kernels,)) if one.id == "smoke"}
    entries = tuple(
        LockEntry(
            operator=name,
            dtypes=DTYPES[name],
            signatures=(),
            identity=known[name].identity,
            kind=known[name].kind,
            source_hash=known[name].source_hash,
            origin=known[name].origin,
            decisions=(),
        )
        for name in operators
    )
    lock = Lock(device="cpu", namespace="base", model="sha256:smoke", entries=entries)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "ops.lock", encode(lock, inputs={}, environment={}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
