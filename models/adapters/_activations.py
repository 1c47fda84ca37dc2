"""Which kinds of `day0::gated_activation` a module's own activation may be."""

from __future__ import annotations

from torch import nn

from day0.models.adapters._adapter import Refused
from day0.reference_ops.gated_activation import OAI_ALPHA

__all__ = ["activation_kinds"]

_NAMES = ("act_fn", "activation_fn", "activation", "act")
_LIMITS = ("limit", "swiglu_limit")


def activation_kinds(module: nn.Module) -> list[tuple[str, str, float]]:
    """Return text, kind and limit of the gates that a module may have; the proof says which it has.

    Raises Refused for an activation that the operator does not compute.
    """
    limit = next((one for name in _LIMITS if isinstance(one := getattr(module, name, None), (int, float))), None)
    alpha = getattr(module, "alpha", None)
    if alpha is not None:
        if alpha != OAI_ALPHA:
            raise Refused(f"its alpha is {alpha}, and swiglu_oai of day0::gated_activation means {OAI_ALPHA}")
        if limit is None:
            raise Refused("it has an alpha and no limit, and swiglu_oai of day0::gated_activation has both")
        return [(f"swiglu_oai, limit {limit:g}", "swiglu_oai", float(limit))]
    _refuse_other_activations(module)
    kinds = [("swiglu", "swiglu", 0.0)]
    if limit is not None:
        kinds.append((f"swiglu_clamped, limit {limit:g}", "swiglu_clamped", float(limit)))
    return kinds


def _refuse_other_activations(module: nn.Module) -> None:
    name = next((one for one in _NAMES if getattr(module, one, None) is not None), "")
    activation = getattr(module, name, None) if name else None
    kind = getattr(activation, "__name__", type(activation).__name__) if activation is not None else ""
    if kind and kind.lower() not in ("silu", "siluactivation", "swish"):
        raise Refused(f"its activation is {kind}, and day0::gated_activation has gates with SiLU")
