"""The summary as a JSON value, in the envelope that every record has."""

from __future__ import annotations

import json

from day0 import __version__
from day0.hashing import hash_json
from day0.reports.bundle import Bundle
from day0.reports.clean import clean
from day0.reports.summarise import summarise

__all__ = ["SCHEMA", "render_json"]

SCHEMA = "day0.report/1"


def render_json(bundle: Bundle) -> dict[str, object]:
    """Return the value of `report.json`: plain JSON, with infinities and NaN as the strings `Infinity` and `NaN`."""
    # Through text: in `mode="json"` pydantic leaves infinities as floats, for which JSON has no word.
    body: dict[str, object] = json.loads(summarise(bundle).model_dump_json())
    return {
        "schema": SCHEMA,
        "made_by": f"day0 {__version__}",
        "environment": _clean_pairs(bundle.environment),
        "inputs": _clean_pairs(bundle.hashes),
        "sha256": hash_json(body),
        "body": body,
    }


def _clean_pairs(pairs: dict[str, str]) -> dict[str, str]:
    return {clean(name): clean(value) for name, value in sorted(pairs.items())}
