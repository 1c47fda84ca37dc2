"""`toy` and `toy:<variant>` as model sources."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import torch
from safetensors import safe_open
from torch import nn

from day0.errors import Day0Error, near_names
from day0.hashing import hash_json
from day0.models.spec import ModelSpec
from day0.models.toy.config import ToyConfig
from day0.models.toy.model import ToyModel, make_toy
from day0.models.toy.online import cache_experts
from day0.models.toy.variants import VARIANTS
from day0.models.toy.weights import SEED, WEIGHTS_HASH, draw_weights, load_weights, make_weights, weights_path
from day0.playbook import ModelPlan
from day0.reference_ops.signatures import dtype_of

__all__ = ["open_toy"]

_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word",
    tuple: "a list of whole numbers",
}


def open_toy(plan: ModelPlan) -> ModelSpec:
    """Open the toy, shaped like Kimi K3.1, or a variant of it, shaped like another family.

    With other fields (`--set`) weights are drawn from a seed instead of read from the file of trained ones.
    Raises Day0Error for a variant or a field that the toy does not have.
    """
    config = _config(plan, _variant(plan.source))
    dtype = dtype_of(plan.dtype)
    if not dtype.is_floating_point or dtype.itemsize < 2:
        raise Day0Error(f"--dtype {plan.dtype}", "the toy computes in it and cannot", hint="use float32 or bfloat16")
    trained = config.architecture() == ToyConfig()
    weights = WEIGHTS_HASH if trained else f"seed {SEED}"

    def build(device: str) -> nn.Module:
        if device == "meta":
            return make_toy(config, "meta").to(dtype)
        model = _with_weights(config).to(dtype).to(device)
        if config.expert_slots:
            cache_experts(model, slots=config.expert_slots)
        return model

    def draw(device: str) -> nn.Module:
        model = make_toy(config, "meta")
        model.to(dtype).to_empty(device=device)
        draw_weights(model)
        return model

    return ModelSpec(
        source=plan.source,
        overrides={key: json.dumps(value) for key, value in sorted(plan.set.items())},
        dtype=dtype,
        class_name="ToyModel",
        fingerprint=hash_json({"config": config.as_dict(), "dtype": plan.dtype, "weights": weights}),
        vocab_size=config.vocab_size,
        sparse_top_k=config.index_topk,
        max_positions=config.max_positions,
        build=build,
        draw=draw,
        trained=trained,
        read_weights=_reader if trained else None,
    )


def _reader() -> Callable[[str], torch.Tensor]:
    file = safe_open(weights_path(), framework="pt")

    def read(name: str) -> torch.Tensor:
        tensor: torch.Tensor = file.get_tensor(name)  # type: ignore[no-untyped-call]  # safetensors carries no annotations
        return tensor

    return read


def _with_weights(config: ToyConfig) -> ToyModel:
    model = make_toy(config)
    if config.architecture() == ToyConfig():
        load_weights(model)
    else:
        model.load_state_dict(make_weights(config))
    return model.requires_grad_(False)


def _variant(source: str) -> ToyConfig:
    _, _, name = source.partition(":")
    if name and name not in VARIANTS:
        hint = near_names(name, tuple(VARIANTS)) or f"variants: {', '.join(VARIANTS)}"
        raise Day0Error(f"model source {source}", f"the toy has no variant '{name}'", hint=hint)
    return ToyConfig(**VARIANTS.get(name, {}))


def _config(plan: ModelPlan, default: ToyConfig) -> ToyConfig:
    fields = {field.name: field for field in dataclasses.fields(ToyConfig)}
    changes: dict[str, object] = {}
    for key, value in plan.set.items():
        if key not in fields:
            hint = near_names(key, tuple(fields)) or f"fields: {', '.join(fields)}"
            raise Day0Error(f"--set {key}", f"the toy has no field '{key}'", hint=hint)
        before = getattr(default, key)
        changes[key] = tuple(value) if isinstance(value, list) else value
        if not _fits(changes[key], before):
            what = f"expected {_KINDS[type(before)]} such as {before!r}, got {value!r}"
            raise Day0Error(f"--set {key}", what, hint=f"write --set {key}={json.dumps(before)}")
        if isinstance(before, float):
            # A whole number is a number too, and through text even a huge one becomes a float that can be refused.
            changes[key] = float(str(changes[key]))
    return dataclasses.replace(default, **changes)  # type: ignore[arg-type]  # types were compared above


def _fits(value: object, before: object) -> bool:
    # Not isinstance: True would be a number of experts.
    if isinstance(value, tuple):
        return isinstance(before, tuple) and all(type(item) is int for item in value)
    # A whole number is a number too.
    return type(value) is type(before) or (isinstance(before, float) and type(value) is int)
