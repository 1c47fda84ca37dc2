"""What the caches of a model say of themselves: converted experts, and pages of keys and values."""

from __future__ import annotations

from typing import Any

from torch import nn

from day0.analyzers.canary.gates import Figure
from day0.converters.online.cached import CachedExperts
from day0.converters.online.expert_cache import ExpertCache
from day0.models.paging import PageTable, metrics

__all__ = ["cache_figures"]


def cache_figures(model: nn.Module, cache: Any) -> dict[str, float | Figure]:
    """Return the counters of a model's expert cache and workspace, and of the pages of `cache`, what a call returned."""
    return {**_experts(_expert_cache(model)), **_pages(getattr(cache, "pages", None))}


def _expert_cache(model: nn.Module) -> ExpertCache | None:
    held = (getattr(module, "workspace", None) for module in model.modules())
    return next((one.cache for one in held if isinstance(one, CachedExperts)), None)


def _experts(cache: ExpertCache | None) -> dict[str, float | Figure]:
    names = ("cache_hit_rate", "cache_evictions", "workspace_slots", "workspace_bytes_converted")
    if cache is None:
        return {name: Figure(None, why="the model runs without an expert cache") for name in names}
    found = cache.metrics()
    values = (found.hit_rate, float(found.evictions), float(cache.workspace.slots), float(found.bytes_converted))
    return dict(zip(names, values, strict=True))


def _pages(table: Any) -> dict[str, float | Figure]:
    names = ("kv_used_blocks", "kv_wasted_share")
    if not isinstance(table, PageTable):
        return {name: Figure(None, why="the model's cache has no pages") for name in names}
    found = metrics(table)
    return {names[0]: float(found.used_blocks), names[1]: found.wasted_share}
