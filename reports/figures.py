"""Numbers as people read them. Nothing here is rounded to something it is not: a small share is `<0.1 %`, not `0 %`."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["bytes_text", "counted", "error_text", "joined", "seconds_text", "share_text"]


def share_text(share: float) -> str:
    """Return a share of 0 to 1 as percent; empty for 0."""
    if share <= 0.0:
        return ""
    return "<0.1 %" if share < 0.0005 else f"{share * 100:.1f} %"


def error_text(value: float | None) -> str:
    """Return an error with two digits; empty where none was measured."""
    return "" if value is None else f"{value:.2g}"


def bytes_text(size: int) -> str:
    """Return a size in the binary unit that suits it."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024.0:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024.0
    return f"{value:,.1f} TiB"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return `1 case`, `2 cases`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def joined(parts: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def seconds_text(seconds: float | None) -> str:
    """Return a time in the unit that suits it; empty where none was measured."""
    if seconds is None:
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns" if seconds else "0 s"
