"""Find the model that a source text names."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from torch import nn

from day0.errors import USER_ERRORS, Day0Error
from day0.hashing import hash_json
from day0.models.spec import ModelSpec
from day0.playbook import ModelPlan

__all__ = ["open_model"]


def open_model(plan: ModelPlan) -> ModelSpec:
    """Open `toy`, `toy:<variant>`, `hf:<model_type or folder>` or `py:<module>:<factory>`.

    Raises Day0Error for a source of another form, and what the sources themselves raise.
    """
    kind, _, rest = plan.source.partition(":")
    if plan.shrink and kind != "hf":
        raise Day0Error("--shrink", f"only models of transformers are shrunk, not '{plan.source}'", hint="use --set")
    if kind == "toy" and (rest or plan.source == "toy"):
        from day0.models.toy.source import open_toy

        return open_toy(plan)
    if kind == "hf" and rest:
        from day0.models.hf import open_hf

        return open_hf(plan)
    if kind == "py" and rest.strip(":."):
        return _open_factory(plan, rest)
    raise Day0Error(
        "model source",
        f"'{plan.source}' is of no known form",
        hint="use `toy`, `toy:glm-5`, `hf:deepseek_v32`, `hf:path/to/folder` or `py:my_module:make_model`",
    )


def _open_factory(plan: ModelPlan, text: str) -> ModelSpec:
    """Call a function without arguments that returns a ModelSpec or a module."""
    module_name, _, name = text.partition(":")
    try:
        module = importlib.import_module(module_name)
    except USER_ERRORS as error:
        what = f"importing '{module_name}' fails: {type(error).__name__}: {error}"
        raise Day0Error(plan.source, what, hint="run day0 where the module can be imported") from None
    name = name or "make_model"
    factory: Callable[[], object] | None = getattr(module, name, None)
    if not callable(factory):
        raise Day0Error(plan.source, f"module '{module_name}' has no function '{name}'", hint="name a function in it")
    try:
        made = factory()
    except USER_ERRORS as error:
        what = f"'{name}' fails: {type(error).__name__}: {error}"
        raise Day0Error(plan.source, what, hint="it is called without arguments and returns a module") from None
    if isinstance(made, ModelSpec):
        return made
    if isinstance(made, nn.Module):
        return _spec_of_module(plan, made)
    raise Day0Error(
        plan.source, f"'{name}' returned a {type(made).__name__}, not a module", hint="return an nn.Module or ModelSpec"
    )


def _spec_of_module(plan: ModelPlan, module: nn.Module) -> ModelSpec:
    config = getattr(module, "config", None)
    vocab = getattr(config, "vocab_size", None)
    if not isinstance(vocab, int):
        raise Day0Error(
            plan.source, "the module has no config.vocab_size", hint="return a day0.models.spec.ModelSpec instead"
        )
    shapes = {name: [list(value.shape), str(value.dtype)] for name, value in module.state_dict().items()}

    def build(device: str) -> nn.Module:
        import copy  # each build is its own module, or a device run would move the reference too

        return copy.deepcopy(module).to(device).eval()

    first = next(module.parameters(), torch.zeros(()))
    return ModelSpec(
        source=plan.source,
        dtype=first.dtype,
        class_name=type(module).__name__,
        fingerprint=hash_json({"source": plan.source, "shapes": shapes}),
        vocab_size=vocab,
        sparse_top_k=getattr(config, "index_topk", None),
        max_positions=getattr(config, "max_position_embeddings", None),
        build=build,
    )
