"""The JSON Schema of a device profile, for editors."""

from __future__ import annotations

import json

from day0.devices.profile import DeviceProfile

__all__ = ["profile_schema"]


def profile_schema() -> str:
    """Return the schema as JSON text; `devices/profiles/schema.json` is a copy of it."""
    schema = DeviceProfile.model_json_schema(by_alias=True)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "day0 device profile"}
    return json.dumps({**schema, **head}, indent=1, ensure_ascii=False) + "\n"
