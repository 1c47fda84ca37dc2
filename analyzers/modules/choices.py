"""What a model chooses while it runs: experts and tokens. A near tie may fall either way, and then all else differs.

A run can follow another one's choices: where its own differ by no more than rounding explains, the other's are taken, so
that what comes after can be compared. A choice that rounding does not explain is kept and counted as wrong.

Shape suffixes: N what is chosen from, K how many are chosen, E experts, T tokens; `...` any rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from day0.analyzers.judging.words import index_of
from day0.reference_ops import moe_router

__all__ = ["Choice", "Choices", "Moved", "Place"]

SLACK = 6.0
"""How many times the yardstick's own error of the scores a choice may be off: three as everywhere, on two scores."""
FLOOR_ULPS = 8.0
"""Units in the last place of the largest score that are always allowed: the yardstick can be lucky."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One call that chose: its scores [..., N] and the chosen places [..., K], both on the CPU; -1 means none."""

    op: str
    scores: torch.Tensor
    chosen: torch.Tensor
    groups: tuple[int, int] = (1, 1)
    """Into how many groups the places fall, and from how many of them may be chosen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """Rows of one choice that came out otherwise than in the run that is followed."""

    place: tuple[str, int]
    """The module and which of its choices it was."""
    explained: int
    wrong: int
    rows: int
    shortfall: float
    """In the first row that is wrong, else in the first that differs: the distance in score between what was chosen and
    what should have been."""
    slack: float
    """How much rounding explains in that row."""


@dataclass(kw_only=True)
class _Heard:
    op: str
    scores: torch.Tensor
    chosen: torch.Tensor
    put: Callable[[torch.Tensor], Any]
    """Gives the operator's results for other chosen places, on its device."""
    groups: tuple[int, int] = (1, 1)


Place = tuple[str, int]
"""The module that chose, by its path, and how many choices it had made before."""


class Choices(TorchDispatchMode):
    """While active, keeps every choice that is made below a module, by its place.

    With `follow` it takes that run's choices where rounding explains a difference. `noise` are the same choices of a run
    in the same dtype on the CPU, whose scores say what rounding does; without it every choice of the other run is taken,
    which is how that run itself is made.
    """

    def __init__(
        self, root: nn.Module, follow: Mapping[Place, Choice] | None = None, noise: Mapping[Place, Choice] | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
        self.made: dict[Place, Choice] = {}
        self.moved: list[Moved] = []
        self._root, self._follow, self._noise = root, follow, noise
        self._unlike = False
        self._counts: Counter[str] = Counter()
        self._running: list[str] = []
        self._handles: list[Any] = []

    @property
    def lost(self) -> bool:
        """Whether this run chose by other operators, in other shapes or in other modules than the one it follows."""
        return self._unlike or any(place not in self.made for place in self._follow or ())

    def __enter__(self) -> Self:
        """Begin to listen."""
        for path, module in self._root.named_modules():
            self._handles += self._paths(path, module)
        super().__enter__()  # type: ignore[no-untyped-call]  # as above
        return self

    def __exit__(self, *error: object) -> None:
        """Listen no more."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # as above
        for handle in self._handles:
            handle.remove()

    def _paths(self, path: str, module: nn.Module) -> list[Any]:
        def enter(*_: Any) -> None:
            self._running.append(path)

        def leave(*_: Any) -> None:
            # Another hook may have raised before this module was entered.
            if self._running and self._running[-1] == path:
                self._running.pop()

        return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave, always_call=True)]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator, and look at it if it chooses."""
        result = func(*args, **(kwargs or {}))
        hear = _HEARD.get(func.name())
        return result if hear is None else self._look(hear(result, *args, **(kwargs or {})), result)

    def _look(self, heard: _Heard, result: Any) -> Any:
        path = self._running[-1] if self._running else ""
        place = (path, self._counts[path])
        self._counts[path] += 1
        kept = Choice(op=heard.op, scores=heard.scores, chosen=heard.chosen, groups=heard.groups)
        self.made[place] = kept
        if self._follow is None:
            return result
        other = self._follow.get(place)
        if other is None or not _alike(kept, other):
            self._unlike = True
            return result
        return self._take(place, heard, other, result)

    def _take(self, place: Place, heard: _Heard, other: Choice, result: Any) -> Any:
        differ = _sets_differ(heard.chosen, other.chosen)
        if not bool(differ.any()):
            return result
        short = _shortfall(other, heard.chosen)
        slack = torch.full_like(short, float("inf")) if self._noise is None else _slack(other, self._noise.get(place))
        wrong = differ & ~(short <= slack)
        explained = differ & ~wrong
        row = index_of(int((wrong if bool(wrong.any()) else differ).to(torch.uint8).argmax()), differ.shape)
        self.moved.append(
            Moved(
                place=place,
                explained=int(explained.sum()),
                wrong=int(wrong.sum()),
                rows=differ.numel(),
                shortfall=float(short[row]),
                slack=float(slack[row]),
            )
        )
        chosen = torch.where(explained[..., None], other.chosen.to(heard.chosen.dtype), heard.chosen)
        self.made[place] = replace(self.made[place], chosen=chosen)
        return heard.put(chosen) if bool(explained.any()) else result


def _alike(one: Choice, other: Choice) -> bool:
    return (one.op, one.scores.shape, one.chosen.shape) == (other.op, other.scores.shape, other.chosen.shape)


def _sets_differ(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return [...]: True where a row chose another set."""
    ordered = (one.to(torch.int64).sort(dim=-1).values for one in (got, expected))
    return (next(ordered) != next(ordered)).any(dim=-1)


def _shortfall(golden: Choice, got: torch.Tensor) -> torch.Tensor:
    """Return [...]: how far the scores of what was chosen lie from those of what should have been; invalid: infinity."""
    scores, expected, by_group = golden.scores, golden.chosen, torch.zeros(())
    if golden.groups[0] > 1:
        expected, by_group = _within_groups(golden, got)
    ordered = got.to(torch.int64).sort(dim=-1).values
    invalid = ((ordered >= scores.shape[-1]) | (ordered < -1)).any(dim=-1)
    invalid |= ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any(dim=-1)
    mine, theirs = (_scores_at(scores, one).sort(dim=-1).values for one in (got, expected))
    distance = torch.where(mine == theirs, 0.0, (mine - theirs).abs()).nan_to_num(nan=float("inf"))
    worst = distance.amax(dim=-1) if distance.shape[-1] else distance.sum(dim=-1)
    return torch.where(invalid, float("inf"), torch.maximum(worst, by_group.to(worst.dtype)))


def _within_groups(golden: Choice, got: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best choice [..., K] within the groups that were chosen from, and how far those lie below the others.

    A near tie of two groups moves all their members. A group is judged by the sum of its two best: half of it counts.
    """
    groups, kept = golden.groups
    size = golden.scores.shape[-1] // groups
    mine = (got.to(torch.int64) // size).clamp(0, groups - 1)
    theirs = (golden.chosen.to(torch.int64) // size).clamp(0, groups - 1)
    sums = golden.scores.unflatten(-1, (groups, size)).topk(2, dim=-1).values.sum(dim=-1)
    cut = sums.topk(kept, dim=-1).values[..., -1:]
    short = (cut - sums.gather(-1, mine)).clamp(min=0.0).amax(dim=-1) / 2.0
    # Which groups were kept is not seen where nothing was chosen from them: then the golden's stand for them.
    swapped = (short > 0)[..., None]
    allowed = torch.zeros_like(sums, dtype=torch.bool).scatter(-1, mine, True)
    allowed |= ~swapped & torch.zeros_like(allowed).scatter(-1, theirs, True)
    within = golden.scores.masked_fill(~allowed.repeat_interleave(size, dim=-1), float("-inf"))
    return within.topk(got.shape[-1], dim=-1).indices, short


def _scores_at(scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    place = chosen.to(torch.int64).clamp(min=0, max=scores.shape[-1] - 1)
    return torch.where(chosen >= 0, scores.to(torch.float64).gather(-1, place), float("-inf"))


def _slack(golden: Choice, noise: Choice | None) -> torch.Tensor:
    """Return [...]: how far a score may be off at the cut, from what the same dtype does to the scores on the CPU.

    Where the dtype itself cannot hold a score that is finite in the golden, any choice is explained.
    """
    right = golden.scores.to(torch.float64)
    if noise is None or not _alike(golden, noise) or not right.shape[-1]:
        return torch.zeros(right.shape[:-1], dtype=torch.float64)
    same = noise.scores
    overflows = (torch.isfinite(right) & ~torch.isfinite(same)).any(dim=-1)
    finite = torch.isfinite(right) & torch.isfinite(same)
    size = torch.where(finite, right, 0.0).abs().amax(dim=-1)
    off = torch.where(finite, same.to(torch.float64) - right, 0.0).abs().amax(dim=-1)
    # One row can be lucky: none is expected to be better than the usual one.
    usual = off.mean() if off.numel() else off
    eps = float(torch.finfo(same.dtype).eps) if same.is_floating_point() else 0.0
    slack = SLACK * torch.maximum(off, usual.expand(off.shape)) + FLOOR_ULPS * eps * size
    return torch.where(overflows, float("inf"), slack)


def _topk(result: Any, scores: torch.Tensor, k: int, dim: int = -1, largest: bool = True, *_: Any, **__: Any) -> _Heard:
    values, chosen = result
    if not scores.dim():
        scores, chosen, dim = scores[None], chosen[None], 0

    def put(places: torch.Tensor) -> Any:
        there = places.movedim(-1, dim).to(chosen.device, torch.int64).reshape(result[1].shape)
        return scores.gather(dim, there.reshape(chosen.shape)).reshape(values.shape), there

    low = scores.detach().cpu().movedim(dim, -1)
    return _Heard(
        op="aten::topk", scores=low if largest else -low, chosen=chosen.detach().cpu().movedim(dim, -1), put=put
    )


def _topk_tokens(result: Any, scores: torch.Tensor, *_: Any, **__: Any) -> _Heard:
    chosen, valid = result

    def put(places: torch.Tensor) -> Any:
        return places.to(chosen.device), valid

    return _Heard(op="day0::topk_tokens", scores=scores.detach().cpu(), chosen=chosen.detach().cpu(), put=put)


def _moe_router(
    result: Any,
    logits: torch.Tensor,
    bias: torch.Tensor,
    topk: int,
    scale: float,
    groups: int = 1,
    topk_groups: int = 1,
    score: str = "sigmoid",
    normalise: bool = True,
) -> _Heard:
    weights, chosen = result
    logits_NE, bias_E = logits.detach().cpu(), bias.detach().cpu()
    every_NE = _all_weights(logits_NE, bias_E, score)

    def put(places: torch.Tensor) -> Any:
        weight_NK = every_NE.gather(-1, places.to(torch.int64))
        if normalise:
            weight_NK = weight_NK / (weight_NK.sum(dim=-1, keepdim=True) + 1e-20)
        moved = (places != chosen.cpu()).any(dim=-1, keepdim=True)
        kept = torch.where(moved, (weight_NK * scale).to(weights.dtype), weights.cpu())
        return kept.to(weights.device), places.to(chosen.device)

    scores = logits_NE.to(every_NE.dtype) if score == "softmax_topk" else every_NE + bias_E.to(every_NE.dtype)
    return _Heard(
        op="day0::moe_router", scores=scores, chosen=chosen.detach().cpu(), put=put, groups=(groups, topk_groups)
    )


def _all_weights(logits_NE: torch.Tensor, bias_E: torch.Tensor, score: str) -> torch.Tensor:
    """Return the weight of every expert before it is normalised and scaled, [N, E], by the operator's own reference."""
    experts, normalise = logits_NE.shape[-1], score == "softmax_topk"
    weight_NE, order_NE = moe_router.reference(logits_NE, bias_E, experts, 1.0, 1, 1, score, normalise)
    return torch.zeros_like(weight_NE).scatter(-1, order_NE, weight_NE)


_HEARD: dict[str, Callable[..., _Heard]] = {
    "aten::topk": _topk,
    "day0::topk_tokens": _topk_tokens,
    "day0::moe_router": _moe_router,
}
"""What chooses, by the name of its overload."""
