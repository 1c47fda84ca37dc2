"""The model's own plan for several ranks: which parameter and which module is cut how, and whether sizes divide."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from day0.errors import Day0Error
from day0.models.toy.model import ToyModel
from day0.models.toy.ranks import heads_of_toy, plan_of_toy

__all__ = ["CutPlan", "check_sizes", "parts_of_transformers", "plan_of", "wild"]

_LAYER_NUMBER = re.compile(r"\.\d+(?=\.|$)")
_HEADS = ("num_attention_heads", "num_key_value_heads")
_KEY_PROJECTIONS = ("k_proj", "v_proj", "qkv_proj", "query_key_value")


def wild(name: str) -> str:
    """Write the layer numbers of a name as `*`, as plans do."""
    return _LAYER_NUMBER.sub(".*", name)


@dataclass(frozen=True, kw_only=True, slots=True)
class CutPlan:
    """Styles by concrete names of parameters and modules."""

    tensors: dict[str, str]
    experts: dict[str, str]
    """Whole experts to each rank; empty where the plan for tensors cuts them."""
    unused: tuple[str, ...]

    @property
    def all(self) -> dict[str, str]:
        """Both, since no name is in both."""
        return {**self.tensors, **self.experts}


def plan_of(model: Any, world_size: int, source: str, *, whole_experts: bool = False) -> CutPlan:
    """Return the model's own plan by concrete names; with `whole_experts` its plan for experts stands before the other.

    Raises Day0Error if it has none, or one that is refused.
    """
    if isinstance(model, ToyModel):
        own, own_experts = plan_of_toy(model)
        if whole_experts and not own_experts:
            _refuse_experts(model, source)
        return CutPlan(tensors=own, experts=own_experts, unused=())
    rules: dict[str, str] = dict(getattr(model, "_tp_plan", None) or {})
    if not rules or not hasattr(model, "_resolve_parallel_plans"):
        raise Day0Error(
            source,
            f"{type(model).__name__} has no tensor-parallel plan, so nobody said how it is cut for {world_size} ranks",
            facts=("a plan is base_model_tp_plan of a transformers config, or _tp_plan of its classes",),
            hint="trace it without --world-size, or give the config a plan",
        )
    # Some families leave their experts to a plan of their own; without it each rank would hold all of them.
    experts_plan = dict(getattr(model, "_ep_plan", None) or {})
    if whole_experts and not experts_plan:
        _refuse_experts(model, source)
    whole = {} if "moe_tp_experts" in rules.values() and not whole_experts else experts_plan
    tensors, experts = _resolved(model, world_size, source, with_experts=bool(whole))
    matched = {wild(name) for name in (*tensors, *experts)}
    matched |= {name.rpartition(".")[0] for name in matched}
    unused = tuple(sorted(rule for rule in (*rules, *whole) if rule not in matched))
    return CutPlan(tensors=tensors, experts=experts, unused=unused)


def _refuse_experts(model: Any, source: str) -> NoReturn:
    what = f"{type(model).__name__} has no expert-parallel plan, so nobody said which experts go to which rank"
    facts = ("a plan is base_model_ep_plan of a transformers config",)
    raise Day0Error(source, what, facts=facts, hint="leave --whole-experts away")


def parts_of_transformers() -> tuple[Any, Any, Any]:
    """Return the config of a layout and the two functions that cut a model."""
    try:
        from transformers.distributed.configuration_utils import DistributedConfig
        from transformers.distributed.expert_parallel import apply_expert_parallelism
        from transformers.distributed.tensor_parallel import apply_tensor_parallelism
    except ImportError:
        raise Day0Error(
            "--world-size", "this transformers is too old to cut a model by its plan", hint="pip install -U 'day0[hf]'"
        ) from None
    return DistributedConfig, apply_tensor_parallelism, apply_expert_parallelism


def _resolved(model: Any, world_size: int, source: str, *, with_experts: bool) -> tuple[dict[str, str], dict[str, str]]:
    config, _, _ = parts_of_transformers()
    logger = logging.getLogger("transformers.distributed.mixin")
    before = logger.level
    logger.setLevel(logging.ERROR)  # rules without a match are in the record
    options = {"ep_size": world_size, "ep_implementation": "all_reduce"} if with_experts else {}
    try:
        tensors, experts, _ = model._resolve_parallel_plans(config(tp_size=world_size, **options))
    except (ValueError, TypeError, KeyError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Day0Error(source, f"its plan is refused: {first[:300]}", hint="trace it without --world-size") from None
    finally:
        logger.setLevel(before)
    return dict(tensors), dict(experts)


def check_sizes(model: Any, plan: CutPlan, world_size: int, source: str) -> None:
    """Refuse what does not divide: then ranks would have different shapes, or heads would be cut through."""
    faults = [*_heads_that_do_not_divide(model, plan.tensors, world_size)]
    parameters = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, style in plan.all.items():
        dim = _cut_dimension(style, parameters[name]) if name in parameters else None
        if dim is None:
            continue
        # Two halves lie one after the other, and each is cut for itself.
        parts = 2 if style.startswith("packed") else 1
        size = int(parameters[name].shape[dim])
        if size % (parts * world_size):
            halves = f"two halves of {size // 2:,}" if parts == 2 else f"size {size:,}"
            faults.append(f"{wild(name)} ({style}) has {halves} in dimension {dim}")
    if faults:
        unique = tuple(dict.fromkeys(faults))
        more = f", and {len(unique) - 1} more do not" if len(unique) > 1 else ""
        raise Day0Error(
            source,
            f"{unique[0]}, which does not divide by {world_size} ranks{more}",
            facts=unique[1:6],
            hint="give a --world-size that divides all of them",
        )


def _heads_that_do_not_divide(model: Any, plan: dict[str, str], world_size: int) -> Iterator[str]:
    if isinstance(model, ToyModel):
        for field, count in heads_of_toy(model).items():
            if count % world_size:
                yield f"{field} is {count}"
        return
    config = model.config.get_text_config()
    cut = {name.rpartition(".")[2] for name, style in plan.items() if "colwise" in style and ".self_attn." in name}
    for field in _HEADS:
        heads = getattr(config, field, None)
        applies = cut if field == "num_attention_heads" else cut.intersection(_KEY_PROJECTIONS)
        if applies - {"weight", "bias"} and isinstance(heads, int) and heads % world_size:
            yield f"{field} is {heads:,}"


def _cut_dimension(style: str, parameter: torch.Tensor) -> int | None:
    """Return the dimension that a style cuts, counted from the front; None for styles that cut nothing here."""
    dims = parameter.ndim
    if style.startswith(("colwise", "packed_colwise")):
        return dims - 2 if dims > 1 else 0
    if style in ("rowwise", "rowwise_rep", "rowwise_split_input", "packed_rowwise", "embedding_colwise"):
        return dims - 1 if dims > 1 else None
    return 0 if style in ("embedding_rowwise", "grouped_gemm", "heads") else None
