"""One rank of several: the model cut by its own tensor-parallel plan, over a process group that moves nothing.

Rank 0 runs alone. Its shapes are those of every rank, since only sizes that divide evenly are taken, and collectives
are recorded as the operators they are. Values would be wrong, so there are none: this works on meta.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from day0.analyzers.trace import trace_model
from day0.errors import Day0Error
from day0.models.spec import ModelSpec
from day0.models.workload import Phase
from day0.records import ParallelInfo, Trace

__all__ = ["MAX_RANKS", "trace_one_rank"]

MAX_RANKS = 1 << 16
"""More ranks than that no tensor-parallel group has; it is a slip of the finger."""

_LAYER_NUMBER = re.compile(r"\.\d+(?=\.|$)")
_HEADS = ("num_attention_heads", "num_key_value_heads")
_KEY_PROJECTIONS = ("k_proj", "v_proj", "qkv_proj", "query_key_value")


def trace_one_rank(
    spec: ModelSpec,
    phases: tuple[Phase, ...],
    world_size: int,
    *,
    mode: str = "auto",
    progress: Callable[[str], None] = lambda _: None,
) -> Trace:
    """Trace what rank 0 of `world_size` calls.

    Raises Day0Error: a mode with values, torch without distributed, a model without a plan, and sizes that do not
    divide by the number of ranks, by name and figure.
    """
    _refuse(mode, world_size)
    made: list[ParallelInfo] = []

    def build(device: str) -> nn.Module:
        model = spec.build(device)
        made.append(_shard(model, world_size, spec.source))
        return model

    with _fake_group(world_size):
        progress(f"cutting {spec.class_name} for {world_size} ranks")
        trace = trace_model(dataclasses.replace(spec, build=build), phases, mode="meta", progress=progress)
    reason = f"meta: rank 0 of {world_size} by the model's own plan; a group that moves nothing has no values"
    return trace.model_copy(update={"parallel": made[-1], "mode_reason": reason})


def _refuse(mode: str, world_size: int) -> None:
    if mode not in ("auto", "meta"):
        what = f"one rank of {world_size} is traced on meta, not in mode '{mode}'"
        raise Day0Error(
            "--world-size", what, hint="leave --mode out: over a group that moves nothing, values would be wrong"
        )
    if not 2 <= world_size <= MAX_RANKS:
        raise Day0Error("--world-size", f"{world_size:,} is not a number of ranks", hint=f"give 2 to {MAX_RANKS:,}")
    if not torch.distributed.is_available():
        raise Day0Error(
            "--world-size", "this torch was built without distributed", hint="take the ordinary wheel of torch"
        )


@contextmanager
def _fake_group(world_size: int) -> Iterator[None]:
    """Hold the default process group of this process, with a backend that only pretends."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise Day0Error(
            "--world-size", "this process already belongs to a process group", hint="trace in a process of its own"
        )
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _shard(model: nn.Module, world_size: int, source: str) -> ParallelInfo:
    """Cut the model in place and say by which rules."""
    plan = _plan(model, world_size, source)
    _check_sizes(model, plan, world_size, source)
    from torch.distributed.device_mesh import init_device_mesh

    _, cut_tensors, cut_experts = _transformers()
    # The meshes are of CPUs: torch has none of meta devices, and the tensors stay where they are.
    ranks = init_device_mesh("cpu", (world_size,), mesh_dim_names=("tp",))
    cut_tensors(model, ranks, plan.tensors)
    if plan.experts:
        groups = init_device_mesh("cpu", (world_size,), mesh_dim_names=("ep",))
        cut_experts(model, groups, ranks, plan.experts, ep_implementation="all_reduce")
    kept = [_local(value) for value in model.parameters()]
    weights = (*kept, *(_local(value) for value in model.buffers()))
    return ParallelInfo(
        world_size=world_size,
        plan={_wild(name): style for name, style in plan.all.items()},
        unused=plan.unused,
        parameters=sum(value.numel() for value in kept),
        parameter_bytes=sum(value.numel() * value.element_size() for value in weights),
    )


def _wild(name: str) -> str:
    return _LAYER_NUMBER.sub(".*", name)


def _local(value: torch.Tensor) -> torch.Tensor:
    to_local = getattr(value, "to_local", None)
    return to_local() if to_local is not None else value


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """Styles by concrete names of parameters and modules."""

    tensors: dict[str, str]
    experts: dict[str, str]
    """Whole experts to each rank; empty where the plan for tensors cuts them."""
    unused: tuple[str, ...]

    @property
    def all(self) -> dict[str, str]:
        """Both, since no name is in both."""
        return {**self.tensors, **self.experts}


def _plan(model: Any, world_size: int, source: str) -> _Plan:
    rules: dict[str, str] = dict(getattr(model, "_tp_plan", None) or {})
    if not rules or not hasattr(model, "_resolve_parallel_plans"):
        raise Day0Error(
            source,
            f"{type(model).__name__} has no tensor-parallel plan, so nobody said how it is cut for {world_size} ranks",
            facts=("a plan is base_model_tp_plan of a transformers config, or _tp_plan of its classes",),
            hint="trace it without --world-size, or give the config a plan",
        )
    # Some families leave their experts to a plan of their own; without it each rank would hold all of them.
    whole = {} if "moe_tp_experts" in rules.values() else dict(getattr(model, "_ep_plan", None) or {})
    tensors, experts = _resolved(model, world_size, source, with_experts=bool(whole))
    matched = {_wild(name) for name in (*tensors, *experts)}
    matched |= {name.rpartition(".")[0] for name in matched}
    unused = tuple(sorted(rule for rule in (*rules, *whole) if rule not in matched))
    return _Plan(tensors=tensors, experts=experts, unused=unused)


def _transformers() -> tuple[Any, Any, Any]:
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
    config, _, _ = _transformers()
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


def _check_sizes(model: Any, plan: _Plan, world_size: int, source: str) -> None:
    """Refuse what does not divide: then ranks would have different shapes, or heads would be cut through."""
    faults = [*_heads_that_do_not_divide(model, plan.tensors, world_size)]
    parameters = dict(model.named_parameters())
    for name, style in plan.all.items():
        dim = _cut_dimension(style, parameters[name]) if name in parameters else None
        if dim is None:
            continue
        # Two halves lie one after the other, and each is cut for itself.
        parts = 2 if style.startswith("packed") else 1
        size = int(parameters[name].shape[dim])
        if size % (parts * world_size):
            halves = f"two halves of {size // 2:,}" if parts == 2 else f"size {size:,}"
            faults.append(f"{_wild(name)} ({style}) has {halves} in dimension {dim}")
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
    return 0 if style in ("embedding_rowwise", "grouped_gemm") else None
