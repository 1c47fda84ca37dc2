"""A small version of a transformers config with the same structure.

Every kind of layer stays (one or two of each), every part stays, sizes per head stay, since kernels are made for them.
What becomes small: the number of layers, heads, experts, the widths, the vocabulary. Equal widths stay equal, because
parts hand tensors to each other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from day0.models.sizes import EXPERTS, HEADS, LAYERS, parts_of

__all__ = ["SHRINK_STEPS", "changes", "shrink_fields", "subsets"]

MAX_LAYERS = 8
VOCABULARY = 1024
EXPERT_COUNT = 8
HEAD_COUNT = 4
INNER = 256
RANK = 64
TOP_K = 32
"""What sparse attention selects."""

INNER_NAMES = re.compile(r"\w*(intermediate|ffn|mlp|inner|shared_expert)\w*_(size|dim)|d_ff|n_inner|ffn_hidden_size")
WIDTH_NAMES = re.compile(
    r"(\w*_)?(hidden_size|hidden_dim|embed_dim|embedding_size)|d_model|n_embd|dim|\w*projection_dim"
)
RANK_NAMES = re.compile(r"\w*lora_rank|\w*_rank")
PERIODS = re.compile(r"\w*(interval|period|freq|every_n_layers|pattern)")
PER_TOKEN = re.compile(r"num_experts_per_tok\w*|\w*moe_top_?k|moe_k|top_k_experts|n_experts_per_token")
Fields = dict[str, Any]
Step = Callable[[Any, Fields], None]


def shrink_fields(config: Any, steps: tuple[Step, ...]) -> Fields:
    """Return the config's fields, nested parts included, after the steps; `config` stays as it is."""
    fields: Fields = config.to_dict()
    for path, part in parts_of(config):
        inner = _inner(fields, path)
        if inner is not None:
            for step in steps:
                step(part, inner)
    _fit_parts(config, fields)
    return fields


def _fit_parts(config: Any, fields: Fields) -> None:
    """Let the parts that hand tensors to another part end in its new width: the text's first, then the towers'."""
    text = config.get_text_config(decoder=True)
    parts = sorted(parts_of(config), key=lambda item: item[1] is not text)
    for path, part in parts:
        before, after = _hidden(vars(part)), _hidden(_inner(fields, path) or {})
        if not before or not after or before == after:
            continue
        for other, _ in parts:
            inner = _inner(fields, other)
            if inner is None or other == path:
                continue
            for name, value in list(inner.items()):
                if value == before and name != "hidden_size" and re.search("hidden|proj|width|embed|output_dim", name):
                    inner[name] = after


def _hidden(fields: Fields) -> int:
    return next((_count(fields[name]) for name in ("hidden_size", "d_model", "n_embd") if _count(fields.get(name))), 0)


def changes(before: Any, after: Any) -> dict[str, str]:
    """Return the fields that differ as text, `before -> after`; lists by their length."""
    told: dict[str, str] = {}
    now = dict(parts_of(after))
    for path, part in parts_of(before):
        other = vars(now[path]) if path in now else {}
        for name, value in vars(part).items():
            new = other.get(name)
            if isinstance(value, (int, list)) and not isinstance(value, bool) and new != value and new is not None:
                told[path + name] = f"{_text(value)} -> {_text(new)}"
    return told


def _text(value: object) -> str:
    return f"{len(value)} entries" if isinstance(value, list) and len(value) > 4 else str(value)


def _inner(fields: Fields, path: str) -> Fields | None:
    for name in path.split(".")[:-1]:
        found = fields.get(name)
        if not isinstance(found, dict):
            return None
        fields = found
    return fields


# --------------------------------------------------------------------------------------------- layers


def fewer_layers(part: Any, fields: Fields) -> None:
    """Keep a few layers, at least one of each kind."""
    depth_names = [name for name in fields if LAYERS.fullmatch(name) and _count(fields[name]) > 2]
    for total in sorted({fields[name] for name in depth_names}, reverse=True):
        kept = _kept_layers(fields, total)
        for name in depth_names:
            if fields[name] == total:
                fields[name] = len(kept)
        _cut_lists(fields, total, kept)
    for name, value in fields.items():
        # The first dense layers are fewer than all layers, or no layer of experts is left.
        if name in ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", "num_hash_layers"):
            fields[name] = min(value, 1) if _count(value) else value


def _kept_layers(fields: Fields, total: int) -> list[int]:
    """Return the layers to keep: the first of each kind and enough for what comes once in so many layers."""
    seen: dict[tuple[object, ...], int] = {}
    lists = [value for value in fields.values() if isinstance(value, list) and len(value) == total]
    indices = [set(value) for value in fields.values() if _is_index_list(value, total)]
    for layer in range(total):
        kind = (*(str(one[layer]) for one in lists), *(layer in one for one in indices))
        seen.setdefault(kind, layer)
    if len(seen) > 1:
        return sorted(seen.values())[:MAX_LAYERS]
    periods = [fields[name] for name in fields if PERIODS.fullmatch(name) and 1 < _count(fields[name]) <= MAX_LAYERS]
    return list(range(min(total, MAX_LAYERS, max(2, math.lcm(*periods)))))


def _is_index_list(value: object, total: int) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) < total
        and all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one <= total for one in value)
        and sorted(set(value)) == value
        and value[-1] > 3
    )


def _cut_lists(fields: Fields, total: int, kept: list[int]) -> None:
    for name, value in list(fields.items()):
        if isinstance(value, list) and len(value) == total:
            fields[name] = [value[layer] for layer in kept]
        elif _is_index_list(value, total):
            fields[name] = [new for new, layer in enumerate(kept) if layer in value]
        elif isinstance(value, dict) and value and all(str(key).isdigit() for key in value):
            fields[name] = {new: value.get(layer, value.get(str(layer))) for new, layer in enumerate(kept)}


# ---------------------------------------------------------------------------------- experts, words, heads


def fewer_experts(part: Any, fields: Fields) -> None:
    """Keep eight experts in at most two groups, and send each token to at most two."""
    had = max((fields[name] for name in fields if EXPERTS.fullmatch(name) and _count(fields[name])), default=0)
    for name, value in list(fields.items()):
        if not _count(value):
            continue
        if EXPERTS.fullmatch(name) and "shared" not in name and "per_tok" not in name:
            fields[name] = min(value, EXPERT_COUNT)
        elif PER_TOKEN.fullmatch(name) or (had and name in ("n_group", "num_expert_group")):
            fields[name] = min(value, 2)
        elif had and name in ("topk_group", "num_limited_groups"):
            fields[name] = 1


def fewer_words(part: Any, fields: Fields) -> None:
    """Make the vocabulary small, and give token ids that no longer exist others."""
    before = _count(fields.get("vocab_size"))
    if before > VOCABULARY:
        fields["vocab_size"] = VOCABULARY
    others = {name for name in fields if name.endswith(("_token_id", "_token_index"))}
    places = iter(range(VOCABULARY - 1, 0, -1))
    for name in sorted(others):
        value = fields[name]
        if isinstance(value, list):
            fields[name] = [one if _count(one) < VOCABULARY else next(places) for one in value]
        elif _count(value) >= VOCABULARY:
            fields[name] = next(places)


def fewer_heads(part: Any, fields: Fields) -> None:
    """Keep four heads; their widths stay, and so does the number of query heads for each key head up to four."""
    names = [name for name in fields if HEADS.fullmatch(name) and _count(fields[name])]
    most = max((fields[name] for name in names), default=0)
    if most <= HEAD_COUNT or most % HEAD_COUNT:
        return
    hidden_name = next((name for name in ("hidden_size", "d_model", "n_embd") if _count(fields.get(name))), None)
    implied = hidden_name is not None and not any(_count(fields.get(name)) for name in ("head_dim", "d_kv"))
    divisor = most // HEAD_COUNT
    for name in names:
        fields[name] = max(1, fields[name] // divisor)
    if implied and hidden_name and fields[hidden_name] % divisor == 0:
        _set_equal(fields, fields[hidden_name], fields[hidden_name] // divisor)


# ------------------------------------------------------------------------------------------------ widths


def smaller_inner(part: Any, fields: Fields) -> None:
    """Make the widths inside feed-forward layers and the low ranks small."""
    for name, value in list(fields.items()):
        if INNER_NAMES.fullmatch(name):
            fields[name] = [min(one, INNER) for one in value] if _is_sizes(value) else _less(value, INNER)
        elif RANK_NAMES.fullmatch(name):
            fields[name] = _less(value, RANK)
        elif name == "index_topk":
            fields[name] = _less(value, TOP_K)


def smaller_width(part: Any, fields: Fields) -> None:
    """Make the residual stream small where the heads do not fix it."""
    for name in ("hidden_size", "d_model", "n_embd"):
        if _count(fields.get(name)) > INNER and _count(fields.get("head_dim")):
            _set_equal(fields, fields[name], INNER)


SHRINK_STEPS: tuple[Step, ...] = (fewer_layers, fewer_experts, fewer_words, fewer_heads, smaller_inner, smaller_width)
"""In the order in which they save most. Each can be left out where a model does not bear it."""


def _set_equal(fields: Fields, before: int, after: int) -> None:
    """Give every width of a value the same new value."""
    for name, value in list(fields.items()):
        if WIDTH_NAMES.fullmatch(name) and value == before:
            fields[name] = after


def _less(value: Any, most: int) -> Any:
    return min(value, most) if _count(value) else value


def _is_sizes(value: object) -> bool:
    return isinstance(value, list) and all(_count(one) for one in value)


def _count(value: object) -> int:
    """Return a whole number above zero, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def subsets(steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    """Yield all steps, then all but one, then fewer from the end: most models bear all."""
    yield steps
    for left_out in reversed(steps):
        yield tuple(step for step in steps if step is not left_out)
    for most in range(len(steps) - 2, 0, -1):
        yield steps[:most]
