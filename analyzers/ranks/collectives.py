"""Collectives checked like operators: against the sum in float64, repeated, and with the same bits on every rank.

Shape suffixes: N what one rank gives, W ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from day0.analyzers.modules.measure import Measure, measure
from day0.records import RankCollective
from day0.reference_ops.signatures import dtype_name

__all__ = ["KINDS", "bits_of", "check_collectives", "explain_sum"]

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64)
SIZES = (1, 1031, 1 << 16)
"""Elements for each rank: one, a number that nothing divides, and more than any buffer of small messages."""
UNSUPPORTED = ("not supported", "unsupported", "not implemented", "does not support", "Invalid scalar type")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """Who talks."""

    rank: int
    size: int
    device: torch.device


def check_collectives(device: torch.device, repeats: int) -> tuple[RankCollective, ...]:
    """Run every collective in every dtype and size `repeats` times on this rank, with the others.

    A backend that does not have one for a dtype is no failure, and is said. Raises what a broken group raises.
    """
    ranks = Ranks(rank=dist.get_rank(), size=dist.get_world_size(), device=device)
    return tuple(_check(ranks, kind, dtype, size, repeats) for kind in KINDS for dtype in DTYPES for size in SIZES)


def _check(ranks: Ranks, kind: str, dtype: torch.dtype, size: int, repeats: int) -> RankCollective:
    count = size * ranks.size if kind in ("reduce_scatter", "all_to_all") else size
    given = [_given(rank, dtype, count) for rank in range(ranks.size)]
    named = {"kind": kind, "dtype": dtype_name(dtype), "elements": count}
    try:
        results = [_RUN[kind](ranks, given[ranks.rank].to(ranks.device, copy=True)).cpu() for _ in range(repeats)]
    except RuntimeError as error:
        text = str(error).splitlines()[0]
        if not any(words in text for words in UNSUPPORTED):
            raise
        return RankCollective(**named, status="unsupported", reason=text[:200])
    found = _judged(ranks, kind, results[0], given)
    differ = sum(bits_of(one) != bits_of(results[0]) for one in results)
    reason = found.reason or (f"{differ} of {repeats} repeats gave other bits" if differ else "")
    return RankCollective(
        **named,
        status="fail" if reason else "pass",
        reason=reason,
        error=found.error,
        yardstick=found.yardstick,
        limit=found.limit,
        digest=bits_of(results[0]),
    )


def _given(rank: int, dtype: torch.dtype, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7919 * (rank + 1) + count)
    if not dtype.is_floating_point:
        return torch.randint(-1000, 1000, (count,), generator=generator, dtype=dtype)
    return torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)


def bits_of(tensor: torch.Tensor) -> str:
    """Return a hash of a tensor's bits."""
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(data.numpy().tobytes()).hexdigest()[:16]


# ------------------------------------------------------------------------------------------ running them


def _all_reduce(ranks: Ranks, given_N: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(given_N)
    return given_N


def _broadcast(ranks: Ranks, given_N: torch.Tensor) -> torch.Tensor:
    dist.broadcast(given_N, src=ranks.size - 1)
    return given_N


def _all_gather(ranks: Ranks, given_N: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(given_N) for _ in range(ranks.size)]
    dist.all_gather(parts, given_N)
    return torch.cat(parts)


def _reduce_scatter(ranks: Ranks, given_N: torch.Tensor) -> torch.Tensor:
    made = torch.empty_like(given_N[: given_N.numel() // ranks.size])
    # Renamed in torch 2.13; the old name warns.
    run = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    run(made, given_N)
    return made


def _all_to_all(ranks: Ranks, given_N: torch.Tensor) -> torch.Tensor:
    made = torch.empty_like(given_N)
    dist.all_to_all_single(made, given_N)
    return made


_RUN: dict[str, Callable[[Ranks, torch.Tensor], torch.Tensor]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "broadcast": _broadcast,
    "all_to_all": _all_to_all,
}


# ------------------------------------------------------------------------------------------ judging them


def _judged(ranks: Ranks, kind: str, got: torch.Tensor, given: list[torch.Tensor]) -> Measure:
    if kind in ("all_reduce", "reduce_scatter"):
        mine = [one if kind == "all_reduce" else one.chunk(ranks.size)[ranks.rank] for one in given]
        return _judged_sum(got, mine)
    chunks = [one.chunk(ranks.size)[ranks.rank] if kind == "all_to_all" else one for one in given]
    right = given[-1] if kind == "broadcast" else torch.cat(chunks)
    if got.shape == right.shape and bits_of(got) == bits_of(right):
        return Measure(status="pass")
    wrong = [
        rank for rank, part in enumerate(right.chunk(ranks.size)) if not torch.equal(got.chunk(ranks.size)[rank], part)
    ]
    where = "rank " + ", ".join(map(str, wrong)) if kind != "broadcast" else f"rank {ranks.size - 1}"
    return Measure(status="fail", rule="bits", reason=f"what came from {where} has other bits than what was given")


def _judged_sum(got: torch.Tensor, given: list[torch.Tensor]) -> Measure:
    found = _measured(got, given)
    if found.status == "pass":
        return found
    reason = explain_sum(got, given) or found.reason
    return Measure(
        status="fail", rule="sum", reason=reason, error=found.error, yardstick=found.yardstick, limit=found.limit
    )


def _measured(got: torch.Tensor, given: list[torch.Tensor]) -> Measure:
    """Hold a sum against that in float64; the yardstick is the sum in the dtype itself, rank after rank."""
    wide = torch.float64 if got.is_floating_point() else got.dtype
    same = given[0].clone()
    for one in given[1:]:
        same = same + one
    golden = torch.stack([one.to(wide) for one in given]).sum(dim=0)
    return measure([got], [same], [golden])


def explain_sum(got: torch.Tensor, given: list[torch.Tensor]) -> str:
    """Say which wrong sum a result is, or return an empty text. `given` are the tensors [N] of all ranks."""
    for words, parts in _wrong_sums(given):
        if _measured(got, parts).status == "pass":
            return words
    return ""


def _wrong_sums(given: list[torch.Tensor]) -> Iterator[tuple[str, list[torch.Tensor]]]:
    for rank in range(len(given)):
        if len(given) > 1:
            yield f"the contribution of rank {rank} is missing", given[:rank] + given[rank + 1 :]
        yield f"the contribution of rank {rank} is counted twice", [*given, given[rank]]
    if given[0].is_floating_point():
        yield f"it is the mean of {len(given)} ranks, not their sum", [one / len(given) for one in given]
