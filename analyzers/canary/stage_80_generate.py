"""Generation, greedy and sampled: the same tokens and distributions as the reference, or what the dtype explains.

Shape suffixes: B batch, S positions, N new tokens, V vocabulary.
"""

from __future__ import annotations

import torch

from day0.analyzers.canary.answers import accuracy_figures
from day0.analyzers.canary.caches import cache_figures
from day0.analyzers.canary.context import CanaryContext, Measured
from day0.analyzers.canary.decoding import Generated, clocked, decode_told, generate
from day0.analyzers.canary.gates import Figure
from day0.analyzers.modules.passes import Pass, plain_tokens, token_calls
from day0.models.driver import greedy
from day0.models.workload import token_ids
from day0.playbook import Gate
from day0.registry.dispatch import suspended

TITLE = "generate, greedy and sampled"
WHOLE = True
GATES = (
    Gate(metric="unexplained_tokens", rule="==", limit=0, inconclusive="fail"),
    Gate(metric="unexplained_draws", rule="==", limit=0),
    Gate(metric="kl_ratio", rule="<=", limit=1.0),
    Gate(metric="kl_worst_ratio", rule="<=", limit=1.0),
    Gate(metric="accuracy_difference", rule=">=", limit=-0.05, inconclusive="pass"),
    Gate(metric="decode_latency_variation", rule="<=", limit=0.05, inconclusive="pass"),
    # What a call leaves behind for good would grow with every request; workspaces of libraries are smaller.
    Gate(metric="memory_growth_bytes", rule="<=", limit=16 << 20, inconclusive="pass"),
)
METRICS = {
    "tokens": "new tokens",
    "equal_tokens": "new tokens before the first that differs",
    "unexplained_tokens": "a different token that rounding does not explain",
    "unexplained_draws": "with the golden's history: a best or drawn token that rounding does not explain",
    "kl_mean": "mean divergence from the golden's distributions with the golden's history",
    "kl_ratio": "that divergence, relative to what the dtype itself explains",
    "kl_worst_ratio": "the same of the worst position",
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


LOOKED_AT = 3


def run(context: CanaryContext) -> Measured:
    """Give the device the tokens that the golden chose, greedily and by draws, one by one, and compare what it would choose.

    Another choice is explained where the golden's margin is below what rounding does to it. A model that takes more
    than token ids, or chooses experts by other operators than the golden, generates by itself, and is held against
    the CPU up to the first other token.
    """
    ids_BS = _ids(context)
    why_not = plain_tokens(context.spec, context.reference())
    decoded = None if why_not else decode_told(context, ids_BS)
    metrics: dict[str, float | Figure] = {}
    if decoded is None or decoded.lost:
        why = why_not or "choices were made by other operators than in the golden"
        metrics |= {
            name: Figure(None, why=why)
            for name in ("unexplained_draws", "kl_mean", "kl_ratio", "kl_worst_ratio", "top_5_overlap")
        }
        alone = generate(context, ids_BS)
        metrics |= _against_reference(context, ids_BS, alone)
    else:
        metrics |= decoded.figures
        alone = decoded.run if context.device.type in ("cpu", "sim") else generate(context, ids_BS)
    metrics |= clocked(context, alone)
    metrics |= accuracy_figures(context)
    metrics |= cache_figures(context.on_device(), alone.cache)
    metrics["never_ran"] = float(sum(1 for receipt in context.active.receipts() if not receipt.calls))
    metrics["fallbacks"] = float(context.active.fallbacks)
    return Measured(metrics=metrics)


def look_at(context: CanaryContext) -> Pass:
    """Return the pass in which the first wrong module is looked for."""
    # Several tokens: what is stale in a cache shows from the second one on.
    more_BS = token_ids(context.spec, 1, LOOKED_AT, seed=9)
    return token_calls(torch.cat((_ids(context), more_BS), dim=1), LOOKED_AT)


def _ids(context: CanaryContext) -> torch.Tensor:
    return token_ids(context.spec, 1, context.prompt_tokens, seed=3)


def _against_reference(context: CanaryContext, ids_BS: torch.Tensor, alone: Generated) -> dict[str, float | Figure]:
    with suspended():
        expected_BN, logits_BNV = greedy(context.reference(), ids_BS, context.new_tokens)
    differs = (expected_BN[0] != alone.tokens_BN[0]).tolist()
    equal = differs.index(True) if True in differs else len(differs)
    unexplained = 0
    if equal < len(differs):
        mine_V, theirs_V = logits_BNV[0, equal], alone.logits_BNV[0, equal]
        best_2 = mine_V.topk(2).values
        margin, error = float(best_2[0] - best_2[1]), float((mine_V - theirs_V).abs().max())
        unexplained = int(not margin <= 2.0 * error) if error < float(mine_V.abs().max()) else 1
    return {"tokens": float(len(differs)), "equal_tokens": float(equal), "unexplained_tokens": float(unexplained)}
