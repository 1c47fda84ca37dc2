"""Models of the transformers library, from a config alone. Never downloads; remote code only when asked."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from day0.errors import USER_ERRORS, Day0Error, near_names
from day0.hashing import hash_json
from day0.models.spec import ModelSpec
from day0.playbook import ModelPlan
from day0.reference_ops.signatures import dtype_of

__all__ = ["open_hf"]

MAX_CONFIG_BYTES = 4 << 20
AUTO_CLASSES = ("AutoModelForCausalLM", "AutoModelForImageTextToText")


def open_hf(plan: ModelPlan) -> ModelSpec:
    """Open `hf:<model_type>` or `hf:<folder with config.json>`.

    Raises Day0Error: transformers is not installed, unknown model type, no config.json, a config field that the
    model does not have or cannot take, no causal model for the type.
    """
    transformers = _import_transformers()
    name = plan.source.removeprefix("hf:")
    config = _config(transformers, name, plan)
    text = getattr(config, "get_text_config", lambda: config)()
    auto, class_name = _auto_class(transformers, config, plan.source)
    dtype = dtype_of(plan.dtype)
    if not isinstance(text.vocab_size, int) or text.vocab_size < 1:
        raise Day0Error(plan.source, f"vocab_size is {text.vocab_size!r}", hint="a model needs at least one token")
    document = json.loads(config.to_json_string(use_diff=False))
    document.pop("transformers_version", None)

    def build(device: str) -> nn.Module:
        return _build(auto, config, dtype, device, plan)

    return ModelSpec(
        source=plan.source,
        overrides={key: json.dumps(value) for key, value in sorted(plan.set.items())},
        dtype=dtype,
        class_name=class_name,
        fingerprint=hash_json({"config": document, "dtype": plan.dtype, "seed": plan.seed}),
        vocab_size=int(text.vocab_size),
        sparse_top_k=_optional_int(text, "index_topk"),
        max_positions=_optional_int(text, "max_position_embeddings"),
        build=build,
        notes=("weights are random, drawn from the seed",),
    )


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


def _config(transformers: ModuleType, name: str, plan: ModelPlan) -> Any:
    known = tuple(transformers.CONFIG_MAPPING.keys())
    if name in known:
        default, make = transformers.AutoConfig.for_model(name), transformers.CONFIG_MAPPING[name]
        return _overridden(default, {}, make, plan)
    folder = Path(name)
    if not folder.is_dir():
        facts = (f"transformers {transformers.__version__} knows {len(known)} model types",)
        hint = near_names(name, known) or "give a model type, or a folder with config.json"
        raise Day0Error(plan.source, f"'{name}' is neither a model type nor a folder", facts=facts, hint=hint)
    return _config_of_folder(transformers, folder, plan)


def _config_of_folder(transformers: ModuleType, folder: Path, plan: ModelPlan) -> Any:
    path = folder / "config.json"
    document = _read_config(path, folder)
    if "auto_map" in document and not plan.trust_remote_code:
        raise Day0Error(
            str(path),
            "the model brings its own Python code (auto_map), which day0 does not run unasked",
            hint="read that code, then add --trust-remote-code",
        )
    try:
        config = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=plan.trust_remote_code
        )
    except _errors() as error:
        raise Day0Error(str(path), f"transformers refuses it: {_first_line(error)}", hint="check model_type") from None
    return _overridden(config, document, type(config), plan)


def _read_config(path: Path, folder: Path) -> dict[str, Any]:
    if not path.is_file():
        raise Day0Error(str(folder), "there is no config.json in this folder", hint="name the checkpoint's own folder")
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise Day0Error(str(path), f"it has {path.stat().st_size:,} bytes; a config is small", hint="is it a config?")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Day0Error(str(path), f"it is not JSON: {error}", hint="copy the file again; it may be cut off") from None
    if not isinstance(document, dict):
        raise Day0Error(str(path), f"expected a JSON object, got a {type(document).__name__}", hint="copy it again")
    return document


def _overridden(config: Any, document: dict[str, Any], make: Any, plan: ModelPlan) -> Any:
    """Build the config anew with the changed fields, since other fields are derived from them when it is built."""
    if not plan.set:
        return config
    fields = {key: value for key, value in document.items() if key not in ("model_type", "auto_map")}
    text = getattr(config, "get_text_config", lambda: config)()
    for key, value in plan.set.items():
        _check_field(config, text, key, value)
        if text is config or (hasattr(config, key) and not hasattr(text, key)):
            fields[key] = value
        else:
            fields["text_config"] = {**fields.get("text_config", {}), key: value}
    try:
        return make(**fields)
    except _errors() as error:
        what = f"{type(config).__name__} refuses {', '.join(plan.set)}: {_first_line(error)}"
        raise Day0Error("--set", what, hint="check these fields together") from None


def _check_field(config: Any, text: Any, key: str, value: object) -> None:
    owner = text if hasattr(text, key) else config
    if not hasattr(owner, key) or key.startswith("_") or callable(getattr(owner, key)):
        fields = tuple(sorted({*config.to_dict(), *text.to_dict()}))
        what = f"{type(config).__name__} has no field '{key}'"
        raise Day0Error(f"--set {key}", what, hint=near_names(key, fields) or "see the model's config class")
    before = getattr(owner, key)
    numeric = isinstance(before, (int, float)) and not isinstance(before, bool)
    if numeric and not isinstance(value, (int, float)) and value is not None:
        what = f"expected a number such as {before}, got the {type(value).__name__} {value!r}"
        raise Day0Error(f"--set {key}", what, hint=f"write --set {key}={before}")


def _auto_class(transformers: ModuleType, config: Any, source: str) -> tuple[Any, str]:
    for name in AUTO_CLASSES:
        auto = getattr(transformers, name)
        if type(config) in auto._model_mapping:
            return auto, auto._model_mapping[type(config)].__name__
        if type(config).__name__ in str(getattr(config, "auto_map", {}) or {}):
            return auto, type(config).__name__.replace("Config", "ForCausalLM")
    raise Day0Error(
        source,
        f"transformers {transformers.__version__} has no causal language model for {type(config).__name__}",
        hint="encoder and speech models are not traced as text generators",
    )


def _build(auto: Any, config: Any, dtype: torch.dtype, device: str, plan: ModelPlan) -> nn.Module:
    options = {"trust_remote_code": plan.trust_remote_code} if plan.trust_remote_code else {}
    try:
        if device == "meta":
            with torch.device("meta"):
                model = auto.from_config(config, dtype=dtype, **options)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(plan.seed)
                model = auto.from_config(config, dtype=dtype, **options).to(device)
    except _errors() as error:
        raise Day0Error(
            plan.source,
            f"the model cannot be built from this config: {_first_line(error)}",
            hint="check the fields given with --set",
        ) from error
    model.eval()
    assert isinstance(model, nn.Module)  # noqa: S101 - what transformers returns
    return model


def _errors() -> tuple[type[BaseException], ...]:
    """What transformers raises for a config it cannot take; its field checks have a class of their own."""
    from huggingface_hub.errors import StrictDataclassError

    return (*USER_ERRORS, StrictDataclassError)


def _optional_int(config: Any, name: str) -> int | None:
    value = getattr(config, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]
