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
from day0.models.driver import step
from day0.models.fake import FakeValues, KnownTensor, known
from day0.models.missing import missing_field_hint
from day0.models.shrink import SHRINK_STEPS, changes, shrink_fields, subsets
from day0.models.sizes import parts_of, refuse_absurd_sizes
from day0.models.spec import ModelSpec
from day0.models.vision import has_vision, image_inputs
from day0.playbook import ModelPlan
from day0.reference_ops.signatures import dtype_of

__all__ = ["open_hf"]

MAX_CONFIG_BYTES = 4 << 20
AUTO_CLASSES = ("AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModelForSeq2SeqLM")


def open_hf(plan: ModelPlan) -> ModelSpec:
    """Open `hf:<model_type>` or `hf:<folder with config.json>`.

    Raises Day0Error: transformers is not installed, unknown model type, no config.json, a config field that the
    model does not have or cannot take, no causal model for the type.
    """
    transformers = _import_transformers()
    name = plan.source.removeprefix("hf:")
    config, shrunk = _config(transformers, name, plan)
    text = _text_of(config)
    auto, model_class, class_name = _auto_class(transformers, config, plan.source)
    config = _config_for(model_class, config)
    fitted = _fit_vision(config, plan)
    refuse_absurd_sizes(config, plan.source)
    dtype = dtype_of(plan.dtype)
    vocab_size = getattr(text, "vocab_size", None)
    if not isinstance(vocab_size, int) or vocab_size < 1:
        raise Day0Error(plan.source, f"vocab_size is {vocab_size!r}", hint="a model needs at least one token")
    document = json.loads(config.to_json_string(use_diff=False))
    document.pop("transformers_version", None)

    def build(device: str) -> nn.Module:
        return _build(_maker(auto, model_class, config), config, dtype, device, plan, class_name)

    return ModelSpec(
        source=plan.source,
        overrides={key: json.dumps(value) for key, value in sorted(plan.set.items())},
        dtype=dtype,
        class_name=class_name,
        fingerprint=hash_json({"config": document, "dtype": plan.dtype, "seed": plan.seed}),
        vocab_size=vocab_size,
        sparse_top_k=_sparse_top_k(text),
        max_positions=_optional_int(text, "max_position_embeddings"),
        build=build,
        image_inputs=image_inputs if model_class is not None and has_vision(model_class.forward, config) else None,
        shrink=None if plan.shrink else lambda: open_hf(plan.model_copy(update={"shrink": True})),
        shrunk=shrunk,
        notes=("weights are random, drawn from the seed", *fitted),
    )


def _text_of(config: Any) -> Any:
    """Return the part of a config that describes the decoder; the whole where it has no parts."""
    return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config


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
    config, document, make = _plain_config(transformers, name, plan)
    told: dict[str, str] = {}
    if plan.shrink:
        refuse_absurd_sizes(config, plan.source)
        small = _shrunken(transformers, config, make, plan)
        document, told = small.to_dict(), changes(config, small)
        config = small
    return _overridden(config, document, make, plan), told


def _plain_config(transformers: ModuleType, name: str, plan: ModelPlan) -> tuple[Any, dict[str, Any], Any]:
    """Return the config, the fields that its file gives, and what makes a config from fields."""
    known = tuple(transformers.CONFIG_MAPPING.keys())
    if name in known:
        make = transformers.CONFIG_MAPPING[name]
        try:
            return transformers.AutoConfig.for_model(name), {}, make
        except _errors() as error:
            what = f"transformers refuses the default config of {name}: {_last_line(error)}"
            hint = "write the config that you need into a folder's config.json"
            raise Day0Error(plan.source, what, facts=(_config_line(error),), hint=hint) from error
    folder = Path(name)
    if not folder.is_dir():
        facts = (f"transformers {transformers.__version__} knows {len(known)} model types",)
        hint = near_names(name, known) or "give a model type, or a folder with config.json"
        raise Day0Error(plan.source, f"'{name}' is neither a model type nor a folder", facts=facts, hint=hint)
    return _config_of_folder(transformers, folder, plan)


def _shrunken(transformers: ModuleType, config: Any, make: Any, plan: ModelPlan) -> Any:
    """Return the smallest config of the same structure whose model can be built and run.

    Raises Day0Error where not even fewer layers are borne.
    """
    reason = ""
    refusals: tuple[type[BaseException], ...] = (*_errors(), Day0Error)
    for images in (True, False):
        for steps in subsets(SHRINK_STEPS):
            fields = {key: value for key, value in shrink_fields(config, steps).items() if key not in _NOT_FIELDS}
            try:
                small = make(**fields)
                _fit_vision(small, plan)
                _try_small(transformers, small, plan, images=images)
            except refusals as error:
                reason = reason or f"{type(error).__name__}: {_last_line(error)}"
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


def _fit_vision(config: Any, plan: ModelPlan) -> tuple[str, ...]:
    """Make the vision branch of a default config as wide at its end as the text that takes it, and say so.

    The default parts of some types come from different models of a family; a checkpoint's config has parts that fit.
    """
    vision, text = getattr(config, "vision_config", None), _text_of(config)
    # One family calls the width inside `embed_dim` and the width at the end `hidden_size`.
    name = "hidden_size" if _optional_int(vision, "embed_dim") else "out_hidden_size"
    ours, theirs = _optional_int(vision, name), _optional_int(text, "hidden_size")
    if Path(plan.source.removeprefix("hf:")).is_dir() or ours is None or theirs is None or ours == theirs:
        return ()
    setattr(vision, name, theirs)
    return (f"vision_config.{name} {ours} -> {theirs}: the default does not fit the text's width",)


def _config_of_folder(transformers: ModuleType, folder: Path, plan: ModelPlan) -> tuple[Any, dict[str, Any], Any]:
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
    return config, document, type(config)


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
    text = _text_of(config)
    parts = dict(parts_of(config))
    text_path = next((path for path, part in parts.items() if part is text), "")
    for key, value in plan.set.items():
        path, name = _split(key, parts)
        owner = parts[path] if path else text if hasattr(text, key) else config
        _check_field(config, owner, key, name, value)
        _put(fields, path or (text_path if owner is text else ""), name, value)
    try:
        return make(**fields)
    except _errors() as error:
        what = f"{type(config).__name__} refuses {', '.join(plan.set)}: {_last_line(error)}"
        raise Day0Error("--set", what, hint="check these fields together") from None


def _split(key: str, parts: dict[str, Any]) -> tuple[str, str]:
    """Split `vision_config.depth` into the path of a part and the name of a field in it."""
    path, dot, name = key.rpartition(".")
    if dot and f"{path}." not in parts:
        known = tuple(one[:-1] for one in parts if one)
        hint = near_names(path, known) or f"parts: {', '.join(known) or 'none'}"
        raise Day0Error(f"--set {key}", f"the config has no part '{path}'", hint=hint)
    return path + dot, name


def _put(fields: dict[str, Any], path: str, name: str, value: object) -> None:
    for part in path.split(".")[:-1]:
        inner = fields.get(part)
        fields[part] = dict(inner) if isinstance(inner, dict) else {}
        fields = fields[part]
    fields[name] = value


def _check_field(config: Any, owner: Any, key: str, name: str, value: object) -> None:
    if not hasattr(owner, name) or name.startswith("_") or callable(getattr(owner, name)):
        fields = tuple(sorted({*config.to_dict(), *owner.to_dict()}))
        what = f"{type(owner).__name__} has no field '{name}'"
        raise Day0Error(f"--set {key}", what, hint=near_names(name, fields) or "see the model's config class")
    _check_type(key, getattr(owner, name), value)


_KINDS: tuple[tuple[type, tuple[type, ...], str], ...] = (
    (bool, (bool,), "true or false"),
    (int, (int, float), "a number"),  # a dropout of 0 is a whole number by chance; transformers knows which are
    (float, (int, float), "a number"),
    (str, (str,), "a word"),
    (list, (list,), "a list"),
    (tuple, (list,), "a list"),
    (dict, (dict,), "a mapping"),
)


def _check_type(key: str, before: object, value: object) -> None:
    """Raise Day0Error where the value is of another kind than the field's; null, and anything for null, is let pass."""
    kind = next((one for one in _KINDS if isinstance(before, one[0])), None)
    if kind is None or value is None:
        return
    # True is a whole number in Python, and no number of layers.
    if isinstance(value, bool) != (kind[0] is bool) or not isinstance(value, kind[1]):
        example = json.dumps(before, default=str)
        short = example if len(example) <= 60 else f"{example[:60]}…"
        what = f"expected {kind[2]} such as {short}, got the {type(value).__name__} {value!r}"
        raise Day0Error(f"--set {key}", what[:300], hint=f"write --set {key}={short}")


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


def _config_line(error: BaseException) -> str:
    """Return the line of transformers' model or config that raised."""
    traceback, place = error.__traceback__, ""
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if "/models/" in name and not name.startswith(_OUR_FOLDER):
            place = f"{'/'.join(name.split('/')[-3:])}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return f"raised by {place}" if place else f"raised as {type(error).__name__}"


_OUR_FOLDER = str(Path(__file__).resolve().parent)


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
    except _errors() as error:
        raise Day0Error(
            plan.source,
            f"{class_name} cannot be built from this config: {_first_line(error)}",
            facts=(_config_line(error),),
            hint=missing_field_hint(error) or "check the fields given with --set",
        ) from error
    model.eval()
    assert isinstance(model, nn.Module)  # noqa: S101 - what transformers returns
    return model


def _errors() -> tuple[type[BaseException], ...]:
    """What transformers raises for a config it cannot take; its field checks have a class of their own."""
    from huggingface_hub.errors import StrictDataclassError

    return (*USER_ERRORS, StrictDataclassError)


def _sparse_top_k(text: Any) -> int | None:
    """Return how many tokens sparse attention selects; where it selects compressed ones, how many those stand for."""
    chosen = _optional_int(text, "index_topk")
    rates = getattr(text, "compress_rates", None)
    rate = rates.get("compressed_sparse_attention") if isinstance(rates, dict) else None
    return chosen * rate if chosen is not None and isinstance(rate, int) and rate > 0 else chosen


def _optional_int(config: Any, name: str) -> int | None:
    value = getattr(config, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _last_line(error: BaseException) -> str:
    """Return the line that says what is wrong: checks of dataclasses put a heading before it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip()[:300]


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # A KeyError's text is the key alone, and reads like nothing.
    return f"{type(error).__name__}: {lines[0]}"[:300] if isinstance(error, LookupError) else lines[0][:300]
