"""From what every rank found to a verdict over all of them: what they must agree on, and who does not."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from day0.analyzers.canary.gates import Figure, judge_gates
from day0.analyzers.ranks.setting import Facts, RanksSetting
from day0.playbook import Gate
from day0.records import RankCollective, RankResult, RanksRun

__all__ = ["GATES", "METRICS", "judge_run"]

GATES = (
    Gate(metric="ranks_lost", rule="==", limit=0),
    Gate(metric="collectives_wrong", rule="==", limit=0),
    Gate(metric="choice_disagreements", rule="==", limit=0),
    Gate(metric="choices_wrong", rule="==", limit=0),
    Gate(metric="diverged_ranks", rule="==", limit=0),
    Gate(metric="logits_wrong", rule="==", limit=0),
    Gate(metric="token_disagreements", rule="==", limit=0),
    Gate(metric="unexplained_tokens", rule="==", limit=0),
    Gate(metric="weights_over_fit", rule="<=", limit=1.1),
    Gate(metric="weights_over_fit", rule=">=", limit=0.9),
    Gate(metric="memory_over_plan", rule="<=", limit=1.1),
    Gate(metric="memory_over_plan", rule=">=", limit=0.9),
)
METRICS: dict[str, str] = {
    "ranks_lost": "ranks that died, hung or raised, and those that lost them",
    "collectives_wrong": "collectives, over all ranks, dtypes and sizes, with wrong or changing bits",
    "collectives_unsupported": "collectives that the backend does not have for a dtype",
    "choice_disagreements": "choices of tokens or experts that are not the same set on all ranks",
    "choices_wrong": "rows of choices that rounding does not explain, against float64",
    "diverged_ranks": "ranks with a module whose results are off by more than the dtype explains",
    "logits_wrong": "logits of prefill and of decode that are off, over all ranks",
    "token_disagreements": "ranks that generate other tokens than rank 0",
    "unexplained_tokens": "tokens unlike the whole model's that its margins do not explain",
    "weights_over_fit": "bytes of weights of the fullest rank over what `day0 fit` predicts",
    "memory_over_plan": "most bytes of a rank in prefill and decode over what a run of the cut model on meta predicts",
    "logits_same_bits": "1 where the logits have the same bits on all ranks",
    "planted_calls": "how often a planted fault was reached",
    "prefill_s": "seconds of a prefill on the slowest rank",
    "decode_s": "seconds of one token of decode on the slowest rank",
    "prefill_collective_share": "share of that time in collectives, waiting for other ranks included",
    "decode_collective_share": "the same for decode",
    "decode_collective_share_least": "the same on the rank that waits least",
    "weight_bytes": "bytes of weights of the fullest rank",
    "peak_bytes": "most bytes of the fullest rank in a prefill and a token of decode: weights, caches, activations",
    "predicted_bytes": "the prediction of them",
    "other_bytes": "bytes beside them that libraries hold, on the rank with most",
    "allocated_bytes": "the most that the device's allocator gave out, on the rank with most",
    "max_rss_bytes": "most host memory of a rank, the reference on rank 0 included",
}
SLOWEST = (
    "prefill_s",
    "decode_s",
    "prefill_collective_share",
    "decode_collective_share",
    "max_rss_bytes",
    "weight_bytes",
    "other_bytes",
    "allocated_bytes",
)
NOT_PREDICTED = Figure(None, why="nobody predicted it")
NO_GOLDEN = Figure(None, why="only times were asked for, and no golden was made")
MOST_REASONS = 12
SAME_RESULTS = ("all_reduce", "all_gather", "broadcast")
"""What gives every rank the same; the others give each its own part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """What the figures and the reasons are made of."""

    ends: tuple[RankResult, ...]
    facts: Mapping[int, Facts]
    collectives: tuple[str, ...]
    collectives_wrong: int
    choices: tuple[str, ...]


def judge_run(
    setting: RanksSetting,
    place: int,
    ends: Sequence[RankResult],
    folder: Path,
    fit_bytes: Figure,
    plan_bytes: Figure = NOT_PREDICTED,
) -> RanksRun:
    """Return the verdict of one scenario of a start, from the facts in its folder and how the ranks ended."""
    read = ((one.rank, _facts(folder, place, one.rank)) for one in ends)
    facts = {rank: one for rank, one in read if one is not None}
    wrong, collectives = _collectives(facts)
    found = _Found(
        ends=tuple(one if one.rank not in facts else facts[one.rank].result for one in ends),
        facts=facts,
        collectives=collectives,
        collectives_wrong=wrong,
        choices=tuple(_choices(folder, place, setting.ranks, facts)) if len(facts) == len(ends) else (),
    )
    figures = _figures(found, fit_bytes) | _memory(found, plan_bytes)
    gates = judge_gates(GATES, figures)
    numbers = {name: one for name, one in figures.items() if not isinstance(one, Figure)}
    numbers |= {name: one.value for name, one in figures.items() if isinstance(one, Figure) and one.value is not None}
    failed = tuple(gate.reason for gate in gates if not gate.passed)
    return RanksRun(
        ranks=setting.ranks,
        whole_experts=setting.whole_experts,
        planted=setting.scenarios[place],
        status="fail" if failed else "pass",
        reasons=_most(_reasons(found), failed),
        gates=gates,
        metrics=dict(sorted(numbers.items())),
        plan=facts[0].plan if 0 in facts else {},
        results=found.ends,
    )


def _most(reasons: Iterator[str], failed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first reasons of a run that failed; the gates stand for what has no line of its own."""
    said = (*reasons, *(one for one in failed if one.startswith(("weights", "memory")))) or failed
    if not failed:
        return ()
    more = (f"and {len(said) - MOST_REASONS} more",) if len(said) > MOST_REASONS else ()
    return (*said[:MOST_REASONS], *more)


def _facts(folder: Path, place: int, rank: int) -> Facts | None:
    try:
        return Facts.model_validate_json((folder / f"facts-{place}-{rank}.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def _figures(found: _Found, fit_bytes: Figure) -> dict[str, float | Figure]:
    lost = [one for one in found.ends if one.status != "done"]
    results = [one.result for one in found.facts.values()]
    figures: dict[str, float | Figure] = {"ranks_lost": float(len(lost))}
    if lost:
        why = f"rank {lost[0].rank} was lost"
        return figures | {name: Figure(None, why=why) for name in METRICS if name != "ranks_lost"}
    first = results[0]
    hashes = {tuple(sorted(one.logits.items())) for one in found.facts.values()}
    figures |= {
        "collectives_wrong": float(found.collectives_wrong),
        "collectives_unsupported": float(sum(c.status == "unsupported" for one in results for c in one.collectives)),
        "choice_disagreements": float(len(found.choices)),
        "choices_wrong": _sum(results, "choices_wrong"),
        "diverged_ranks": _diverged(results),
        "logits_wrong": _logits_wrong(results),
        "token_disagreements": float(sum(one.tokens != first.tokens for one in results)),
        "unexplained_tokens": _sum(results, "unexplained_tokens"),
        "logits_same_bits": float(len(hashes) == 1),
        "planted_calls": float(sum(one.planted_calls for one in found.facts.values())),
    }
    figures |= {name: max(one.metrics[name] for one in results) for name in SLOWEST if name in first.metrics}
    if "decode_collective_share" in first.metrics:
        # Of the rank that comes last, whose collectives hold no waiting for others.
        figures["decode_collective_share_least"] = min(one.metrics["decode_collective_share"] for one in results)
    figures["weights_over_fit"] = _over(max(one.metrics["weight_bytes"] for one in results), fit_bytes)
    return figures


def _memory(found: _Found, predicted: Figure) -> dict[str, float | Figure]:
    """Hold the fullest rank's measured bytes against the prediction; nothing where a rank was lost."""
    results = [one.result for one in found.facts.values()]
    if any(one.status != "done" for one in found.ends):
        return {}
    figures: dict[str, float | Figure] = {"predicted_bytes": predicted}
    if any("step_bytes" not in one.metrics for one in results):
        planted = any(one.planted_calls for one in found.facts.values())
        why = "with a planted fault it is not measured" if planted else "the device does not count what is allocated"
        return figures | {"memory_over_plan": Figure(None, why=f"memory: {why}")}
    peak = max(one.metrics["weight_bytes"] + one.metrics["step_bytes"] for one in results)
    return figures | {"peak_bytes": peak, "memory_over_plan": _over(peak, predicted)}


def _diverged(results: Sequence[RankResult]) -> float | Figure:
    if any("diverges_at" not in one.metrics for one in results):
        return NO_GOLDEN
    return float(sum(bool(one.first_divergent) for one in results))


def _sum(results: Sequence[RankResult], name: str) -> float | Figure:
    if any(name not in one.metrics for one in results):
        return NO_GOLDEN
    return sum(one.metrics[name] for one in results)


def _logits_wrong(results: Sequence[RankResult]) -> float | Figure:
    if any("prefill_wrong" not in one.metrics for one in results):
        return NO_GOLDEN
    wrong = sum(one.metrics[f"{phase}_wrong"] for one in results for phase in ("prefill", "decode"))
    unknown = [one for one in results if one.metrics["prefill_not_comparable"] or one.metrics["decode_not_comparable"]]
    if unknown and not wrong:
        why = f"rank {unknown[0].rank} chose otherwise than could be followed, or the yardstick judges nothing"
        return Figure(None, why=why)
    return wrong


def _over(size: float, fit: Figure) -> Figure:
    if fit.value is None:
        return Figure(None, why=fit.why)
    return Figure(size / fit.value)


# ----------------------------------------------------------------------------------------------- reasons


def _reasons(found: _Found) -> Iterator[str]:
    """Say what is wrong, from what other things follow from to what follows."""
    guilty = [one for one in found.ends if one.status in ("died", "hung", "raised")]
    for one in guilty:
        yield f"rank {one.rank} {one.status}: {one.reason}; it was at: {one.phase}"
    if guilty:
        return
    yield from found.collectives
    if found.choices:
        more = len(found.choices) - 1
        yield found.choices[0] + (f"; {more} later choices differ too" if more else "")
    yield from _wrong_choices(found)
    yield from _divergences(found.ends)
    for one in found.ends:
        for phase in ("prefill", "decode"):
            if one.metrics.get(f"{phase}_wrong"):
                error, limit = one.metrics[f"{phase}_error"], one.metrics[f"{phase}_limit"]
                yield f"rank {one.rank}: the logits of {phase} are {error:.3g} off, above {limit:.3g}"
    for one in found.ends:
        if one.tokens != found.ends[0].tokens:
            yield f"rank {one.rank} generates {list(one.tokens)}, and rank 0 {list(found.ends[0].tokens)}"


def _wrong_choices(found: _Found) -> Iterator[str]:
    for rank, one in sorted(found.facts.items()):
        for place, rows in list(one.wrong_choices.items())[:1]:
            module, _, number = place.rpartition("|")
            more = f", and so do {len(one.wrong_choices) - 1} later choices" if len(one.wrong_choices) > 1 else ""
            yield f"rank {rank}: {rows} in {module}, call {int(number) + 1}, differ by more than rounding explains{more}"


def _divergences(ends: Sequence[RankResult]) -> Iterator[str]:
    """Say where ranks begin to differ from the golden, the earliest first: what is later may follow from it."""
    off = sorted((one for one in ends if one.first_divergent), key=lambda one: one.metrics["diverges_at"])
    for one in off:
        when = "first" if one.metrics["diverges_at"] == off[0].metrics["diverges_at"] else "later,"
        yield f"rank {one.rank} diverges {when} at {one.first_divergent}: {one.divergence}"


def _collectives(facts: Mapping[int, Facts]) -> tuple[int, tuple[str, ...]]:
    """Return how many collectives are wrong over all ranks, and one line for each kind of mistake."""
    said: dict[tuple[str, str], list[tuple[int, RankCollective]]] = defaultdict(list)
    for rank, one in sorted(facts.items()):
        for call in one.result.collectives:
            if call.status == "fail":
                # Errors that are merely too large are one mistake, whatever their numbers.
                named = "the sum is off" if call.reason.startswith("relative error") else call.reason
                said[call.kind, named].append((rank, call))
    for rank, call in _unlike(facts):
        said[call.kind, f"rank {rank} gets other bits than rank 0"].append((rank, call))
    return sum(map(len, said.values())), tuple(_collective_line(*item) for item in said.items())


def _collective_line(what: tuple[str, str], calls: list[tuple[int, RankCollective]]) -> str:
    kind, reason = what
    first = calls[0][1]
    ranks = ", ".join(str(rank) for rank in sorted({rank for rank, _ in calls}))
    detail = f": {first.reason}" if first.reason.startswith("relative error") and "off" in reason else ""
    return f"{kind}: {reason} (seen by rank {ranks}, {len(calls)} times, first with {first.dtype} x {first.elements:,}{detail})"


def _unlike(facts: Mapping[int, Facts]) -> Iterator[tuple[int, RankCollective]]:
    if 0 not in facts:
        return
    for rank, one in sorted(facts.items()):
        for mine, first in zip(one.result.collectives, facts[0].result.collectives, strict=True):
            if mine.kind in SAME_RESULTS and mine.digest != first.digest:
                yield rank, mine


def _choices(folder: Path, place: int, ranks: int, facts: Mapping[int, Facts]) -> Iterator[str]:
    """Say of every choice that is not the same set on all ranks which rank is alone with its own."""
    made = [_read_choices(folder / f"choices-{place}-{rank}.safetensors") for rank in range(ranks)]
    odd = -1
    for name in made[0]:
        sets = [one[name].sort(dim=-1).values if name in one else None for one in made]
        rows = max(_other_rows(sets[0], one) for one in sets)
        if rows:
            _, module, number = name.split("|")
            # Who is wrong at the first of them is at fault; the rest may follow from it.
            odd = odd if odd >= 0 else _odd_one(sets, f"{module}|{number}", facts)
            yield (
                f"rank {odd} chooses other tokens or experts than the others in {module}, "
                f"call {int(number) + 1}, {rows} rows"
            )


def _read_choices(path: Path) -> dict[str, torch.Tensor]:
    """Read choices in the order in which they were made."""
    return dict(sorted(load_file(path).items(), key=lambda item: int(item[0].partition("|")[0])))


def _other_rows(first: torch.Tensor | None, mine: torch.Tensor | None) -> int:
    if first is None or mine is None or first.shape != mine.shape:
        return 1
    return int((first != mine).any(dim=-1).sum())


def _odd_one(sets: Sequence[torch.Tensor | None], place: str, facts: Mapping[int, Facts]) -> int:
    """Name the rank whose choice the fewest share; of those alone, the one that the golden contradicts there."""
    keys = [repr(one.tolist()) if one is not None else "" for one in sets]
    counts = Counter(keys)
    alone = [rank for rank, key in enumerate(keys) if counts[key] == min(counts.values())]
    contradicted = [rank for rank in alone if place in facts[rank].wrong_choices]
    return contradicted[0] if contradicted else alone[-1]
