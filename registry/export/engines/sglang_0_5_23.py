"""SGLang 0.5.23: what its operator classes take, as arguments of our operators.

How the classes are reached stands in `runtime/sglang.py`. SGLang logs what a plugin raises and serves on without it:
what fails here ends the process instead.
"""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from day0.registry.export.runtime.core import Bundle, open_bundle
from day0.registry.export.runtime.sglang import Port, Thunk, install
from day0.registry.export.runtime.spec import Adapter, Target

__all__ = ["ADAPTER", "register"]

_LAYERS = "sglang.srt.layers"
_NORMS = ("day0::fused_add_rms_norm", "day0::rms_norm")
_GATED = ("day0::gated_activation",)


def _layer(name: str, path: str, operators: tuple[str, ...], signature: str, arguments: str) -> Target:
    return Target(
        name=name,
        path=f"{_LAYERS}.{path}:{name}",
        operators=operators,
        hook="_resolve_forward_method",
        method="forward_native",
        signature=signature,
        arguments=arguments,
    )


ADAPTER = Adapter(
    engine="sglang",
    module="sglang",
    distributions=("sglang",),
    tested="==0.5.23",
    entry_points=(("sglang.srt.plugins", "register"),),
    targets=(
        _layer(
            "RMSNorm",
            "layernorm",
            _NORMS,
            "(self, x, residual=None, post_residual_addition=None, quant_linear=None)",
            "weight and variance_epsilon of the layer, rounding by its cast_x_before_out_mul; with a residual the fused "
            "operator, else addition and rms_norm",
        ),
        _layer("SiluAndMul", "activation", _GATED, "(self, x)", "kind swiglu, gate in the first half"),
        _layer(
            "SituAndMul",
            "activation",
            _GATED,
            "(self, x)",
            "situ with beta and linear_beta of the layer, 0 where it has none",
        ),
        _layer(
            "RotaryEmbedding",
            "rotary_embedding.base",
            ("day0::rope",),
            "(self, positions, query, key, offsets=None, fused_set_kv_buffer_arg=None)",
            "rows of cos_sin_cache at the positions; half or interleaved by is_neox_style; query and key one by one",
        ),
        Target(
            name="biased_grouped_topk",
            path=f"{_LAYERS}.moe.topk:biased_grouped_topk",
            operators=("day0::moe_router",),
            hook="",
            signature="(hidden_states, gating_output, correction_bias, topk, renormalize, num_expert_group=None, "
            "topk_group=None, num_fused_shared_experts=0, routed_scaling_factor=None, "
            "apply_routed_scaling_factor_on_output=False)",
            arguments="sigmoid scores with a correction bias, without shared experts; experts come back as int32",
        ),
    ),
    removal="when no lock in use is served by SGLang 0.5.23",
)


def register() -> None:
    """Entry point of `sglang.srt.plugins`: called in the launcher and in each of its processes.

    Raises SystemExit with the reason: SGLang would log any other exception, and serve without the plugin.
    """
    folder = Path(__file__).parent
    bundle: Bundle | None = None
    try:
        base = importlib.import_module("sglang.kernels.fused_op").BaseFusedOp
        if str(folder) in getattr(base, "day0_folders", ()):
            return
        bundle = open_bundle(folder, engine_version=version("sglang"), role=multiprocessing.current_process().name)
        used = set(bundle.target_names())
        install(bundle, tuple(one for one in ADAPTER.targets if one.name in used), _PORTS)
        bundle.override_aten()
        base.day0_folders = (*getattr(base, "day0_folders", ()), str(folder))
    except Exception as error:
        reason = f"SGLang must not start: {type(error).__name__}: {error}"
        if bundle is not None:
            for name in bundle.target_names():
                bundle.book.declined(name, "", reason)
        raise SystemExit(f"{folder.name}: {reason}") from error


# What the engine's own method takes, as arguments of our operators: what to run, or why it is not ours. Shape
# suffixes: X leading, N tokens, D features, E experts, H heads, P pairs. What they decide on has to be static.


def _rms_norm(
    bundle: Bundle,
    layer: Any,
    x: Any,
    residual: Any = None,
    post_residual_addition: Any = None,
    quant_linear: Any = None,
) -> Thunk | str:
    if layer.variance_size_override is not None or not layer.has_weight:
        return "a variance over part of the features, or no weight"
    if layer.fp32_residual or layer.override_orig_dtype is not None or getattr(layer, "x_pad_to_multiple", 0):
        return "a residual or a result in another dtype, or padded"
    if post_residual_addition is not None or _quantises(layer, quant_linear):
        return "a second addition, or a quantised result"
    weight, eps, first = layer.weight.data, layer.variance_epsilon, layer.cast_x_before_out_mul
    call, site = bundle.call, layer._day0_site
    if residual is None:
        refused = bundle.refuse("day0::rms_norm", x, weight)
        return refused or (lambda: call("day0::rms_norm", site, x, weight, eps, first))
    if not bundle.refuse("day0::fused_add_rms_norm", x, residual, weight):
        return lambda: call("day0::fused_add_rms_norm", site, x, residual, weight, eps, first)
    refused = bundle.refuse("day0::rms_norm", x, weight)

    def in_two() -> Any:
        # The contract says that both are the same: an addition, then the normalisation.
        total = x + residual
        return call("day0::rms_norm", site, total, weight, eps, first), total

    return refused or in_two


def _quantises(layer: Any, linear: Any) -> bool:
    """Say whether a norm has to return the quantised input of the projection behind it: SGLang asks on accelerators."""
    if linear is None and layer._quant_linear is None:
        return False
    if linear is not None or "_day0_quantises" not in layer.__dict__:
        norms = importlib.import_module("sglang.srt.layers.layernorm")
        scale = norms._fp8_static_input_scale(layer._quant_linear if linear is None else linear)
        layer.__dict__["_day0_quantises"] = scale is not None
    return bool(layer.__dict__["_day0_quantises"])


def _gated(bundle: Bundle, layer: Any, x: Any, *attributes: Any) -> Thunk | str:
    refused = bundle.refuse("day0::gated_activation", x)
    return refused or (lambda: bundle.call("day0::gated_activation", layer._day0_site, x, *attributes))


def _silu_and_mul(bundle: Bundle, layer: Any, x: Any) -> Thunk | str:
    return _gated(bundle, layer, x, "swiglu", False, 0.0, 0.0, 0.0)


def _situ(bundle: Bundle, layer: Any, x: Any) -> Thunk | str:
    return _gated(bundle, layer, x, "situ", False, 0.0, layer.beta, layer.linear_beta or 0.0)


def _rotary(
    bundle: Bundle,
    layer: Any,
    positions: Any,
    query: Any,
    key: Any,
    offsets: Any = None,
    fused_set_kv_buffer_arg: Any = None,
) -> Thunk | str:
    if fused_set_kv_buffer_arg is not None or hasattr(layer, "sin_cos_cache"):
        return "the cache of keys is written in the same call, or cosines come from elsewhere"
    cache = layer.cos_sin_cache
    refused = bundle.refuse("day0::rope", query, cache, cache)
    if refused:
        return refused
    pairing = "half" if layer.is_neox_style else "interleaved"

    def both() -> Any:
        flat = (positions if offsets is None else positions + offsets).flatten()
        cos_1NP, sin_1NP = cache.index_select(0, flat)[None].chunk(2, dim=-1)

        def turned(x: Any) -> Any:
            x_1NHD = x.reshape(1, flat.numel(), -1, layer.head_size)
            return bundle.call("day0::rope", layer._day0_site, x_1NHD, cos_1NP, sin_1NP, pairing, 0).reshape(x.shape)

        return turned(query), turned(key)

    return both


def _biased_grouped_topk(
    bundle: Bundle,
    layer: Any,
    hidden_states: Any,
    gating_output: Any,
    correction_bias: Any,
    topk: int,
    renormalize: bool,
    num_expert_group: int | None = None,
    topk_group: int | None = None,
    num_fused_shared_experts: int = 0,
    routed_scaling_factor: float | None = None,
    apply_routed_scaling_factor_on_output: bool | None = False,
) -> Thunk | str:
    if num_fused_shared_experts or correction_bias.dim() != 1:
        return "shared experts among the chosen ones, or a bias for every token"
    refused = bundle.refuse("day0::moe_router", gating_output, correction_bias)
    if refused:
        return refused
    scale = (routed_scaling_factor or 1.0) if apply_routed_scaling_factor_on_output else 1.0
    rule = (topk, scale, num_expert_group or 1, topk_group or 1, "sigmoid", renormalize)

    def chosen() -> Any:
        torch = importlib.import_module("torch")
        weight_NK, expert_NK = bundle.call("day0::moe_router", layer._day0_site, gating_output, correction_bias, *rule)
        return weight_NK.to(torch.float32), expert_NK.to(torch.int32)

    return chosen


_PORTS: Mapping[str, Port] = {
    "RMSNorm": _rms_norm,
    "SiluAndMul": _silu_and_mul,
    "SituAndMul": _situ,
    "RotaryEmbedding": _rotary,
    "biased_grouped_topk": _biased_grouped_topk,
}
