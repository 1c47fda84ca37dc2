"""Which files a run consists of, byte for byte, and what became of them since."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from day0.records._base import Record

__all__ = ["EvidenceProblem", "Manifest", "ManifestFile", "VerifyReport"]


class ManifestFile(Record):
    """One file of a run folder, as the report saw it."""

    path: str
    """Below the run folder, with `/`."""
    kind: Literal["file", "link"] = "file"
    bytes: int
    sha256: str
    """Of the content; of a link's target for a link."""
    parts: dict[str, str] = Field(default_factory=dict)
    """Hash of each part of a JSON file by its name, `environment` or `body.cases`, so that a change can be named."""


class Manifest(Record):
    """Every file of a run folder, sorted by path."""

    files: tuple[ManifestFile, ...]


class EvidenceProblem(Record):
    """One place where the evidence does not hold together."""

    file: str
    field: str = ""
    """Part of the record, line of a journal, or entry of a lock; empty where it cannot be told."""
    what: str


class VerifyReport(Record):
    """What was found when the evidence of a run was recomputed."""

    problems: tuple[EvidenceProblem, ...]
    checked: dict[str, int]
    """What was recomputed, and how many of it."""
    unchecked: tuple[str, ...] = ()
    """What could not be, with the reason."""
