"""One call."""

from __future__ import annotations

from day0.analyzers.cases.ways._way import Way

__all__ = ["WAY"]

WAY = Way(name="plain", why="what the model does", applies=lambda signature, contract: True)
