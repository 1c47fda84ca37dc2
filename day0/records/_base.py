"""What all records have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Record"]


class Record(BaseModel):
    """Base of all records: frozen; unknown optional fields of a later writer are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")
