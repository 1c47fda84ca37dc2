"""config.json of the result: what the weights are now, and nothing of what they were."""

from __future__ import annotations

from typing import Any

from day0.converters.find import quantisation_of
from day0.converters.plan import Item, Plan
from day0.converters.targets.load import load_targets

__all__ = ["finer_targets", "left_quantised", "new_config"]

_NARROW = ("U8", "I8", "I32", "F4", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ")
_OLD = ("quantization_config", "compression_config", "expert_dtype")


def new_config(plan: Plan) -> dict[str, Any]:
    """Return the config with `quantization_config` replaced or taken out, where it was found, else at the top."""
    config = dict(plan.folder.config)
    text = config.get("text_config")
    owner = config
    if isinstance(text, dict):
        text = config["text_config"] = dict(text)
        if any(key in text for key in _OLD) and "quantization_config" not in config:
            owner = text
        for key in _OLD:
            text.pop(key, None)
    for key in _OLD:
        config.pop(key, None)
    if "expert_dtype" in plan.folder.config and "fp8" in plan.target.name:
        # DeepSeek-V4: without it, engines take the experts for four bits.
        config["expert_dtype"] = "fp8"
    entry = _entry(plan)
    if entry:
        owner["quantization_config"] = entry
    return config


def _entry(plan: Plan) -> dict[str, Any]:
    """Describe what most weights became; a loader derives the block of others from their shapes."""
    if plan.target.quantisation is None:
        return _still(plan)
    entry = plan.target.quantisation(plan.parameters)
    skipped = sorted(_plain_modules(plan))
    key = "ignore" if entry["quant_method"] == "compressed-tensors" else "modules_to_not_convert"
    return {**entry, key: skipped}


def _still(plan: Plan) -> dict[str, Any]:
    """Keep the old entry where quantised weights are left in their format (`--only`, `--skip`, `--keep-unknown`)."""
    found = quantisation_of(plan.folder.config)
    if not found or not left_quantised(plan):
        return {}
    key = "ignore" if found.get("quant_method") == "compressed-tensors" else "modules_to_not_convert"
    converted = {name for item in plan.items() if item.target is not None for name in _modules(item)}
    before = found.get(key)
    return {**found, key: [*(before if isinstance(before, list) else []), *sorted(converted)]}


def left_quantised(plan: Plan) -> int:
    """Return how many tensors stay in a narrow format that they came in."""
    return sum(1 for one in plan.items() if one.kept is not None and one.kept.dtype in _NARROW)


def _plain_modules(plan: Plan) -> set[str]:
    converted = {name for item in plan.items() if item.target is not None for name in _modules(item)}
    kept = {
        item.kept.name.removesuffix(".weight")
        for item in plan.items()
        if item.kept is not None and item.kept.name.endswith(".weight") and len(item.kept.shape) == 2
    }
    return kept - converted


def _modules(item: Item) -> list[str]:
    return [item.weight.name.removesuffix(".weight")] if item.weight is not None else []


def finer_targets(plan: Plan) -> dict[str, int]:
    """Return how many weights became something finer than asked for."""
    found: dict[str, int] = {}
    for item in plan.items():
        if item.target is not None and item.target.name != plan.target.name:
            found[load_targets()[item.target.name].name] = found.get(item.target.name, 0) + 1
    return found
