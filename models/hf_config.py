"""Configs of transformers: from a type's defaults or a folder's file, with fields changed and checked."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

from day0.errors import USER_ERRORS, Day0Error, near_names
from day0.models.sizes import parts_of
from day0.playbook import ModelPlan

__all__ = [
    "config_line",
    "first_line",
    "fit_vision",
    "last_line",
    "optional_int",
    "overridden",
    "plain_config",
    "refusals",
    "text_of",
]

MAX_CONFIG_BYTES = 4 << 20


def text_of(config: Any) -> Any:
    """Return the part of a config that describes the decoder; the whole where it has no parts."""
    return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config


def plain_config(transformers: ModuleType, name: str, plan: ModelPlan) -> tuple[Any, dict[str, Any], Any]:
    """Return the config, the fields that its file gives, and what makes a config from fields."""
    known = tuple(transformers.CONFIG_MAPPING.keys())
    if name in known:
        make = transformers.CONFIG_MAPPING[name]
        try:
            return transformers.AutoConfig.for_model(name), {}, make
        except refusals() as error:
            what = f"transformers refuses the default config of {name}: {last_line(error)}"
            hint = "write the config that you need into a folder's config.json"
            raise Day0Error(plan.source, what, facts=(config_line(error),), hint=hint) from error
    folder = Path(name)
    if not folder.is_dir():
        facts = (f"transformers {transformers.__version__} knows {len(known)} model types",)
        hint = near_names(name, known) or "give a model type, or a folder with config.json"
        raise Day0Error(plan.source, f"'{name}' is neither a model type nor a folder", facts=facts, hint=hint)
    return _config_of_folder(transformers, folder, plan)


def fit_vision(config: Any, plan: ModelPlan) -> tuple[str, ...]:
    """Make the vision branch of a default config as wide at its end as the text that takes it, and say so.

    The default parts of some types come from different models of a family; a checkpoint's config has parts that fit.
    """
    vision, text = getattr(config, "vision_config", None), text_of(config)
    # One family calls the width inside `embed_dim` and the width at the end `hidden_size`.
    name = "hidden_size" if optional_int(vision, "embed_dim") else "out_hidden_size"
    ours, theirs = optional_int(vision, name), optional_int(text, "hidden_size")
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
    except refusals() as error:
        raise Day0Error(str(path), f"transformers refuses it: {first_line(error)}", hint="check model_type") from None
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


def overridden(config: Any, document: dict[str, Any], make: Any, plan: ModelPlan) -> Any:
    """Build the config anew with the changed fields, since other fields are derived from them when it is built."""
    if not plan.set:
        return config
    fields = {key: value for key, value in document.items() if key not in ("model_type", "auto_map")}
    text = text_of(config)
    parts = dict(parts_of(config))
    text_path = next((path for path, part in parts.items() if part is text), "")
    for key, value in plan.set.items():
        path, name = _split(key, parts)
        owner = parts[path] if path else text if hasattr(text, key) else config
        _check_field(config, owner, key, name, value)
        _put(fields, path or (text_path if owner is text else ""), name, value)
    try:
        return make(**fields)
    except refusals() as error:
        what = f"{type(config).__name__} refuses {', '.join(plan.set)}: {last_line(error)}"
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


def config_line(error: BaseException) -> str:
    """Return the line of transformers' model or config that raised."""
    traceback, place = error.__traceback__, ""
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if "/models/" in name and not name.startswith(_OUR_FOLDER):
            place = f"{'/'.join(name.split('/')[-3:])}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return f"raised by {place}" if place else f"raised as {type(error).__name__}"


_OUR_FOLDER = str(Path(__file__).resolve().parent)


def refusals() -> tuple[type[BaseException], ...]:
    """What transformers raises for a config it cannot take; its field checks have a class of their own."""
    from huggingface_hub.errors import StrictDataclassError

    return (*USER_ERRORS, StrictDataclassError)


def optional_int(config: Any, name: str) -> int | None:
    """Return a field that is a whole number above zero, else None."""
    value = getattr(config, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def last_line(error: BaseException) -> str:
    """Return the line that says what is wrong: checks of dataclasses put a heading before it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip()[:300]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # A KeyError's text is the key alone, and reads like nothing.
    return f"{type(error).__name__}: {lines[0]}"[:300] if isinstance(error, LookupError) else lines[0][:300]
