"""The toy with its experts in an FP8 workspace: the activated ones are converted while it runs, and kept in slots."""

from __future__ import annotations

from day0.converters.online.budget import MARGIN, available_bytes, plan_slots
from day0.converters.online.cached import CachedExperts
from day0.converters.online.expert_cache import ExpertCache
from day0.converters.online.fp8_workspace import Fp8Workspace, Matrix, slot_bytes
from day0.converters.online.slots import BY_LAYER, LRU, Plan
from day0.converters.tiers.load import AUTO, pick_tier
from day0.converters.workspace import BatchedExperts
from day0.errors import Day0Error
from day0.models.toy.layers import Experts
from day0.models.toy.model import ToyModel

__all__ = ["batch_experts", "cache_experts", "expert_layers"]


def expert_layers(model: ToyModel) -> list[Experts]:
    """Return the routed experts of every layer that has some, in order."""
    return [module for module in model.modules() if isinstance(module, Experts)]


def batch_experts(model: ToyModel, batch: int) -> None:
    """Let the model decode so many of the chosen experts at a time, and keep none."""
    for experts in expert_layers(model):
        experts.workspace = BatchedExperts(experts.calls, batch)


def cache_experts(
    model: ToyModel,
    *,
    slots: int | None = None,
    scratch: int | None = None,
    policy: str = LRU,
    split: str = BY_LAYER,
    layout: str = "mxfp8",
    tier: str = AUTO,
    threads: int = 0,
    batch: int = 0,
    margin: float = MARGIN,
    checked: bool = False,
) -> ExpertCache:
    """Give the model an expert cache, and return it for its metrics.

    Without `slots` as many as fit into the available memory less the margin; without `scratch` what a token needs.
    Raises Day0Error for a model without experts, unknown choices, and memory that holds not even one slot.
    """
    layers = expert_layers(model)
    if not layers:
        raise Day0Error("expert cache", "the model has no routed experts", hint="use a model with fewer dense layers")
    device = layers[0].w1.codes.device
    w1, w2 = layers[0].w1.codes.shape, layers[0].w2.codes.shape
    matrices = (Matrix(rows=2 * w1[1], columns=2 * w1[2]), Matrix(rows=w2[1], columns=2 * w2[2]))
    if slots is None:
        budget = plan_slots(
            layers=len(layers),
            experts=w1[0],
            per_step=model.config.experts_per_token,
            slot_bytes=slot_bytes(matrices, layout),
            available=available_bytes(device),
            margin=margin,
        )
        slots, scratch = budget.slots, scratch or budget.scratch
    plan = Plan(
        layers=len(layers),
        slots=slots,
        scratch=model.config.experts_per_token if scratch is None else scratch,
        policy=policy,
        split=split,
    )
    chosen = pick_tier(tier, device.type)
    workspace = Fp8Workspace(
        matrices,
        plan.slots + plan.scratch,
        decode=chosen.decode,
        scaled=chosen.scaled,
        layout=layout,
        device=device,
    )
    cache = ExpertCache(workspace, plan, threads=threads, batch=batch, checked=checked)
    for number, experts in enumerate(layers):
        experts.workspace = CachedExperts(cache, number)
    return cache
