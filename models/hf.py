"""Models of the transformers library, from a config alone. Never downloads; remote code only when asked."""

from __future__ import annotations

import json
import os
from types import ModuleType
from typing import Any

import torch
from torch import nn

from day0.errors import Day0Error
from day0.hashing import hash_json
from day0.models.driver import step
from day0.models.fake import FakeValues, KnownTensor, known
from day0.models.hf_config import (
    config_line,
    first_line,
    fit_vision,
    last_line,
    optional_int,
    overridden,
    plain_config,
    refusals,
    text_of,
)
from day0.models.missing import missing_field_hint
from day0.models.shrink import SHRINK_STEPS, changes, shrink_fields, subsets
from day0.models.sizes import refuse_absurd_sizes
from day0.models.spec import ModelSpec
from day0.models.vision import has_vision, image_inputs
from day0.playbook import ModelPlan
from day0.reference_ops.signatures import dtype_of

__all__ = ["open_hf"]

AUTO_CLASSES = ("AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModelForSeq2SeqLM")


def open_hf(plan: ModelPlan) -> ModelSpec:
    """Open `hf:<model_type>` or `hf:<folder with config.json>`.

    Raises Day0Error: transformers is not installed, unknown model type, no config.json, a config field that the
    model does not have or cannot take, no causal model for the type.
    """
    transformers = _import_transformers()
    name = plan.source.removeprefix("hf:")
    config, shrunk = _config(transformers, name, plan)
    text = text_of(config)
    auto, model_class, class_name = _auto_class(transformers, config, plan.source)
    config = _config_for(model_class, config)
    fitted = fit_vision(config, plan)
    refuse_absurd_sizes(config, plan.source)
    dtype = dtype_of(plan.dtype)
    vocab_size = getattr(text, "vocab_size", None)
    if not isinstance(vocab_size, int) or vocab_size < 1:
        raise Day0Error(plan.source, f"vocab_size is {vocab_size!r}", hint="a model needs at least one token")
    document = json.loads(config.to_json_string(use_diff=False))
    document.pop("transformers_version", None)

    def build(device: str) -> nn.Module:
        return _build(_maker(auto, model_class, config), config, dtype, device, plan, class_name)

    def draw(device: str) -> nn.Module:
        with torch.device(device):
            return build(device)

    return ModelSpec(
        source=plan.source,
        overrides={key: json.dumps(value) for key, value in sorted(plan.set.items())},
        dtype=dtype,
        class_name=class_name,
        fingerprint=hash_json({"config": document, "dtype": plan.dtype, "seed": plan.seed}),
        vocab_size=vocab_size,
        sparse_top_k=_sparse_top_k(text),
        max_positions=optional_int(text, "max_position_embeddings"),
        build=build,
        draw=draw,
        image_inputs=image_inputs if model_class is not None and has_vision(model_class.forward, config) else None,
        shrink=None if plan.shrink else lambda: open_hf(plan.model_copy(update={"shrink": True})),
        shrunk=shrunk,
        notes=("weights are random, drawn from the seed", *fitted),
    )


def _config_for(model_class: Any, config: Any) -> Any:
    """Return the part of a config that the class is made for: some decoders stand under their whole model's type."""
    wanted = getattr(model_class, "config_class", None)
    if wanted is None or isinstance(config, wanted):
        return config
    parts = [getattr(config, name, None) for name in getattr(config, "sub_configs", {})]
    return next((part for part in parts if isinstance(part, wanted)), config)


def _import_transformers() -> ModuleType:
    # Offline before the import: transformers reads these once.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        import transformers
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise Day0Error(
            "hf:", "the transformers library is not installed", hint="install the extra: pip install 'day0[hf]'"
        ) from None
    return transformers


def _config(transformers: ModuleType, name: str, plan: ModelPlan) -> tuple[Any, dict[str, str]]:
    """Return the config as asked for, and what was made smaller in it."""
    config, document, make = plain_config(transformers, name, plan)
    config = overridden(config, document, make, plan)
    if not plan.shrink:
        return config, {}
    refuse_absurd_sizes(config, plan.source)
    small = _shrunken(transformers, config, make, plan)
    if plan.set:
        small = _asked_for(transformers, small, make, plan)
    return small, changes(config, small)


def _asked_for(transformers: ModuleType, small: Any, make: Any, plan: ModelPlan) -> Any:
    """Return the small config with what was asked for, where the small model bears that: it wins over shrinking."""
    refused: tuple[type[BaseException], ...] = (*refusals(), Day0Error)
    try:
        wanted = overridden(small, small.to_dict(), make, plan)
        _try_small(transformers, wanted, plan, images=False)
    except refused:
        return small
    return wanted


def _shrunken(transformers: ModuleType, config: Any, make: Any, plan: ModelPlan) -> Any:
    """Return the smallest config of the same structure whose model can be built and run.

    Raises Day0Error where not even fewer layers are borne.
    """
    reason = ""
    refused: tuple[type[BaseException], ...] = (*refusals(), Day0Error)
    for images in (True, False):
        for steps in subsets(SHRINK_STEPS):
            fields = {key: value for key, value in shrink_fields(config, steps).items() if key not in _NOT_FIELDS}
            try:
                small = make(**fields)
                fit_vision(small, plan)
                _try_small(transformers, small, plan, images=images)
            except refused as error:
                reason = reason or f"{type(error).__name__}: {last_line(error)}"
                continue
            return small
    what = f"{type(config).__name__} bears no smaller sizes: {reason}"
    raise Day0Error(f"{plan.source}, --shrink", what, hint="make it smaller with --set, field by field")


_NOT_FIELDS = ("model_type", "auto_map", "architectures", "transformers_version")


def _try_small(transformers: ModuleType, config: Any, plan: ModelPlan, *, images: bool) -> None:
    """Build the small model and run a few tokens through it, and an image where it takes one, without memory."""
    auto, model_class, class_name = _auto_class(transformers, config, plan.source)
    config = _config_for(model_class, config)
    with FakeValues():
        model = _build(_maker(auto, model_class, config), config, dtype_of(plan.dtype), "cpu", plan, class_name)
        ids_BS = torch.arange(1, 9)[None]
        step(model, KnownTensor(ids_BS), use_cache=False)
        if images and model_class is not None and has_vision(model_class.forward, config):
            made = image_inputs(model, ids_BS, known)
            step(model, known(made.ids_BS), use_cache=False, inputs=made.arguments)


def _auto_class(transformers: ModuleType, config: Any, source: str) -> tuple[Any, Any, str]:
    """Return the auto class, the model's class (None while remote code is not loaded) and the class's name."""
    for name in AUTO_CLASSES:
        auto = getattr(transformers, name)
        if type(config) in auto._model_mapping:
            model_class = auto._model_mapping[type(config)]
            if isinstance(model_class, tuple):
                model_class = model_class[0]
            return auto, model_class, model_class.__name__
        if type(config).__name__ in str(getattr(config, "auto_map", {}) or {}):
            return auto, None, type(config).__name__.replace("Config", "ForCausalLM")
    raise Day0Error(
        source,
        f"transformers {transformers.__version__} has no causal language model for {type(config).__name__}",
        hint="encoder and speech models are not traced as text generators",
    )


def _other_config(plan: ModelPlan) -> str:
    if plan.set:
        return "check the fields given with --set"
    return "give what the line asks for with --set, or a folder with a checkpoint's own config.json"


def _maker(auto: Any, model_class: Any, config: Any) -> Any:
    """Return what builds from the config: the auto class, or the class itself for a part that no auto class knows."""
    if model_class is None or type(config) in auto._model_mapping:
        return auto.from_config
    return model_class._from_config


def _build(make: Any, config: Any, dtype: torch.dtype, device: str, plan: ModelPlan, class_name: str) -> nn.Module:
    options = {"trust_remote_code": plan.trust_remote_code} if plan.trust_remote_code else {}
    try:
        if device == "meta":
            with torch.device("meta"):
                model = make(config, dtype=dtype, **options)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(plan.seed)
                model = make(config, dtype=dtype, **options).to(device)
    except torch.OutOfMemoryError as error:
        raise Day0Error(
            plan.source,
            f"the weights of {class_name} do not fit on {device}: {first_line(error)}",
            hint=f"`day0 fit {plan.source} --device PROFILE` says what takes the memory and what would help",
        ) from error
    except refusals() as error:
        raise Day0Error(
            plan.source,
            f"{class_name} cannot be built from this config: {first_line(error)}",
            facts=(config_line(error),),
            hint=missing_field_hint(error) or _other_config(plan),
        ) from error
    model.eval()
    assert isinstance(model, nn.Module)  # noqa: S101 - what transformers returns
    return model


def _sparse_top_k(text: Any) -> int | None:
    """Return how many tokens sparse attention selects; where it selects compressed ones, how many those stand for."""
    chosen = optional_int(text, "index_topk")
    rates = getattr(text, "compress_rates", None)
    rate = rates.get("compressed_sparse_attention") if isinstance(rates, dict) else None
    return chosen * rate if chosen is not None and isinstance(rate, int) and rate > 0 else chosen
