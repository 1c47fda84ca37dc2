"""The JSON Schema of every file that day0 writes or reads, from the classes that do it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from day0.analyzers.diff.change import Diff
from day0.codec import SCHEMAS
from day0.errors import Day0Error, near_names
from day0.playbook import Playbook, PlaybookHead
from day0.reports.schema_playbook import with_language
from day0.reports.summary import Summary

__all__ = ["file_name", "schema_names", "schema_of"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
HASH = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
NO_NUMBER = {"enum": ["Infinity", "-Infinity", "NaN"]}
"""How infinity and NaN are written, for which JSON has no numbers."""


@cache
def _kinds() -> dict[str, tuple[type[BaseModel], int]]:
    """Return class and schema number by name: what is in an envelope, and the two that are not."""
    records: dict[str, tuple[type[BaseModel], int]] = {
        name.removeprefix("day0."): (kind, number) for kind, (name, number) in SCHEMAS.items()
    }
    return {**records, "report": (Summary, 1), "diff": (Diff, 1), "playbook": (Playbook, 1)}


def schema_names() -> tuple[str, ...]:
    """Return the names of all schemas, sorted."""
    return tuple(sorted(_kinds()))


def file_name(name: str) -> str:
    """Return where a schema is published: its name and its number."""
    return f"{name}-{_kinds()[name][1]}.json"


def schema_of(name: str) -> dict[str, Any]:
    """Return one schema, of draft 2020-12. Raises Day0Error for a name that there is none for."""
    if name not in _kinds():
        hint = near_names(name, schema_names()) or f"use one of: {', '.join(schema_names())}"
        raise Day0Error(f"schema {name}", "there is no such schema", hint=hint)
    kind, number = _kinds()[name]
    body = kind.model_json_schema(schema_generator=_Generate, ref_template="#/$defs/{model}")
    definitions = body.pop("$defs", {})
    head = {"$schema": DIALECT, "$id": f"urn:day0:schema:{name}:{number}", "title": f"day0.{name}/{number}"}
    if name == "playbook":
        own = PlaybookHead.model_json_schema(schema_generator=_Generate, ref_template="#/$defs/{model}")
        definitions = {**definitions, **own.pop("$defs", {})}
        return {**head, **with_language(_without(body, "title"), definitions, own)}
    schema = {"const": f"day0.{name}/{number}"}
    if name == "diff":
        properties = {"schema": schema, **body["properties"]}
        return {**head, **_without(body, "title"), "properties": properties, "$defs": definitions}
    return {**head, **_envelope(schema, f"#/$defs/{kind.__name__}"), "$defs": {**definitions, kind.__name__: body}}


def _without(value: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: one for key, one in value.items() if key not in names}


def _envelope(schema: dict[str, Any], body: str) -> dict[str, Any]:
    """Return what stands around the body of a record (day0/codec.py)."""
    return {
        "type": "object",
        "required": ["schema", "made_by", "environment", "inputs", "sha256", "body"],
        "properties": {
            "schema": schema,
            "made_by": {"type": "string", "description": "Name and version of what wrote it."},
            "environment": {**TEXTS, "description": "Versions and platform."},
            "inputs": {**TEXTS, "description": "Name of each input and the hash it had."},
            "sha256": {**HASH, "description": "Of the body as canonical JSON: sorted keys, no spaces, UTF-8."},
            "body": {"$ref": body},
        },
    }


class _Generate(GenerateJsonSchema):
    """Adds what stands in the classes' sources below each field, and how numbers that JSON lacks are written."""

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        """Let a number without limits be one of the words for what is none."""
        number = super().float_schema(schema)
        finite = schema.get("allow_inf_nan") is False or any(name in schema for name in ("ge", "gt", "le", "lt"))
        return number if finite else {"anyOf": [number, NO_NUMBER]}

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Describe each field by the string that stands below it."""
        found = super().model_schema(schema)
        kind = schema["cls"]
        for name, text in _field_texts(kind):
            field = kind.model_fields.get(name)
            shown = found.get("properties", {}).get(field.alias or name if field else name)
            if shown is not None:
                shown.setdefault("description", text)
        return found


def _field_texts(kind: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class with the string that stands below each."""
    for one in ast.walk(_tree(inspect.getsourcefile(kind) or "")):
        if isinstance(one, ast.ClassDef) and one.name == kind.__name__:
            for field, text in zip(one.body, one.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    said = text.value if isinstance(text, ast.Expr) else None
                    if isinstance(said, ast.Constant) and isinstance(said.value, str):
                        yield field.target.id, " ".join(said.value.split())


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse(Path(path).read_text(encoding="utf-8"))
