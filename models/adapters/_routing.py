"""What the adapters of routers share: a small router, and its results in one order.

Shape suffixes: N tokens, D width, E experts, K chosen experts.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from day0.models.adapters._adapter import Probe, Refused
from day0.models.adapters._small import draw, small

__all__ = ["probe_routing", "takes_bias"]

WIDTH, TOKENS, SIZE = 16, 12, 4
"""SIZE experts stand in a group."""


def probe_routing(module: nn.Module, generator: torch.Generator) -> Probe:
    """Return a router over a few experts, as many groups as the module has, and as many chosen of them."""
    groups = int(getattr(module, "num_group", None) or getattr(module, "n_group", None) or 1)
    kept = int(getattr(module, "topk_group", None) or 1)
    top_k = int(module.top_k)  # type: ignore[arg-type]  # a number in all of them
    size = max(SIZE, -(-top_k // kept))
    experts = groups * size if groups > 1 else max(2 * top_k, SIZE)
    if experts > 4096:
        raise Refused(f"{top_k} of {experts} experts are too many to try")
    shapes = {"weight": (experts, WIDTH), "bias": (experts,), "e_score_correction_bias": (experts,)}
    sizes = {
        name: value
        for name, value in {"num_experts": experts, "n_routed_experts": experts, "hidden_dim": WIDTH}.items()
        if hasattr(module, name)
    }
    made = small(module, generator, shapes, dict(module.named_children()), **sizes)
    x_ND = draw(generator, TOKENS, WIDTH)
    more = (draw(generator, experts),) if takes_bias(module) else ()
    return Probe(module=made, calls=((x_ND, *more), (0.1 * x_ND, *more)), settle=in_order)


def takes_bias(module: nn.Module) -> bool:
    """Return whether the bias that corrects the choice is given with each call."""
    return "e_score_correction_bias" in inspect.signature(type(module).forward).parameters


def in_order(result: Any) -> Any:
    """Sort chosen experts by number, their weights with them."""
    if not (isinstance(result, tuple) and len(result) == 3):
        raise Refused(f"its forward returns {len(result) if isinstance(result, tuple) else 'no'} results, not three")
    logits_NE, weights_NK, chosen_NK = result
    order_NK = chosen_NK.argsort(dim=-1)
    return logits_NE, weights_NK.gather(-1, order_NK), chosen_NK.gather(-1, order_NK)
