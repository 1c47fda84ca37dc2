"""Driver and versions that a figure belongs to."""

from __future__ import annotations

import subprocess
from importlib import metadata

__all__ = ["driver", "versions"]

NAMES = ("torch", "triton", "transformers", "fla-core")


def driver(device: str) -> str:
    """Return the version of the driver; empty without a GPU."""
    if device != "cuda":
        return ""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[0]  # noqa: S603 - fixed
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def versions() -> dict[str, str]:
    """Return the versions of the installed packages that matter here; `none` for one that is not there."""
    return {name: _version(name) for name in NAMES}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"
