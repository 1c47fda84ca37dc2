"""Generation, greedy and sampled: the same tokens and distributions as the reference, or what the dtype explains.

Shape suffixes: B batch, S positions, N new tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from day0.analyzers.canary.answers import accuracy_figures
from day0.analyzers.canary.caches import cache_figures
from day0.analyzers.canary.context import CanaryContext, Measured
from day0.analyzers.canary.gates import Figure
from day0.analyzers.canary.operators import clock_of
from day0.analyzers.canary.reference import history_of, run_told, told
from day0.analyzers.canary.spread import bootstrap, variation
from day0.analyzers.modules.logits import GREEDY, SAMPLED, divergence, judge_logits
from day0.analyzers.modules.measure import RATIO, floor_of
from day0.analyzers.modules.passes import Pass, plain_tokens, token_calls
from day0.analyzers.modules.places import Logits
from day0.analyzers.modules.ways import batched
from day0.devices.open import device_counts
from day0.models.driver import greedy, step
from day0.models.workload import token_ids
from day0.playbook import Gate
from day0.registry.dispatch import suspended

TITLE = "generate, greedy and sampled"
WHOLE = True
GATES = (
    Gate(metric="unexplained_tokens", rule="==", limit=0, inconclusive="fail"),
    Gate(metric="unexplained_draws", rule="==", limit=0),
    Gate(metric="kl_ratio", rule="<=", limit=1.0),
    Gate(metric="accuracy_difference", rule=">=", limit=-0.05, inconclusive="pass"),
    Gate(metric="decode_latency_variation", rule="<=", limit=0.05, inconclusive="pass"),
)
METRICS = {
    "tokens": "new tokens",
    "equal_tokens": "new tokens before the first that differs",
    "unexplained_tokens": "a different token that rounding does not explain",
    "unexplained_draws": "with the golden's history: a best or drawn token that rounding does not explain",
    "kl_mean": "mean divergence from the golden's distributions with the golden's history",
    "kl_ratio": "that divergence, relative to what the dtype itself explains",
    "top_5_overlap": "mean share of the golden's five best tokens among the device's",
    "accuracy": "share of right answers on the device",
    "accuracy_difference": "that share less the CPU's, for the same questions",
    "tokens_per_second": "tokens decoded per second by the device's clock",
    "decode_latency_variation": "standard deviation of the time of a decoded token over its mean",
    "host_syncs_per_token": "times the host waited for the device, per decoded token",
    "never_ran": "entries of the lock that never ran",
    "fallbacks": "calls that the lock sent to the CPU so far",
    "cache_hit_rate": "share of needed experts that lay in the expert cache",
    "cache_evictions": "experts that made room for others",
    "workspace_slots": "slots of the FP8 workspace",
    "workspace_bytes_converted": "bytes written into these slots",
    "kv_used_blocks": "pages of the cache in use after generation",
    "kv_wasted_share": "slots in these pages that hold no token",
}


def run(context: CanaryContext) -> Measured:
    """Generate greedily on the device and on the CPU, and compare up to the first different token.

    A different token is explained where the reference's own two best logits are closer than the error of the device's
    logits at that place. Then the device gets the tokens that the golden chose, greedily and by draws, and its
    distributions are compared.
    """
    ids_BS = _ids(context)
    with suspended():
        expected_BN, logits_BNV = greedy(context.reference(), ids_BS, context.new_tokens)
    decoded = _generate(context, ids_BS)
    metrics: dict[str, float | Figure] = _against_reference(expected_BN, logits_BNV, decoded)
    metrics |= _clocked(context, decoded)
    metrics |= _teacher_forced(context, ids_BS)
    metrics |= accuracy_figures(context)
    metrics |= cache_figures(context.on_device(), decoded.cache)
    metrics["never_ran"] = float(sum(1 for receipt in context.active.receipts() if not receipt.calls))
    metrics["fallbacks"] = float(context.active.fallbacks)
    return Measured(metrics=metrics)


def look_at(context: CanaryContext) -> Pass:
    """Return the pass in which the first wrong module is looked for."""
    ids_BS = _ids(context)
    more_BS = token_ids(context.spec, 1, 1, seed=9)
    return token_calls(torch.cat((ids_BS, more_BS), dim=1))


def _ids(context: CanaryContext) -> torch.Tensor:
    return token_ids(context.spec, 1, context.prompt_tokens, seed=3)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Decoded:
    """Tokens [B, N] and the logits [B, N, V] they were taken from, and what each decoded token took."""

    tokens_BN: torch.Tensor
    logits_BNV: torch.Tensor
    seconds: list[float]
    syncs: float | None
    cache: Any


def _generate(context: CanaryContext, ids_BS: torch.Tensor) -> _Decoded:
    model, clock = context.on_device(), clock_of(context.device)
    output = step(model, ids_BS.to(context.device))
    before = device_counts(context.device).get("sim_host_syncs")
    rows, tokens, seconds = [], [], []
    for number in range(context.new_tokens):
        row_BV = output.logits_BSV[:, -1].float().cpu()
        rows.append(row_BV)
        # The choice is made on the CPU so that a device without argmax can generate too.
        tokens.append(row_BV.argmax(dim=-1, keepdim=True))
        if number + 1 < context.new_tokens:
            began = clock.now()
            output = step(model, tokens[-1].to(context.device), output.cache)
            seconds.append(clock.now() - began)
    syncs = None if before is None else device_counts(context.device)["sim_host_syncs"] - before
    return _Decoded(
        tokens_BN=torch.cat(tokens, dim=1),
        logits_BNV=torch.stack(rows, dim=1),
        seconds=seconds,
        syncs=syncs,
        cache=output.cache,
    )


def _against_reference(
    expected_BN: torch.Tensor, logits_BNV: torch.Tensor, decoded: _Decoded
) -> dict[str, float | Figure]:
    differs = (expected_BN[0] != decoded.tokens_BN[0]).tolist()
    equal = differs.index(True) if True in differs else len(differs)
    unexplained = 0
    if equal < len(differs):
        mine_V, theirs_V = logits_BNV[0, equal], decoded.logits_BNV[0, equal]
        best_2 = mine_V.topk(2).values
        margin, error = float(best_2[0] - best_2[1]), float((mine_V - theirs_V).abs().max())
        unexplained = int(not margin <= 2.0 * error) if error < float(mine_V.abs().max()) else 1
    return {"tokens": float(len(differs)), "equal_tokens": float(equal), "unexplained_tokens": float(unexplained)}


def _clocked(context: CanaryContext, decoded: _Decoded) -> dict[str, float | Figure]:
    names = ("tokens_per_second", "decode_latency_variation")
    if context.device.type == "cpu":
        why = "the host's clock also times the other programs of this machine"
        figures: dict[str, float | Figure] = {name: Figure(None, why=why) for name in names}
    else:
        total = sum(decoded.seconds)
        rate = len(decoded.seconds) / total if total > 0.0 else None
        figures = {
            names[0]: Figure(rate, samples=len(decoded.seconds), unit="1/s", why="" if rate else "no time passes"),
            names[1]: variation(decoded.seconds),
        }
    waits = decoded.syncs / max(1, len(decoded.seconds)) if decoded.syncs is not None else None
    figures["host_syncs_per_token"] = Figure(waits, why="" if waits is not None else "nobody counts them here")
    return figures


def _teacher_forced(context: CanaryContext, prompt_BS: torch.Tensor) -> dict[str, float | Figure]:
    names = ("unexplained_draws", "kl_mean", "kl_ratio", "top_5_overlap")
    if why := plain_tokens(context.spec, context.reference()):
        return {name: Figure(None, why=why) for name in names}
    history = history_of(context, prompt_BS, context.new_tokens)
    ids_BS = history.ids_BS[:, :-1]
    calls = batched(ids_BS)
    logits, _ = run_told(context, calls, told(context, "teacher_forced", calls, ids_BS.tolist()))
    judged = [judge_logits(history, row, logits) for row in (GREEDY, SAMPLED)]
    lost = "choices were made by other operators than in the golden" if logits.lost else ""
    wrong = sum(one.first_divergent is not None and not one.margin <= one.explained for one in judged)
    return {
        "unexplained_draws": Figure(None if lost else float(wrong), why=lost),
        "kl_mean": Figure(sum(one.kl_mean for one in judged) / 2.0, unit="nats"),
        "kl_ratio": Figure(None, why=lost) if lost else _kl_ratio(logits),
        "top_5_overlap": sum(one.overlap for one in judged) / 2.0,
    }


def _kl_ratio(logits: Logits) -> Figure:
    """Return the mean divergence over the largest one that the dtype explains, as a figure over all positions."""
    golden_NV, same_NV, device_NV = (one.flatten(0, 1) for one in (logits.golden, logits.same, logits.device))
    floor = 0.5 * (floor_of(same_NV.dtype) * float(golden_NV.to(torch.float64).square().mean().sqrt())) ** 2
    pairs_N2 = torch.stack((divergence(golden_NV, device_NV), divergence(golden_NV, same_NV)), dim=-1)

    def ratio(drawn: torch.Tensor) -> torch.Tensor:
        mean_2 = drawn.mean(dim=1)
        return mean_2[:, 0] / (RATIO**2 * mean_2[:, 1]).clamp(min=floor)

    return bootstrap(pairs_N2, ratio)
