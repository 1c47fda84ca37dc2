"""Phases: kernels that are right for the tokens that a test has, and wrong for those that a service has."""

from __future__ import annotations

from typing import Any

import torch

from day0.devices.faults._fault import Fault
from day0.devices.faults._tools import Arguments, arguments, fault, instead, seeded, shows, with_arguments, with_result
from day0.devices.sim.planting import Original
from day0.devices.sim.tensor import raw
from day0.devices.sim.wrap import wrap
from day0.reference_ops.topk_tokens import reference

__all__ = ["FAULTS"]

ROWS = 256
"""From so many rows on, the faulty product sums in another order."""


def _index_query_paired_otherwise(given: Arguments) -> Arguments:
    """Take the query's rotated pairs for halves where they are neighbours: keys stay as they are."""
    q = given["q"]
    half = q.shape[-1] // 2
    return {"q": torch.cat((q[..., 0 : 2 * half : 2], q[..., 1 : 2 * half : 2], q[..., 2 * half :]), dim=-1)}


def _recent(given: Arguments) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Choose the newest visible tokens; with no more than `topk` of them that is the right choice."""
    logits, topk = given["logits"], given["topk"]
    open_ = torch.isfinite(logits)
    if given["lengths"] is not None:
        open_ &= torch.arange(logits.shape[-1]) < given["lengths"][..., None]
    if not bool((open_.sum(-1) > topk).any()):
        return None
    age = torch.arange(logits.shape[-1], dtype=torch.float32).expand(logits.shape)
    chosen, valid = reference(torch.where(open_, age, float("-inf")), topk)
    return chosen, valid


def _recent_when_replayed(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Go right the first time; take the shortcut once these shapes have been seen, as in a captured graph."""
    given = arguments(original, args, kwargs)
    key = (tuple(given["logits"].shape), given["topk"])
    again = key in original.memory
    original.memory[key] = True
    right, wrong = original(*args, **kwargs), _recent(given) if again else None
    return right if wrong is None else wrap(wrong, ())


def _replayed(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return in the third call with the same shapes what the second one gave: the graph holds old input buffers."""
    given = arguments(original, args, kwargs)
    key = tuple(tuple(one.shape) for one in given.values() if isinstance(one, torch.Tensor))
    calls = original.memory[key, "calls"] = original.memory.get((key, "calls"), 0) + 1
    result = original(*args, **kwargs)
    if calls > 2:
        return wrap(tuple(one.clone() for one in original.memory[key]), ())
    original.memory[key] = tuple(one.clone() for one in raw(result))
    return result


def _other_order_for_many(given: Arguments) -> torch.Tensor | None:
    """Sum backwards, in blocks, where there are many rows."""
    first, second = given["self"], given["mat2"]
    if first.shape[0] < ROWS or not first.is_floating_point() or first.dtype == torch.float64:
        return None
    total = torch.zeros(first.shape[0], second.shape[1])
    for start in reversed(range(0, first.shape[1], 4)):
        part = slice(start, start + 4)
        total = total + first[:, part].float() @ second[part].float()
    return total.to(first.dtype)


def _unweighted_in_decode(given: Arguments) -> Arguments | None:
    """Forget the routing weights on the path for one token."""
    weights = given["weights"]
    return {"weights": torch.full_like(weights, 1.0 / weights.shape[1])} if weights.shape[0] == 1 else None


def _step_for_step(result: Any, given: Arguments) -> Any:
    """Do not carry the state over from a call with one token."""
    return (result[0], given["state"].clone()) if given["q"].shape[1] == 1 else None


def _index(device: torch.device) -> Any:
    q, k, w = seeded(1, 1, 2, 4), seeded(1, 3, 4, seed=1), seeded(1, 1, 2, seed=2)
    return torch.ops.day0.lightning_indexer(q.to(device), k.to(device), w.to(device), 2)


def _select(times: int) -> Any:
    def run(device: torch.device) -> Any:
        logits = torch.tensor([[[9.0, 3.0, 2.0, 1.0]]], device=device)
        return [torch.ops.day0.topk_tokens(logits, 2)[0] for _ in range(times)]

    return run


def _decode_three_times(device: torch.device) -> Any:
    outputs = []
    for step in range(3):
        q = seeded(1, 1, 1, 2, seed=step).to(device)
        gate, beta = torch.zeros(1, 1, 1, 2, device=device), torch.ones(1, 1, 1, device=device)
        outputs.append(torch.ops.day0.kda_recurrent(q, q, q, gate, beta, torch.zeros(1, 1, 2, 2, device=device))[0])
    return outputs


def _one_token(device: torch.device) -> list[torch.Tensor]:
    q = seeded(1, 1, 1, 2).to(device)
    gate, beta = torch.zeros(1, 1, 1, 2, device=device), torch.ones(1, 1, 1, device=device)
    return [q, q, q, gate, beta, torch.zeros(1, 1, 2, 2, device=device)]


def _many_rows(device: torch.device) -> Any:
    rows, weight = seeded(ROWS, 96).to(device), seeded(96, 3, seed=1).to(device)
    whole = (rows @ weight)[:2]
    return torch.equal(whole.cpu(), (rows[:2] @ weight).cpu())


def _experts(device: torch.device) -> Any:
    args = (seeded(1, 3), seeded(2, 4, 3, seed=1), seeded(2, 3, 2, seed=2), torch.tensor([[0.9, 0.1]]))
    moved = [one.to(device) for one in args]
    return torch.ops.day0.fused_experts(*moved, torch.tensor([[0, 1]], device=device), "swiglu")


FAULTS: tuple[Fault, ...] = (
    fault(
        "indexer_query_paired_otherwise",
        "tracing",
        "https://github.com/lablup/mlxcel/pull/583",
        "the indexer takes its query's pairs for halves: other tokens are chosen, once there are more than topk",
        "day0::lightning_indexer",
        with_arguments(_index_query_paired_otherwise),
        shows(_index),
    ),
    fault(
        "selection_by_recency",
        "tracing",
        "MooreThreads/vllm-musa#239",
        "token selection takes the newest tokens in place of the best, which is the same below topk",
        "day0::topk_tokens",
        instead(_recent),
        shows(_select(1), gives=[[[[3, 2]]]]),
    ),
    fault(
        "selection_by_recency_when_replayed",
        "tracing",
        "MooreThreads/vllm-musa#239 vllm-project/vllm#52531",
        "token selection is right in the first call with a shape, and takes the newest tokens from the second on",
        "day0::topk_tokens",
        _recent_when_replayed,
        shows(_select(2), gives=[[[[0, 1]]], [[[3, 2]]]]),
    ),
    fault(
        "state_stale_when_replayed",
        "tracing",
        "vllm-project/vllm#52531",
        "the recurrence returns old results from the third call with the same shapes on: a graph with old buffers",
        "day0::kda_recurrent",
        _replayed,
        shows(_decode_three_times),
    ),
    fault(
        "state_not_carried_in_decode",
        "tracing",
        "vllm-project/vllm#52627",
        "the recurrence returns the state it was given where there is one token",
        "day0::kda_recurrent",
        with_result(_step_for_step),
        shows(lambda device: list(torch.ops.day0.kda_recurrent(*_one_token(device)))),
    ),
    fault(
        "experts_unweighted_in_decode",
        "tracing",
        "https://github.com/huggingface/transformers/pull/47107",
        "experts take another path for one token, which forgets the routing weights",
        "day0::fused_experts",
        with_arguments(_unweighted_in_decode),
        shows(_experts),
    ),
    fault(
        "row_count_changes_order",
        "tracing",
        "https://github.com/vllm-project/vllm/issues/48271",
        f"matrix products sum in another order from {ROWS} rows on, so that prefill and decode differ",
        "aten::mm",
        instead(_other_order_for_many),
        shows(_many_rows, gives=False),
        warns=True,
    ),
)
