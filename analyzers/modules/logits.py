"""Logits under greedy and sampled decoding, all places with the history that the golden chose (teacher forcing).

Shape suffixes: B batch, S positions, V vocabulary, K best tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from day0.analyzers.modules.choices import Choice, Place
from day0.analyzers.modules.measure import RATIO, ROW_RATIO, floor_of
from day0.analyzers.modules.places import Logits, in_float64
from day0.models.driver import step
from day0.records.modules import LogitsResult

__all__ = ["GREEDY", "SAMPLED", "History", "choose_history", "divergence", "judge_logits"]

BEST = 5

GREEDY, SAMPLED = 0, 1
"""The two rows of a history."""


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """A prompt and what the golden went on with, [2, S]: greedily in row 0, and by draws from a seed in row 1."""

    seed: int
    ids_BS: torch.Tensor
    new_tokens: int
    draws: tuple[float, ...]
    """For each sampled token the number in [0, 1) that chose it in the order of the vocabulary."""
    logits_BSV: torch.Tensor
    """The golden's, at all positions but the last."""
    choices: dict[Place, Choice]
    """The golden's."""


def choose_history(golden: nn.Module, prompt_BS: torch.Tensor, new_tokens: int, seed: int) -> History:
    """Let the golden go on from a prompt [1, S], by its best token and by draws from a seed."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(new_tokens, generator=generator, dtype=torch.float64).tolist()
    ids_BS = prompt_BS.repeat(2, 1)
    with in_float64(golden) as heard:
        output = step(golden, ids_BS)
        rows = [output.logits_BSV]
        for number, draw in enumerate(draws):
            last_BV = output.logits_BSV[:, -1].to(torch.float64)
            next_B1 = torch.tensor([[int(last_BV[GREEDY].argmax())], [_drawn(last_BV[SAMPLED], draw)]])
            ids_BS = torch.cat((ids_BS, next_B1), dim=1)
            # The last token is not run: nothing comes after it.
            if number + 1 < new_tokens:
                output = step(golden, next_B1, output.cache, earlier=output)
                rows.append(output.logits_BSV)
    return History(
        seed=seed,
        ids_BS=ids_BS,
        new_tokens=new_tokens,
        draws=tuple(draws),
        logits_BSV=torch.cat(rows, dim=1),
        choices=heard.made,
    )


def judge_logits(history: History, row: int, logits: Logits) -> LogitsResult:
    """Hold the device's logits of one row of a history against the golden's and the CPU's in the same dtype.

    The divergence may be as much larger as its square root, the error, may be.
    """
    golden_SV, same_SV, device_SV = logits.golden[row], logits.same[row], logits.device[row]
    device = divergence(golden_SV, device_SV)
    same = divergence(golden_SV, same_SV)
    floor = 0.5 * (floor_of(same_SV.dtype) * float(golden_SV.to(torch.float64).square().mean().sqrt())) ** 2
    limit = max(RATIO**2 * float(same.mean()), floor)
    limit_worst = max(ROW_RATIO**2 * float(same.max()), 4.0 * floor)
    first = _first_divergent(history, row, golden_SV, same_SV, device_SV)
    reason = ""
    if not float(device.mean()) <= limit:
        reason = f"mean divergence {float(device.mean()):.3g} nats is above {limit:.3g}"
    elif not float(device.max()) <= limit_worst:
        reason = f"the worst position diverges by {float(device.max()):.3g} nats, above {limit_worst:.3g}"
    elif first is not None and not first.margin <= first.explained:
        reason = (
            f"new token {first.number} would be {first.got}, not {first.expected}: "
            f"{first.margin:.3g} apart, and rounding explains {first.explained:.3g}"
        )
    return LogitsResult(
        decoding="sampled" if row == SAMPLED else "greedy",
        seed=history.seed,
        prompt_tokens=history.ids_BS.shape[1] - history.new_tokens,
        new_tokens=history.new_tokens,
        status="pass" if not reason else "skipped" if logits.lost else "fail",
        reason=f"choices could not be followed: {reason}" if reason and logits.lost else reason,
        kl_mean=float(device.mean()),
        kl_max=float(device.max()),
        kl_mean_cpu=float(same.mean()),
        kl_max_cpu=float(same.max()),
        kl_limit=limit,
        overlap=_overlap(golden_SV, device_SV),
        overlap_cpu=_overlap(golden_SV, same_SV),
        first_divergent=first.number if first is not None else None,
        expected_token=first.expected if first is not None else -1,
        got_token=first.got if first is not None else -1,
        margin=first.margin if first is not None else 0.0,
        explained=first.explained if first is not None else 0.0,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Divergent:
    number: int
    expected: int
    got: int
    margin: float
    explained: float


def _first_divergent(
    history: History, row: int, golden_SV: torch.Tensor, same_SV: torch.Tensor, device_SV: torch.Tensor
) -> _Divergent | None:
    tokens = history.ids_BS.shape[1]
    for number in range(history.new_tokens):
        place = tokens - history.new_tokens + number - 1
        expected = int(history.ids_BS[row, place + 1])
        rows = [one[place].to(torch.float64) for one in (golden_SV, same_SV, device_SV)]
        found = _by_draw(rows, history.draws[number]) if row == SAMPLED else _by_best(rows)
        got, margin, off, size = found
        if got != expected:
            explained = 2.0 * (RATIO * off + floor_of(same_SV.dtype) * size)
            return _Divergent(number=number, expected=expected, got=got, margin=margin, explained=explained)
    return None


def _by_best(rows: list[torch.Tensor]) -> tuple[int, float, float, float]:
    gold_V, same_V, got_V = rows
    got = int(torch.where(torch.isnan(got_V), float("-inf"), got_V).argmax())
    margin = float(gold_V.max() - gold_V[got])
    return got, margin, float((same_V - gold_V).abs().max()), float(gold_V.abs().max())


def _by_draw(rows: list[torch.Tensor], draw: float) -> tuple[int, float, float, float]:
    """Return the token of one draw, and how far the draw lies from that token's share in the golden."""
    gold_V, same_V = (_cumulative(row) for row in rows[:2])
    got = _drawn(rows[2], draw)
    low, high = float(gold_V[got - 1]) if got else 0.0, float(gold_V[got])
    margin = max(low - draw, draw - high, 0.0)
    return got, margin, float((same_V - gold_V).abs().max()), 1.0


def _cumulative(logits_V: torch.Tensor) -> torch.Tensor:
    return torch.softmax(logits_V, dim=-1).cumsum(dim=-1)


def _drawn(logits_V: torch.Tensor, draw: float) -> int:
    found = int(torch.searchsorted(_cumulative(logits_V.to(torch.float64)), draw, right=True))
    return min(found, logits_V.shape[0] - 1)


def divergence(golden_SV: torch.Tensor, other_SV: torch.Tensor) -> torch.Tensor:
    """Return KL(golden, other) by position [S], in nats; at least 0, and infinite where it is not a number."""
    log_p, log_q = (torch.log_softmax(one.to(torch.float64), dim=-1) for one in (golden_SV, other_SV))
    terms = torch.where(log_p.exp() > 0, log_p.exp() * (log_p - log_q), 0.0)
    return terms.sum(dim=-1).nan_to_num(nan=float("inf")).clamp(min=0.0)


def _overlap(golden_SV: torch.Tensor, other_SV: torch.Tensor) -> float:
    best = min(BEST, golden_SV.shape[-1])
    mine_SK, theirs_SK = (one.to(torch.float64).topk(best, dim=-1).indices for one in (golden_SV, other_SV))
    shared = (mine_SK[..., :, None] == theirs_SK[..., None, :]).any(dim=-1)
    return float(shared.to(torch.float64).mean())
