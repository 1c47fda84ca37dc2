"""What the command line asks of one canary, beside the plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["EVERYTHING", "CanaryAsk"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CanaryAsk:
    """Which stages, whether to go on where an earlier run stopped, and where passes of the reference are kept."""

    only: tuple[str, ...] = ()
    first: str = ""
    resume: bool = False
    reference: Path | None = None

    @property
    def selected(self) -> bool:
        """Say whether some stages are left out: then the record is no whole canary."""
        return bool(self.only or self.first)


EVERYTHING = CanaryAsk()
