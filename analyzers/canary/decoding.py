"""Decoding on the device: with the golden's tokens one by one, or by itself; and what each token takes.

Shape suffixes: B batch, S positions, N new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from day0.analyzers.canary.context import CanaryContext
from day0.analyzers.canary.gates import Figure
from day0.analyzers.canary.operators import clock_of
from day0.analyzers.canary.quiet import Control, token_variation
from day0.analyzers.canary.reference import history_of, told_history
from day0.analyzers.canary.spread import bootstrap
from day0.analyzers.modules.logits import GREEDY, SAMPLED, divergence, judge_logits
from day0.analyzers.modules.measure import RATIO, ROW_RATIO, floor_of
from day0.analyzers.modules.passes import token_calls
from day0.analyzers.modules.places import Logits, on_device
from day0.devices.open import device_counts
from day0.models.driver import StepOutput, step
from day0.records.modules import LogitsResult

__all__ = ["Generated", "TokensTold", "clocked", "decode_told", "generate"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Generated:
    """Tokens [B, N] and the logits [B, N, V] they were taken from, and what each decoded token took."""

    tokens_BN: torch.Tensor
    logits_BNV: torch.Tensor
    seconds: list[float]
    control: list[float]
    """What an equal amount of work took, made again after each token; empty where nobody else can be at work."""
    syncs: float | None
    """Waits of the host in the decoded tokens; None where nobody counts."""
    cache: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class TokensTold:
    """Decoding with the golden's tokens, judged."""

    figures: dict[str, float | Figure]
    lost: bool
    """Whether the device chose by other operators than the golden, so that nothing could be followed."""
    run: Generated


def decode_told(context: CanaryContext, prompt_BS: torch.Tensor) -> TokensTold:
    """Prefill a prompt [1, S] twice and decode the golden's greedy and sampled tokens, one by one."""
    history = history_of(context, prompt_BS, context.new_tokens)
    calls = token_calls(history.ids_BS[:, :-1], context.new_tokens - 1)
    right = told_history(context, history, calls)
    model = context.on_device()
    with on_device(model, right.choices, right.noise) as heard:

        def advance(number: int, before: StepOutput | None) -> StepOutput:
            output: StepOutput = calls[number].run(model, context.device, before)
            return output

        rows, run = _steps(context, len(calls), advance)
    got_BSV = torch.cat(rows, dim=1)
    logits = Logits(golden=right.golden_BSV, same=right.same_BSV, device=got_BSV, lost=heard.lost)
    judged = [judge_logits(history, row, logits) for row in (GREEDY, SAMPLED)]
    return TokensTold(figures=_figures(judged, logits, context.new_tokens), lost=heard.lost, run=run)


def generate(context: CanaryContext, ids_BS: torch.Tensor) -> Generated:
    """Let the device generate greedily from a prompt by itself."""
    model = context.on_device()

    def advance(number: int, before: StepOutput | None) -> StepOutput:
        if before is None:
            return step(model, ids_BS.to(context.device))
        # The choice is made on the CPU so that a device without argmax can generate too.
        token_B1 = before.logits_BSV[:, -1].float().cpu().argmax(dim=-1, keepdim=True)
        return step(model, token_B1.to(context.device), before.cache, earlier=before)

    return _steps(context, context.new_tokens, advance)[1]


def _steps(
    context: CanaryContext, count: int, advance: Callable[[int, StepOutput | None], StepOutput]
) -> tuple[list[torch.Tensor], Generated]:
    """Make the calls one after the other; return the logits of each and the tokens that they would choose."""
    clock = clock_of(context.device)
    rows: list[torch.Tensor] = []
    seconds: list[float] = []
    control = Control(device=context.device)
    before: StepOutput | None = None
    waits = None
    for number in range(count):
        began = clock.now()
        before = advance(number, before)
        if number:
            seconds.append(clock.now() - began)
            control.repeat(seconds[0])
        else:
            waits = device_counts(context.device).get("sim_host_syncs")
        rows.append(before.logits_BSV.detach().cpu())
    syncs = None if waits is None else device_counts(context.device)["sim_host_syncs"] - waits
    last_BNV = torch.stack([row[:, -1].float() for row in rows], dim=1)
    cache = before.cache if before is not None else None
    chosen_BN = last_BNV.argmax(dim=-1)
    run = Generated(
        tokens_BN=chosen_BN, logits_BNV=last_BNV, seconds=seconds, control=control.seconds, syncs=syncs, cache=cache
    )
    return rows, run


def _figures(judged: list[LogitsResult], logits: Logits, new_tokens: int) -> dict[str, float | Figure]:
    greedy, sampled = judged
    return {
        "tokens": float(new_tokens),
        "equal_tokens": float(new_tokens if greedy.first_divergent is None else greedy.first_divergent),
        "unexplained_tokens": float(_unexplained(greedy)),
        "unexplained_draws": float(_unexplained(sampled)),
        "kl_mean": Figure((greedy.kl_mean + sampled.kl_mean) / 2.0, unit="nats"),
        **_kl_ratios(logits),
        "top_5_overlap": (greedy.overlap + sampled.overlap) / 2.0,
    }


def _unexplained(one: LogitsResult) -> bool:
    return one.first_divergent is not None and not one.margin <= one.explained


def _kl_ratios(logits: Logits) -> dict[str, float | Figure]:
    """Return mean and worst divergence, each over the largest one that the dtype explains.

    The mean has an interval over positions. The worst has none: one position far off is no matter of chance.
    """
    golden_NV, same_NV, device_NV = (one.flatten(0, 1) for one in (logits.golden, logits.same, logits.device))
    floor = 0.5 * (floor_of(same_NV.dtype) * float(golden_NV.to(torch.float64).square().mean().sqrt())) ** 2
    pairs_N2 = torch.stack((divergence(golden_NV, device_NV), divergence(golden_NV, same_NV)), dim=-1)

    def ratio(drawn: torch.Tensor) -> torch.Tensor:
        mean_2 = drawn.mean(dim=1)
        return mean_2[:, 0] / (RATIO**2 * mean_2[:, 1]).clamp(min=floor)

    worst, worst_cpu = (float(one) for one in pairs_N2.amax(dim=0))
    limit = max(ROW_RATIO**2 * worst_cpu, 4.0 * floor)
    return {"kl_ratio": bootstrap(pairs_N2, ratio), "kl_worst_ratio": worst / limit}


def clocked(context: CanaryContext, run: Generated) -> dict[str, float | Figure]:
    """Return tokens per second, how much the time of a token varies, and waits of the host per token."""
    names = ("tokens_per_second", "decode_latency_variation")
    if context.device.type == "cpu":
        why = "the host's clock also times the other programs of this machine"
        figures: dict[str, float | Figure] = {name: Figure(None, why=why) for name in names}
    else:
        total = sum(run.seconds)
        rate = len(run.seconds) * run.tokens_BN.shape[0] / total if total > 0.0 else None
        figures = {
            names[0]: Figure(rate, samples=len(run.seconds), unit="1/s", why="" if rate else "no time passes"),
            names[1]: token_variation(run.seconds, run.control),
        }
    waits = run.syncs / len(run.seconds) if run.syncs is not None and run.seconds else None
    figures["host_syncs_per_token"] = Figure(waits, why="" if waits is not None else "nobody counts them here")
    return figures
