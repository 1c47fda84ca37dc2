"""`day0 --version`: which day0, and with `--verbose` what it would compute on."""

from __future__ import annotations

import platform
from importlib import metadata

from day0 import __version__
from day0.cli.failures import clean

__all__ = ["version"]

LIMIT_S = 60.0


def version(*, verbose: bool) -> int:
    """Print the versions that a result depends on, as they are installed; only `verbose` imports torch and asks it."""
    print(
        f"day0 {__version__} (torch {_installed('torch')}, Python {platform.python_version()}, {platform.platform()})"
    )
    if not verbose:
        return 0
    from day0.cli.doctor_ask import ask

    print(f"transformers {_installed('transformers')}")
    answer = ask("accelerators", "", limit_s=LIMIT_S)
    for line in (answer.data or {}).get("devices", [f"torch cannot say which devices there are: {answer.why}"]):
        print(clean(f"device {line}" if answer.data else line))
    return 0


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
