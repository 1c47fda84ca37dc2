"""Links from a report to files of its run folder: relative, below it, and encoded part by part."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from day0.reports.clean import REFUSED, path_below

__all__ = ["Link", "linked"]

_ABOVE = "../"
"""The page stands in `report/` of the run folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A word, and a path below the run folder."""

    label: str
    path: str

    def __str__(self) -> str:
        return f"{self.label}: {self.path}"

    @property
    def href(self) -> str:
        """Where it leads from the page. Every part is encoded, so that none can become a scheme, a query or a host."""
        return _ABOVE + "/".join(quote(part, safe="") for part in self.path.split("/"))


def linked(label: str, path: str) -> Link | str:
    """Return a link to a path below the run folder; text for one that leads elsewhere; empty for none."""
    if not path:
        return ""
    shown = path_below(path)
    if shown != path or path == REFUSED or any(part in ("", ".", "..") for part in path.rstrip("/").split("/")):
        return f"{label}: {shown}"
    return Link(label=label, path=path.rstrip("/"))
