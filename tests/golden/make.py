"""Make the golden files of the current schema numbers: `python -m tests.golden.make`. Old numbers are never made again."""

from __future__ import annotations

from pathlib import Path

from day0.codec import SCHEMAS, encode
from day0.records import Record
from tests.golden.other_samples import converted, endpoint, fit, manifest, ranks, selftest, verified
from tests.golden.stage_samples import canary, inventory, lock, numerics, trace

__all__ = ["path_of", "records", "text_of"]

HERE = Path(__file__).parent


def records() -> tuple[Record, ...]:
    """Return one record of each kind, with every field set."""
    stages = (trace(), inventory(), lock(), numerics(), canary())
    return (*stages, fit(), converted(), selftest(), endpoint(), ranks(), manifest(), verified())


def text_of(record: Record) -> str:
    """Return the text of a golden file."""
    return encode(record, inputs={"model": "sha256:33"}, environment={"torch": "2.13.0"})


def path_of(record: Record) -> Path:
    """Return its place, by schema name and number."""
    name, number = SCHEMAS[type(record)]
    return HERE / f"{name.removeprefix('day0.')}-{number}.json"


if __name__ == "__main__":
    for made in records():
        if not path_of(made).exists():
            path_of(made).write_text(text_of(made), encoding="utf-8")
