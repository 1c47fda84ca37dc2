"""The JSON Schema of playbook files: of a plan, and of what a file may have until it is worked out (decision 0019)."""

from __future__ import annotations

from typing import Any

from day0.playbook import PlaybookHead

__all__ = ["with_language"]

VARIABLE = {"type": "string", "pattern": r"\$\{[^{}]+\}", "description": "A variable, or a text with variables in it."}


def with_language(plan: dict[str, Any], definitions: dict[str, Any], head: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a file from those of a plan, its parts, and `PlaybookHead`.

    Every value may be a variable. What a plan needs may come from an included file, or from the matrix.
    """
    fields = {name: _or_variable(one) for name, one in plan["properties"].items() if name != "schema"}
    own = {name: head["properties"][name] for name in PlaybookHead.model_fields}
    needs = plan.get("required", [])
    rest = {key: value for key, value in plan.items() if key not in ("properties", "required")}
    return {
        **rest,
        "anyOf": [{"required": ["include"]}, {"required": ["matrix"]}, {"required": needs}],
        "properties": {"schema": plan["properties"]["schema"], **own, **fields},
        "$defs": {name: _part(one) for name, one in definitions.items()},
    }


def _part(definition: dict[str, Any]) -> dict[str, Any]:
    if "properties" not in definition:
        return definition
    return {**definition, "properties": {name: _or_variable(one) for name, one in definition["properties"].items()}}


def _or_variable(schema: dict[str, Any]) -> dict[str, Any]:
    """Let a value be a variable, and each item of a list too."""
    schema = {**schema, "items": _or_variable(schema["items"])} if isinstance(schema.get("items"), dict) else schema
    if schema.get("type") == "string" and not {"enum", "const", "pattern", "format"} & schema.keys():
        return schema
    about: dict[str, Any] = {key: schema[key] for key in ("title", "description", "default") if key in schema}
    return {**about, "anyOf": [{key: one for key, one in schema.items() if key not in about}, VARIABLE]}
