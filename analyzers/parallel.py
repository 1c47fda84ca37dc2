"""One rank of several: the model cut by its own tensor-parallel plan, over a process group that moves nothing.

Rank 0 runs alone. Its shapes are those of every rank, since only sizes that divide evenly are taken, and collectives
are recorded as the operators they are. Values would be wrong, so there are none: this works on meta.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from day0.analyzers.parallel_plan import CutPlan, check_sizes, parts_of_transformers, plan_of, wild
from day0.analyzers.trace import trace_model
from day0.errors import Day0Error
from day0.models.spec import ModelSpec
from day0.models.toy.model import ToyModel
from day0.models.toy.ranks import cut_toy
from day0.models.workload import Phase
from day0.records import ParallelInfo, Trace

__all__ = ["MAX_RANKS", "Cut", "cut_model", "fake_group", "trace_one_rank"]

MAX_RANKS = 1 << 16
"""More ranks than that no tensor-parallel group has; it is a slip of the finger."""


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
    cuts: list[Cut] = []

    def build(device: str) -> nn.Module:
        model = spec.build(device)
        cuts.append(cut_model(model, world_size, spec.source))
        return model

    with fake_group(world_size):
        progress(f"cutting {spec.class_name} for {world_size} ranks")
        try:
            trace = trace_model(dataclasses.replace(spec, build=build), phases, mode="meta", progress=progress)
        except Day0Error as error:
            raise (_explain(error, cuts[-1].info) if cuts else error) from error
    reason = f"meta: rank 0 of {world_size} by the model's own plan; a group that moves nothing has no values"
    whole = trace.model.model_copy(update={"parameters": cuts[-1].parameters, "parameter_bytes": cuts[-1].bytes})
    return trace.model_copy(update={"parallel": cuts[-1].info, "mode_reason": reason, "model": whole})


def _explain(error: Day0Error, info: ParallelInfo) -> Day0Error:
    """Say which rule stands behind a module that stopped: plans of released models are not all right."""
    rules = [name for name in info.plan if name and re.search(rf"(^|[ ,]){re.escape(name)}( |$)", wild(error.where))]
    facts = tuple(f"the model's plan cuts {name} by the rule '{info.plan[name]}'" for name in rules[:1])
    return Day0Error(
        error.where,
        error.what,
        facts=(*error.facts, *facts, f"it was cut for {info.world_size} ranks"),
        hint="trace it without --world-size: if that works, the plan of this model is wrong",
    )


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
def fake_group(world_size: int) -> Iterator[None]:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """What the model was before, and what a rank holds of it."""

    parameters: int
    bytes: int
    info: ParallelInfo


def cut_model(
    model: nn.Module, world_size: int, source: str, *, device_type: str = "cpu", whole_experts: bool = False
) -> Cut:
    """Cut the model in place and say by which rules; `device_type` is where a rank's tensors are put.

    With `whole_experts` experts go whole to ranks also where the plan for tensors would cut them.
    Raises Day0Error: no plan, and sizes that do not divide by the number of ranks.
    """
    plan = plan_of(model, world_size, source, whole_experts=whole_experts)
    count, size = _weights(model, frozenset())
    untied = _untie(model, plan)
    check_sizes(model, plan, world_size, source)
    if isinstance(model, ToyModel):
        cut_toy(model, torch.distributed.get_rank(), world_size)
    else:
        _cut_transformers(model, plan, world_size, device_type)
    _tie_again(model, untied)
    kept, kept_bytes = _weights(model, frozenset(untied))
    info = ParallelInfo(
        world_size=world_size,
        plan={wild(name): style for name, style in plan.all.items()},
        unused=plan.unused,
        parameters=kept,
        parameter_bytes=kept_bytes,
    )
    return Cut(parameters=count, bytes=size, info=info)


def _cut_transformers(model: nn.Module, plan: CutPlan, world_size: int, device_type: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    _, cut_tensors, cut_experts = parts_of_transformers()
    # For meta the meshes are of CPUs: torch has none of meta devices, and the tensors stay where they are.
    ranks = init_device_mesh(device_type, (world_size,), mesh_dim_names=("tp",))
    cut_tensors(model, ranks, plan.tensors)
    if plan.experts:
        groups = init_device_mesh(device_type, (world_size,), mesh_dim_names=("ep",))
        cut_experts(model, groups, ranks, plan.experts, ep_implementation="all_reduce")


def _untie(model: nn.Module, plan: CutPlan) -> dict[str, str]:
    """Give tied parameters that the plan names an object each, since transformers cuts them one by one.

    Returns for each of them the name that it had first. To the model they are still the same weight, and count once.
    """
    first = {id(value): name for name, value in model.named_parameters()}
    untied = {}
    for module_name, module in model.named_modules():
        for name, value in list(module.named_parameters(recurse=False)):
            full = f"{module_name}.{name}" if module_name else name
            if full in plan.all and first[id(value)] != full:
                setattr(module, name, nn.Parameter(value.detach(), requires_grad=value.requires_grad))
                untied[full] = first[id(value)]
    return untied


def _tie_again(model: nn.Module, untied: dict[str, str]) -> None:
    """Let parameters that were tied, and were cut alike, be one again: else a rank holds them twice."""
    parameters = dict(model.named_parameters())
    for name, first in untied.items():
        one, other = parameters[name], parameters[first]
        if getattr(one, "placements", None) == getattr(other, "placements", None):
            module, _, own = name.rpartition(".")
            setattr(model.get_submodule(module), own, other)


def _weights(model: nn.Module, left_out: frozenset[str]) -> tuple[int, int]:
    """Return how many parameters this process holds, and the bytes of those and of the buffers."""
    kept = [_local(value) for name, value in model.named_parameters() if name not in left_out]
    held = (*kept, *(_local(value) for value in model.buffers()))
    return sum(value.numel() for value in kept), sum(value.numel() * value.element_size() for value in held)


def _local(value: torch.Tensor) -> torch.Tensor:
    to_local = getattr(value, "to_local", None)
    return to_local() if to_local is not None else value
