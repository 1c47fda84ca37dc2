"""Which format each kind of weight has: as asked, or as the model's own quantisation config says."""

from __future__ import annotations

from typing import Any

from torch import nn

from day0.analyzers.fit.formats import FORMATS, format_named
from day0.analyzers.fit.weights import KINDS
from day0.errors import Day0Error, near_names

__all__ = ["formats_of"]

LINEAR = ("experts", "shared", "dense", "attention", "indexer")
EVERYTHING = (*LINEAR, "router", "embedding", "norm", "vision", "other")


def formats_of(model: nn.Module, asked: str) -> dict[str, str]:
    """Read `mxfp4`, `fp8`, `experts=mxfp4,attention=fp8`, or nothing for the model's own config.

    One four-bit format alone is meant for the routed experts, where the model has them, as published checkpoints do;
    FP8 alone for all linear layers; 16 and 32 bits for everything.
    Raises Day0Error for an unknown format or kind, and for a quantisation config that is not understood.
    """
    if not asked or asked == "model":
        return _own(model)
    formats = _own(model)
    named: set[str] = set()
    for part in asked.split(","):
        kind, equals, name = part.strip().partition("=")
        if not equals:
            formats.update(_alone(format_named(kind, "--format").name, model))
            continue
        if kind not in KINDS:
            hint = near_names(kind, tuple(KINDS)) or f"kinds of weights: {', '.join(KINDS)}"
            raise Day0Error("--format", f"there is no kind of weight '{kind}'", hint=hint)
        if kind in named:
            raise Day0Error("--format", f"{kind} stands twice", hint="name it once")
        named.add(kind)
        formats[kind] = format_named(name, "--format").name
    return formats


def _alone(name: str, model: nn.Module) -> dict[str, str]:
    bits = FORMATS[name].bits
    if bits > 8:
        return dict.fromkeys(EVERYTHING, name)
    if bits == 8:
        return dict.fromkeys(LINEAR, name)
    has_experts = any(path.endswith(".experts") for path, _ in model.named_modules())
    return {"experts": name} if has_experts else dict.fromkeys(LINEAR, name)


def _own(model: nn.Module) -> dict[str, str]:
    config = getattr(model, "config", None)
    found = getattr(config, "quantization_config", None)
    if found is None:
        return {}
    plain: dict[str, Any] = found if isinstance(found, dict) else getattr(found, "to_dict", dict)()
    method = str(plain.get("quant_method", ""))
    if method == "mxfp4":
        return {"experts": "mxfp4"}
    if method == "fp8":
        return dict.fromkeys(LINEAR, "fp8")
    if method == "compressed-tensors":
        return _compressed(plain)
    raise Day0Error(
        "quantization_config",
        f"the method '{method}' is not known here",
        hint="say how the weights lie, for example --format experts=int4",
    )


def _compressed(plain: dict[str, Any]) -> dict[str, str]:
    groups = plain.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    if not isinstance(weights, dict):
        raise Day0Error("quantization_config", "it names no weights", hint="say how they lie: --format experts=mxfp4")
    bits, kind, size = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    name = {
        (4, "float", 32): "mxfp4",
        (4, "float", 16): "nvfp4",
        (4, "int", 32): "int4",
        (4, "int", 128): "int4-g128",
        (8, "float", 32): "mxfp8",
    }.get((bits, kind, size), {(8, "float"): "fp8", (8, "int"): "int8"}.get((bits, kind), ""))  # type: ignore[arg-type]
    if not name:
        what = f"weights of {bits} bits, type {kind}, groups of {size} are not known here"
        raise Day0Error("quantization_config", what, hint="say how they lie: --format experts=mxfp4")
    skipped = " ".join(str(one) for one in plain.get("ignore", ()))
    kinds = [kind for kind in LINEAR if not (kind != "experts" and ("attn" in skipped or "attention" in skipped))]
    return dict.fromkeys(kinds, name)
