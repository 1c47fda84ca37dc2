"""What one rank runs of the model: cut by its own plan, followed module by module, generating freely, and timed.

Shape suffixes: B batch, S tokens, N new tokens, V vocabulary.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from day0.analyzers.modules.choices import Choice, Choices, Place
from day0.analyzers.modules.compare import contained
from day0.analyzers.modules.measure import Measure, measure
from day0.analyzers.modules.passes import Pass
from day0.analyzers.modules.places import on_device
from day0.analyzers.modules.record import Recording, record_pass
from day0.analyzers.parallel import Cut
from day0.analyzers.parallel_plan import wild
from day0.analyzers.ranks.align import parts_of_rank
from day0.analyzers.ranks.collective_calls import CollectiveWatch
from day0.analyzers.ranks.collectives import bits_of
from day0.analyzers.ranks.reference import Reference
from day0.devices.open import memory_allocated, synchronize
from day0.models.driver import greedy, step
from day0.models.spec import decoder_layers
from day0.records import ModuleError, ModuleResult

__all__ = ["Followed", "Generated", "Rank", "follow", "generate", "time_steps"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """One rank with its part of the model."""

    number: int
    size: int
    device: torch.device
    model: nn.Module
    cut: Cut | None
    """None where there is one rank, which holds all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Followed:
    """One pass with the choices of the golden run, module by module."""

    metrics: dict[str, float]
    logits: dict[str, str]
    """Hash of the bits of the logits, by phase."""
    first_divergent: str
    divergence: str
    wrong_choices: dict[str, str]
    """Rows that were chosen otherwise than rounding explains, by module and number of its choice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Generated:
    """A greedy generation with choices of the rank's own."""

    tokens: tuple[int, ...]
    unexplained: int | None
    """None where there is nothing to hold them against."""
    choices: dict[Place, Choice]


def follow(rank: Rank, calls: Pass, reference: Reference) -> Followed:
    """Run one pass on this rank and hold every module's results against the part of the golden's that is its own."""
    with on_device(rank.model, reference.golden_choices, reference.same_choices) as heard:
        got = record_pass(calls, rank.model, rank.device)
    metrics: dict[str, float] = {}
    logits: dict[str, str] = {}
    for call in calls:
        key = (call.name, "", 0)
        mine = got.calls[key].results[0]
        found = measure([mine], reference.same[key][:1], reference.golden[key][:1], lost=heard.lost)
        metrics |= _logit_metrics(call.name, found)
        logits[call.name] = bits_of(mine)
    modules = contained(_modules(rank, got, reference, lost=heard.lost), _whole(rank.model))
    failed = [number for number, one in enumerate(modules) if one.cumulative.status == "fail"]
    first = modules[failed[0]] if failed else None
    metrics["diverges_at"] = float(failed[0]) if failed else float(len(modules))
    metrics["modules"] = float(len(modules))
    metrics["modules_not_comparable"] = float(sum(one.cumulative.status == "not_comparable" for one in modules))
    metrics["choices_moved"] = float(sum(one.explained for one in heard.moved))
    metrics["choices_wrong"] = float(sum(one.wrong for one in heard.moved))
    return Followed(
        metrics=metrics,
        logits=logits,
        first_divergent=f"{first.module or '(model)'} ({first.class_name}) in {first.phase}" if first else "",
        divergence=first.cumulative.reason if first else "",
        wrong_choices={
            f"{one.place[0]}|{one.place[1]}": f"{one.wrong} of {one.rows} rows" for one in heard.moved if one.wrong
        },
    )


def _logit_metrics(phase: str, found: Measure) -> dict[str, float]:
    return {
        f"{phase}_error": found.error,
        f"{phase}_yardstick": found.yardstick,
        f"{phase}_limit": found.limit,
        f"{phase}_wrong": float(found.status == "fail"),
        f"{phase}_not_comparable": float(found.status == "not_comparable"),
    }


def _modules(rank: Rank, got: Recording, reference: Reference, *, lost: bool) -> list[ModuleResult]:
    rows = []
    for key, right in reference.golden.items():
        found = _module(rank, got, reference, key, right, lost=lost)
        error = ModuleError(
            status=found.status,
            rule=found.rule,
            reason=found.reason,
            error=found.error,
            yardstick=found.yardstick,
            limit=found.limit,
        )
        rows.append(
            ModuleResult(
                phase=key[0],
                module=key[1],
                class_name=reference.classes[key],
                call=key[2],
                fresh=ModuleError(status="skipped"),
                cumulative=error,
            )
        )
    return rows


def _module(
    rank: Rank,
    got: Recording,
    reference: Reference,
    key: tuple[str, str, int],
    right: list[torch.Tensor],
    *,
    lost: bool,
) -> Measure:
    mine, same = got.calls.get(key), reference.same.get(key)
    if mine is None or same is None:
        return Measure(status="not_comparable", rule="path", reason="it is not called on both sides")
    style = rank.cut.info.plan.get(wild(key[1]), "") if rank.cut is not None else ""
    packed = style.startswith("packed")
    parts = [parts_of_rank(mine.results, one, rank.number, rank.size, packed=packed) for one in (same, right)]
    if parts[0] is None or parts[1] is None:
        shapes = [list(one.shape) for one in mine.results[:1]]
        return Measure(status="not_comparable", rule="shape", reason=f"{shapes} is no part of the whole result")
    return measure(mine.results, parts[0], parts[1], lost=lost)


def _whole(model: nn.Module) -> frozenset[str]:
    """Return the paths of modules that hold several decoder layers: their limits are wider than those of one."""
    layers = list(decoder_layers(model))
    parts = layers[0].split(".")[:-1] if len(layers) > 1 else []
    return frozenset({"", *(".".join(parts[:count]) for count in range(len(parts) + 1))})


def generate(rank: Rank, prompt_BS: torch.Tensor, new_tokens: int, reference: Reference | None) -> Generated:
    """Generate greedily; a token unlike the reference's is explained where its two best logits lie that near."""
    with Choices(rank.model) as heard:
        got_BN, logits_BNV = greedy(rank.model, prompt_BS.to(rank.device), new_tokens)
    row = got_BN[0].tolist()
    if reference is None:
        return Generated(tokens=tuple(row), unexplained=None, choices=dict(heard.made))
    expected = reference.tokens_BN[0].tolist()
    place = next((number for number, token in enumerate(row) if token != expected[number]), None)
    unexplained = 0
    if place is not None:
        right_V, mine_V = reference.token_logits_BNV[0, place], logits_BNV[0, place]
        best_2 = right_V.topk(2).values
        error = float((right_V - mine_V).abs().max())
        small = error < float(right_V.abs().max())
        unexplained = int(not (small and float(best_2[0] - best_2[1]) <= 2.0 * error))
    return Generated(tokens=tuple(row), unexplained=unexplained, choices=dict(heard.made))


def time_steps(rank: Rank, prompt_BS: torch.Tensor, repeats: int, watch: CollectiveWatch) -> dict[str, float]:
    """Return the median seconds of prefill and of one token of decode, and which share of them collectives take.

    The share is measured in runs of its own, in which every collective is waited for.
    """
    ids_BS = prompt_BS.to(rank.device)
    next_B1 = ids_BS[:, -1:].contiguous()
    metrics: dict[str, float] = {}
    held = step(rank.model, ids_BS)

    def prefill() -> None:
        step(rank.model, ids_BS)

    def decode() -> None:
        nonlocal held
        held = step(rank.model, next_B1, held.cache)

    for name, run in (("prefill", prefill), ("decode", decode)):
        metrics[f"{name}_s"] = _median(run, rank.device, repeats)
        watch.reset()
        with watch:
            began = time.perf_counter()
            for _ in range(repeats):
                run()
            synchronize(rank.device)
            spent = time.perf_counter() - began
        metrics[f"{name}_collective_s"] = watch.seconds / repeats
        metrics[f"{name}_collective_share"] = watch.seconds / spent if spent else 0.0
        metrics[f"{name}_collectives"] = watch.calls / repeats
        metrics[f"{name}_sent_bytes"] = watch.bytes / repeats
    metrics["device_bytes"] = float(memory_allocated(rank.device))
    return metrics


def _median(run: Callable[[], None], device: torch.device, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        synchronize(device)
        began = time.perf_counter()
        run()
        synchronize(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times)
