"""Indices chosen by the token selection of sparse attention: short rows, ties, order."""

from __future__ import annotations

from typing import Any

import torch

from day0.devices.faults._fault import Fault
from day0.devices.faults._tools import (
    Arguments,
    fault,
    instead,
    shows,
    with_result,
)
from day0.devices.sim.planting import Original
from day0.devices.sim.tensor import raw
from day0.devices.sim.wrap import wrap
from day0.reference_ops.topk_tokens import reference

__all__ = ["FAULTS"]


def _overflowing_ties(given: Arguments) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Keep candidates in a buffer of `topk`, in order of place: of many ties, those that came last push out better ones."""
    logits, topk = given["logits"], given["topk"]
    if topk >= logits.shape[-1] or not logits.numel():
        return None
    cut = logits.sort(dim=-1, descending=True).values[..., topk - 1 : topk]
    if not bool(((logits == cut).sum(-1) > topk).any()):
        return None
    chosen, valid = reference(logits, topk, given["lengths"])
    overflowing = ((logits == cut).sum(-1) > topk)[..., None]
    first = torch.arange(logits.shape[-1] - topk, logits.shape[-1], dtype=torch.int32).expand(chosen.shape)
    # The buffer wraps: what it holds in the end are the last places, among them some that do not belong there.
    return torch.where(overflowing, first, chosen), valid


def _other_order_each_time(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Workgroups finish in another order in every second call: the same tokens, otherwise placed."""
    calls = original.memory["calls"] = original.memory.get("calls", 0) + 1
    chosen, valid = raw(original(*args, **kwargs))
    if calls % 2:
        return wrap((chosen, valid), ())
    place = torch.arange(chosen.shape[-1])
    mirrored = torch.where(place < valid[..., None], valid[..., None] - 1 - place, place)
    return wrap((chosen.gather(-1, mirrored.to(torch.int64)), valid), ())


def _refuse_short_rows(given: Arguments) -> None:
    keys = given["logits"].shape[-1]
    if given["topk"] > keys:
        raise RuntimeError(f"selected index k out of range: k is {given['topk']}, and there are {keys} keys")


def _closed_are_chosen(result: Any, given: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Fill up short rows with the places of tokens that are not visible, where the contract says -1."""
    chosen = result[0].clone()
    keys = given["logits"].shape[-1]
    for row in chosen.view(-1, chosen.shape[-1]):
        rest = [one for one in range(keys) if one not in set(row[row >= 0].tolist())]
        holes = (row < 0).nonzero().flatten()[: len(rest)]
        row[holes] = torch.tensor(rest[: len(holes)], dtype=row.dtype)
    return chosen, (chosen >= 0).sum(dim=-1, dtype=torch.int32)


def _zero_for_none(result: Any, given: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    return result[0].clamp(min=0), result[1]


def _select_tokens(values: list[float], topk: int, times: int = 1) -> Any:
    def run(device: torch.device) -> Any:
        logits = torch.tensor([[values]], device=device)
        return [torch.ops.day0.topk_tokens(logits, topk) for _ in range(times)]

    return run


_INF = float("-inf")

FAULTS: tuple[Fault, ...] = (
    fault(
        "selection_ties_overflow",
        "indices",
        "sgl-project/sglang#35257",
        "token selection with more ties than its buffer holds keeps the places that came last",
        "day0::topk_tokens",
        instead(_overflowing_ties),
        shows(_select_tokens([9.0, 1.0, 1.0, 1.0, 1.0, _INF], 2), gives=[[[[[4, 5]]], [[2]]]]),
    ),
    fault(
        "selection_order_varies",
        "indices",
        "ROCm/aiter#4415 ROCm/ATOM#1832",
        "token selection returns the same tokens in another order in every second call, so that ranks disagree",
        "day0::topk_tokens",
        _other_order_each_time,
        shows(_select_tokens([3.0, 2.0, 1.0], 2, times=2), gives=[[[[[0, 1]]], [[2]]], [[[[1, 0]]], [[2]]]]),
    ),
    fault(
        "selection_refuses_short_rows",
        "indices",
        "NVIDIA-NeMo/Automodel#3035",
        "token selection raises where fewer keys exist than it shall choose",
        "day0::topk_tokens",
        instead(_refuse_short_rows),
        shows(_select_tokens([1.0, 2.0], 3), raises=RuntimeError, message="k is 3, and there are 2 keys"),
    ),
    fault(
        "selection_of_hidden_tokens",
        "indices",
        "https://github.com/huggingface/transformers/blob/main/src/transformers/models/deepseek_v32/modular_deepseek_v32.py",
        "token selection fills short rows with places that are not visible, which leaks the future",
        "day0::topk_tokens",
        with_result(_closed_are_chosen),
        shows(_select_tokens([5.0, 4.0, _INF], 3), gives=[[[[[0, 1, 2]]], [[3]]]]),
    ),
    fault(
        "selection_pads_with_zero",
        "indices",
        "sgl-project/sglang#31128",
        "token selection marks missing tokens with 0, the first token, where the contract says -1",
        "day0::topk_tokens",
        with_result(_zero_for_none),
        shows(_select_tokens([_INF, 4.0], 2), gives=[[[[[1, 0]]], [[1]]]]),
    ),
)
