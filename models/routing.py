"""Record which experts a model's tokens choose while it runs: every call of `day0::moe_router` is one layer.

Shape suffixes: B prompts, S tokens, N = B * S, K experts of a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from day0.converters.online.routing import Routing, routing_of
from day0.errors import Day0Error
from day0.models.driver import step, style_of

__all__ = ["RoutingRecorder", "record_routing"]

ROUTER = "day0::moe_router"


class RoutingRecorder(TorchDispatchMode):
    """Keeps the choices of every router call made inside of it; `next_step` separates passes through the model."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch ships no types for it
        self.calls: list[tuple[int, int, torch.Tensor]] = []
        self.experts = 0
        self._step = self._layer = 0

    def next_step(self) -> None:
        """Begin the next pass: the router that comes next is the first layer's."""
        self._step, self._layer = self._step + 1, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call, and keep what a router chose."""
        result = func(*args, **(kwargs or {}))
        if getattr(func, "_schema", None) is not None and func._schema.name == ROUTER:
            self.experts = max(self.experts, args[0].shape[-1])
            self.calls.append((self._step, self._layer, result[1].detach().cpu().clone()))
            self._layer += 1
        return result

    def routing(self, facts: Mapping[str, str] | None = None) -> Routing:
        """Return what was recorded. Raises Day0Error where no router was called."""
        if not self.calls:
            what = f"no call of {ROUTER} was seen"
            hint = "the model has no routed experts, or calls a router of its own: give --adapt all"
            raise Day0Error("recorded routing", what, hint=hint)
        layers = 1 + max(layer for _, layer, _ in self.calls)
        return routing_of(self.calls, layers=layers, experts=self.experts, facts=facts)


def record_routing(
    model: nn.Module,
    ids_BS: torch.Tensor,
    new_tokens: int,
    *,
    watch: Callable[[int, int], None] | None = None,
    facts: Mapping[str, str] | None = None,
) -> Routing:
    """Run prefill and greedy decode, and return the routing of all of it, a step for each pass.

    Raises Day0Error for a model that calls no router of ours.
    """
    style = style_of(model)
    recorder = RoutingRecorder()
    with recorder:
        output = step(model, ids_BS, style=style)
        for number in range(new_tokens):
            if watch is not None:
                watch(number, new_tokens)
            recorder.next_step()
            token_B1 = output.logits_BSV[:, -1].float().cpu().argmax(dim=-1, keepdim=True)
            output = step(model, token_B1.to(ids_BS.device), output.cache, style=style, earlier=output)
    return recorder.routing(facts)
