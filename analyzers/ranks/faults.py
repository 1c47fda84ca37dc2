"""Faults that are planted in one rank of several: what real collectives and kernels on real clusters did wrong.

Shape suffixes: R rows, K how many are chosen, N what is chosen from.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from day0.analyzers.ranks.collective_calls import kind_of, sharded_class, wait_for
from day0.errors import Day0Error, near_names

__all__ = ["RANK_FAULTS", "Planted", "RankFault", "find_rank_faults", "planted_in_rank"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFault:
    """One fault, in one rank."""

    what: str
    ends: bool = False
    """Whether the rank does not survive it: then it needs processes of its own."""
    needs_indexer: bool = False


RANK_FAULTS: dict[str, RankFault] = {
    "ranks_dropped": RankFault(what="an all-reduce loses the contribution of rank 1"),
    "ranks_doubled": RankFault(what="an all-reduce adds the contribution of rank 1 twice"),
    "ranks_averaged": RankFault(what="an all-reduce gives the mean of the ranks, not their sum"),
    "ranks_one_copy_off": RankFault(what="an all-reduce leaves other low bits on rank 1 than on the others"),
    "ranks_other_tokens": RankFault(what="the indexer of rank 1 selects other tokens", needs_indexer=True),
    "ranks_killed": RankFault(what="rank 1 is killed by signal 9", ends=True),
    "ranks_raises": RankFault(what="rank 1 raises an exception", ends=True),
    "ranks_exits": RankFault(what="rank 1 ends with exit code 7 and without a word", ends=True),
    "ranks_hangs": RankFault(what="rank 1 stops before a collective and does not go on", ends=True),
}
"""By name, for `--plant`. The rank is always 1."""

VICTIM = 1
STRIKES_AT = 3
"""Which collective of the rank an ending fault strikes at: it has talked to the others before."""


def find_rank_faults(names: tuple[str, ...]) -> tuple[RankFault, ...]:
    """Return the faults of these names. Raises Day0Error for one that does not exist."""
    for name in names:
        if name not in RANK_FAULTS:
            known = tuple(RANK_FAULTS)
            hint = near_names(name, known) or f"faults of ranks: {', '.join(known)}"
            raise Day0Error(f"--plant {name}", "there is no such fault of ranks", hint=hint)
    return tuple(RANK_FAULTS[name] for name in names)


@dataclass(kw_only=True, slots=True)
class Planted:
    """A fault at work."""

    name: str
    calls: int = 0
    """How often it changed something."""


@contextmanager
def planted_in_rank(name: str, rank: int, world_size: int, model: nn.Module | None = None) -> Iterator[Planted]:
    """Plant a fault while this lasts; an empty name plants none. The averaging is in every rank, the rest in one."""
    planted = Planted(name=name)
    if not name or (rank != VICTIM and name != "ranks_averaged"):
        yield planted
        return
    mode: TorchDispatchMode = (
        _Selection(planted, model) if name == "ranks_other_tokens" else _Wrong(planted, world_size)
    )
    with mode:
        yield planted
    if isinstance(mode, _Selection):
        mode.close()


class _Wrong(TorchDispatchMode):
    """Lets collectives go wrong."""

    def __init__(self, planted: Planted, world_size: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
        self.planted, self.world_size, self.seen = planted, world_size, 0
        self._sharded = sharded_class()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._sharded in types:
            return NotImplemented
        kwargs = kwargs or {}
        kind = kind_of(func.name())
        if not kind:
            return func(*args, **kwargs)
        self.seen += 1
        if RANK_FAULTS[self.planted.name].ends:
            return self._end(func, args, kwargs)
        if kind != "all_reduce":
            return func(*args, **kwargs)
        self.planted.calls += 1
        return self._reduce(func, args, kwargs)

    def _reduce(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = args[0] if isinstance(args[0], list) else [args[0]]
        match self.planted.name:
            case "ranks_dropped":
                args = (_like(args[0], [torch.zeros_like(one) for one in given]), *args[1:])
            case "ranks_doubled":
                args = (_like(args[0], [one * 2 for one in given]), *args[1:])
        made = func(*args, **kwargs)
        wait_for(made)
        results = made[0] if isinstance(made, tuple) else [made]
        for own, result in zip(given, results, strict=True):
            if self.planted.name == "ranks_averaged" and result.is_floating_point():
                result.div_(self.world_size)
            elif self.planted.name == "ranks_one_copy_off" and result.is_floating_point():
                result.mul_(1.0 + 4.0 * torch.finfo(result.dtype).eps)
            if isinstance(args[0], list) and result is not own:
                own.copy_(result)  # the caller reads what it gave, and gave a tensor of its own
        return made

    def _end(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.seen < STRIKES_AT:
            return func(*args, **kwargs)
        self.planted.calls += 1
        match self.planted.name:
            case "ranks_killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "ranks_raises":
                raise RuntimeError("planted: this rank does not go on")
            case "ranks_exits":
                os._exit(7)
            case "ranks_hangs":
                while True:
                    time.sleep(1.0)
        return func(*args, **kwargs)


def _like(given: Any, tensors: list[torch.Tensor]) -> Any:
    return tensors if isinstance(given, list) else tensors[0]


class _Selection(TorchDispatchMode):
    """Lets an indexer select the first token that it should have left out instead of the last that it should take."""

    def __init__(self, planted: Planted, model: nn.Module | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.planted, self.inside = planted, 0
        self._handles = [
            handle
            for _, module in (model.named_modules() if model is not None else ())
            if "indexer" in type(module).__name__.lower()
            for handle in (
                module.register_forward_pre_hook(self._enter),
                module.register_forward_hook(self._leave, always_call=True),
            )
        ]

    def _enter(self, *_: Any) -> None:
        self.inside += 1

    def _leave(self, *_: Any) -> None:
        self.inside -= 1

    def close(self) -> None:
        """Let the model be as it was."""
        for handle in self._handles:
            handle.remove()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.inside or func.name() not in ("aten::topk", "day0::topk_tokens"):
            return func(*args, **kwargs)
        scores_RN, k = args[0], args[1]
        if k >= scores_RN.shape[-1]:
            return func(*args, **kwargs)
        if func.name() == "day0::topk_tokens":
            return self._ours(func, args, kwargs)
        values_RK, places_RK = func(scores_RN, k + 1, *args[2:], **kwargs)
        self.planted.calls += 1
        # Where the one too many is masked, the row has no more tokens than it may take.
        real_R = torch.isfinite(values_RK[..., -1])
        last_R = torch.where(real_R, places_RK[..., -1], places_RK[..., -2])
        value_R = torch.where(real_R, values_RK[..., -1], values_RK[..., -2])
        chosen_RK = torch.cat((places_RK[..., : k - 1], last_R[..., None]), dim=-1)
        return torch.cat((values_RK[..., : k - 1], value_R[..., None]), dim=-1), chosen_RK

    def _ours(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do the same to our operator, which gives -1 where a row has no more tokens, and how many it has."""
        k = args[1]
        more_RK, _ = func(args[0], k + 1, *args[2:], **kwargs)
        self.planted.calls += 1
        last_R = torch.where(more_RK[..., -1] >= 0, more_RK[..., -1], more_RK[..., -2])
        chosen_RK = torch.cat((more_RK[..., : k - 1], last_R[..., None]), dim=-1)
        return chosen_RK, (chosen_RK >= 0).sum(dim=-1, dtype=torch.int32)
