"""Refuse sizes that no machine can build, with the figure, before anything is built.

A constructor given 10^12 experts or layers does not fail: it goes on for years, and memory fills with modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from day0.errors import Day0Error

__all__ = ["estimate_parameters", "refuse_absurd_sizes"]

MAX_LAYERS = 10_000
MAX_EXPERTS = 100_000
MAX_PARAMETERS = 10**15
"""A thousand trillion, some three hundred times the largest published model."""

LAYERS = re.compile(r"(num|n)_(\w+_)?layers?|\w+_layers?|depth|layers?")
EXPERTS = re.compile(r"\w*(num|n)_\w*experts|\w*experts_num|num_local_experts")
WIDTHS = re.compile(
    r"\w*hidden_size|d_model|n_embd|\w*intermediate_size|\w*ffn_dim|d_ff|\w*head_dim|vocab_size|n_inner"
)
HEADS = re.compile(r"(\w+_)?num_\w*heads|n_heads?|\w+_attention_heads")


def refuse_absurd_sizes(config: Any, source: str) -> None:
    """Raise Day0Error for a config with a size below one, or that asks for more than can be built."""
    for path, part in parts_of(config):
        for name, value in numbers_of(part):
            where = f"{source}, {path}{name}"
            if abs(value) >= 1 << 63:
                raise Day0Error(where, f"{value:,} does not fit into 64 bits", hint="check the number")
            if value < 1 and (WIDTHS.fullmatch(name) or HEADS.fullmatch(name) or _is_main_depth(name)) and value != 0:
                raise Day0Error(where, f"{value:,} is no size", hint="give a number of one or more")
            _refuse_more(where, value, "layers", MAX_LAYERS if LAYERS.fullmatch(name) else None)
            _refuse_more(where, value, "experts", MAX_EXPERTS if EXPERTS.fullmatch(name) else None)
        count = estimate_parameters(part)
        if count > MAX_PARAMETERS:
            sizes = ", ".join(f"{name}={value:,}" for name, value in numbers_of(part) if value > 100_000)
            what = f"it would have about {float(count):.1e} parameters; day0 builds up to {MAX_PARAMETERS:.0e}"
            raise Day0Error(f"{source}{', ' if path else ''}{path[:-1]}", what, facts=(sizes,), hint="check the sizes")


def _refuse_more(where: str, value: int, noun: str, most: int | None) -> None:
    if most is not None and value > most:
        what = f"{value:,} {noun} are more than the {most:,} that day0 builds"
        raise Day0Error(where, what, hint="check the number of zeros")


def _is_main_depth(name: str) -> bool:
    return name in ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "depth")


def parts_of(config: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield a config and its nested configs, each with its path, `vision_config.`."""
    yield path, config
    if depth > 4:
        return
    for name, value in vars(config).items():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from parts_of(value, f"{path}{name}.", depth + 1)


def numbers_of(part: Any) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers among a config's own fields."""
    for name, value in vars(part).items():
        if isinstance(value, int) and not isinstance(value, bool) and not name.startswith("_"):
            yield name, value


def estimate_parameters(part: Any) -> int:
    """Return about how many parameters a transformer of these sizes has; too many rather than too few.

    Counted as Python's whole numbers, which do not overflow.
    """
    sizes = dict(numbers_of(part))

    def first(*names: str) -> int:
        return next((sizes[name] for name in names if sizes.get(name)), 0)

    hidden = first("hidden_size", "d_model", "n_embd", "dim")
    layers = first("num_hidden_layers", "n_layer", "num_layers", "n_layers", "depth")
    heads = first("num_attention_heads", "n_head", "num_heads", "n_heads")
    inner = first("intermediate_size", "d_ff", "n_inner", "ffn_dim", "decoder_ffn_dim") or 4 * hidden
    attention = 4 * hidden * max(hidden, heads * first("head_dim", "d_kv"))
    experts = max((value for name, value in sizes.items() if EXPERTS.fullmatch(name)), default=0)
    expert = 3 * hidden * (first("moe_intermediate_size", "expert_ffn_hidden_size") or inner)
    layer = attention + max(3 * hidden * inner, experts * expert)
    return 2 * first("vocab_size") * hidden + layers * layer
