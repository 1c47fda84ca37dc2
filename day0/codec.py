"""Records to JSON files and back: the envelope, schema versions, and refusals that say what to run again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from day0 import __version__
from day0.errors import Day0Error
from day0.hashing import hash_json
from day0.records import (
    CanaryReport,
    ConvertReport,
    EndpointReport,
    FitReport,
    Inventory,
    Lock,
    Manifest,
    NumericsReport,
    RanksReport,
    Record,
    SelftestReport,
    Trace,
    VerifyReport,
)

__all__ = ["SCHEMAS", "Envelope", "NewerRecordError", "body_hash", "decode", "encode"]

SCHEMAS: dict[type[Record], tuple[str, int]] = {
    Trace: ("day0.trace", 1),
    Inventory: ("day0.inventory", 1),
    Lock: ("day0.lock", 1),
    NumericsReport: ("day0.numerics", 1),
    CanaryReport: ("day0.canary", 1),
    FitReport: ("day0.fit", 1),
    ConvertReport: ("day0.convert", 1),
    SelftestReport: ("day0.selftest", 1),
    EndpointReport: ("day0.endpoint", 1),
    RanksReport: ("day0.ranks", 1),
    Manifest: ("day0.manifest", 1),
    VerifyReport: ("day0.verify", 1),
}

R = TypeVar("R", bound=Record)


class NewerRecordError(Day0Error):
    """A record of a later day0: refused everywhere, and never overwritten."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope(Generic[R]):
    """A record with where it came from."""

    record: R
    inputs: dict[str, str]
    """Name of each input and the hash it had."""
    environment: dict[str, str]
    made_by: str
    digest: str
    """Hash of what the record says, which later stages record as their input."""


BESIDE_THE_CHOICE: dict[type[Record], dict[str, tuple[str, ...]]] = {
    Lock: {"": ("ambiguities", "holes"), "entries": ("verified", "decisions", "origin"), "gaps": ("decisions",)},
}
"""Fields of a record, or of the items of its lists, that explain it or speak of it, but are not what it says."""


def body_hash(record: Record) -> str:
    """Hash what a record says: without when and where it was made, for a lock without how it came to its choices.

    So a lock stays the same lock when a check has verified it, or when a kernel that nobody chose was added.
    """
    plain = _plain(record)
    for name, fields in BESIDE_THE_CHOICE.get(type(record), {}).items():
        for item in plain[name] if name else [plain]:
            for field in fields:
                item.pop(field, None)
    return hash_json(plain)


def _plain(record: Record) -> dict[str, Any]:
    # Through text: only there pydantic writes infinity and NaN as strings, which JSON has no numbers for.
    plain: dict[str, Any] = json.loads(record.model_dump_json())
    return plain


def encode(record: Record, *, inputs: dict[str, str], environment: dict[str, str]) -> str:
    """Return the text of the file: stable, sorted where order has no meaning, ending in a newline."""
    name, version = SCHEMAS[type(record)]
    plain = _plain(record)
    document = {
        "schema": f"{name}/{version}",
        "made_by": f"day0 {__version__}",
        "environment": dict(sorted(environment.items())),
        "inputs": dict(sorted(inputs.items())),
        "sha256": hash_json(plain),
        "body": plain,
    }
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def decode(kind: type[R], text: str, *, where: str, remake: str) -> Envelope[R]:
    """Read a record back.

    `where` is the file and `remake` the command that makes it again, both for messages.
    Raises Day0Error: not JSON or cut off, another or a newer schema, fields missing or of the wrong type,
    or a body that does not have the hash written beside it.
    """
    document = _parse(text, where, remake)
    _check_schema(kind, document.get("schema"), where, remake)
    try:
        record = kind.model_validate(document.get("body"))
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
        path = ".".join(str(part) for part in ("body", *fault["loc"]))
        raise Day0Error(where, f"{path}: {fault['msg'].lower()}", hint=f"make it again with `{remake}`") from None
    # The text's own body: read back as a record it would also hold the optional fields of a later day0.
    try:
        digest = hash_json(document.get("body"))
    except (UnicodeEncodeError, RecursionError):
        what = "body: it holds text that is not Unicode, or is nested too deeply"
        raise Day0Error(where, what, hint=f"make it again with `{remake}`") from None
    if document.get("sha256") != digest:
        raise Day0Error(
            where,
            "the body was changed after it was written",
            facts=(f"written beside it: {document.get('sha256')}", f"hash of the body: {digest}"),
            hint=f"make it again with `{remake}`",
        )
    return Envelope(
        record=record,
        inputs=_texts(document, "inputs", where, remake),
        environment=_texts(document, "environment", where, remake),
        made_by=str(document.get("made_by", "")),
        digest=body_hash(record),
    )


def _parse(text: str, where: str, remake: str) -> dict[str, object]:
    hint = f"make it again with `{remake}`"
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        cut = "not JSON" if text.rstrip().endswith("}") else "cut off"
        raise Day0Error(where, f"the record is {cut} at line {error.lineno}: {error.msg}", hint=hint) from None
    except ValueError as error:  # a number of more digits than Python reads
        raise Day0Error(where, f"the record cannot be read: {error}", hint=hint) from None
    except RecursionError:
        raise Day0Error(where, "the record is nested too deeply to be ours", hint=hint) from None
    if not isinstance(document, dict):
        raise Day0Error(where, f"expected a record, got a JSON {type(document).__name__}", hint=hint)
    return document


def _check_schema(kind: type[Record], found: object, where: str, remake: str) -> None:
    name, version = SCHEMAS[kind]
    have, _, number = str(found).partition("/")
    if have != name or not number.isdecimal() or len(number) > 9:
        raise Day0Error(
            where, f"expected a record of schema {name}/{version}, got {found!r}", hint=f"make it with `{remake}`"
        )
    if int(number) > version:
        raise NewerRecordError(
            where,
            f"it has schema {found}, and day0 {__version__} reads {name} up to /{version}",
            hint="update day0, or name another folder with --run",
        )


def _texts(document: dict[str, object], key: str, where: str, remake: str) -> dict[str, str]:
    value = document.get(key, {})
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise Day0Error(where, f"{key}: expected names with texts", hint=f"make it again with `{remake}`")
    return value
