"""Records written by earlier releases: all of them load, and the newest come out byte for byte as they went in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from day0 import __version__
from day0.codec import SCHEMAS, decode, encode
from day0.records import Record
from tests.golden.make import path_of, records

FILES = sorted(Path(__file__).parent.glob("*.json"))
KINDS = {name.removeprefix("day0."): kind for kind, (name, _) in SCHEMAS.items()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_golden_file_loads_and_the_newest_are_written_again_byte_for_byte(path: Path) -> None:
    name, _, number = path.stem.partition("-")
    kind = KINDS[name]
    text = path.read_text(encoding="utf-8")
    found = decode(kind, text, where=path.name, remake="")
    if int(number) == SCHEMAS[kind][1]:
        made_by = f"day0 {__version__}"
        again = encode(found.record, inputs=found.inputs, environment=found.environment)
        assert again == text.replace(found.made_by, made_by)


def test_the_current_schema_of_every_record_has_a_golden_file() -> None:
    assert {path_of(record) for record in records()} <= set(FILES)
    assert {type(record) for record in records()} == set(SCHEMAS), "a kind of record has no sample"


@pytest.mark.parametrize("record", records(), ids=lambda record: type(record).__name__)
def test_a_changed_field_of_a_record_shows_here(record: Record) -> None:
    """A field that is renamed, removed or of another type is a new schema number, and an old golden file stays."""
    stored = json.loads(path_of(record).read_text(encoding="utf-8"))["body"]
    assert json.loads(record.model_dump_json()) == stored
