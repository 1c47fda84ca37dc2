"""Modules that stand beside the scripts in benchmarks/gpu, which is no package."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "load"]

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"


def load(name: str) -> Any:
    """Return a module; its folder is looked into for this import alone, since names there stand elsewhere too."""
    sys.path.insert(0, str(FOLDER))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(FOLDER))
