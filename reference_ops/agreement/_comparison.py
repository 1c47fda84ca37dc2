"""One comparison of a reference with somebody else's code. Files beside this one define COMPARISONS."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType

import torch

__all__ = ["Comparison", "error", "load_file", "worst"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What is compared with what. `run` returns the largest error, which may be at most `limit`."""

    operator: str
    variant: str
    """Which attributes or layout: empty where there is one only."""
    against: str
    """Function, class or file of the other side."""
    distribution: str
    """Whose version stands in the table: the name on PyPI."""
    limit: float
    """0 where the two must agree bit for bit."""
    run: Callable[[], float]


def error(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the largest difference over the largest magnitude; infinite if shapes or non-finite places differ."""
    a, b = mine.detach().to(torch.float64), theirs.detach().to(torch.float64)
    if a.shape != b.shape or not torch.equal(torch.isnan(a), torch.isnan(b)):
        return float("inf")
    infinite = torch.isinf(a) | torch.isinf(b)
    if not torch.equal(a[infinite], b[infinite]):
        return float("inf")
    places = torch.isfinite(a)
    if not bool(places.any()):
        return 0.0
    a, b = a[places], b[places]
    return float((a - b).abs().max() / b.abs().max().clamp_min(torch.finfo(torch.float64).tiny))


def worst(*pairs: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Return the largest error of several results."""
    return max(error(mine, theirs) for mine, theirs in pairs)


def load_file(package: str, path: str) -> ModuleType:
    """Load one file of an installed distribution without importing its package, which may need a GPU.

    Raises FileNotFoundError if the distribution does not hold it.
    """
    found = Path(str(distribution(package).locate_file(path)))
    if not found.is_file():
        raise FileNotFoundError(found)
    name = f"agreement_{path.replace('/', '_').removesuffix('.py')}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, found)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(found)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        # Half a module would be taken for a whole one the next time.
        del sys.modules[name]
        raise
    return module
