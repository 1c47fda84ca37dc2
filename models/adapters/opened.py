"""A model that is opened with adapters: it builds adapted, and with its own code alone for what it is held against."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from day0.hashing import hash_json
from day0.models.adapters.adapt import adapt, restore
from day0.models.adapters.load import adapter_hash, choose_adapters
from day0.models.spec import ModelSpec
from day0.playbook import ModelPlan

__all__ = ["with_adapters"]


def with_adapters(spec: ModelSpec, plan: ModelPlan) -> ModelSpec:
    """Return the model with the plan's adapters; without any the model as it is.

    Raises Day0Error for a name that is no adapter. What fits no module is known when the model is
    built.
    """
    if not plan.adapt:
        return spec
    chosen = choose_adapters(plan.adapt)
    told: dict[str, str] = {}

    def build(device: str) -> nn.Module:
        model = spec.build(device)
        restore(model)  # some sources give one module again and again
        done = adapt(model, plan.adapt)
        told.clear()
        told.update({name: done.text(name) for name in sorted(done.classes)})
        return model

    shrink = spec.shrink
    # Another adapter, or the same one with other code, is another model.
    hashes = {one.name: adapter_hash(one.name) for one in chosen}
    return replace(
        spec,
        build=build,
        own=spec.build_own,
        adapted=lambda: dict(told),
        shrink=None if shrink is None else lambda: with_adapters(shrink(), plan),
        fingerprint=hash_json({"model": spec.fingerprint, "adapters": hashes}),
    )
