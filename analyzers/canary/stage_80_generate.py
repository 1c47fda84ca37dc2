"""Greedy generation: the same tokens as the reference, or a difference that the dtype explains."""

from __future__ import annotations

from day0.analyzers.canary.context import CanaryContext, Measured
from day0.models.driver import greedy
from day0.models.workload import token_ids
from day0.playbook import Gate
from day0.registry.dispatch import suspended

TITLE = "generate, greedy"
WHOLE = True
GATES = (Gate(metric="unexplained_tokens", rule="==", limit=0, inconclusive="fail"),)
METRICS = {
    "tokens": "new tokens",
    "equal_tokens": "new tokens before the first that differs",
    "unexplained_tokens": "a different token that rounding does not explain",
    "never_ran": "entries of the lock that never ran",
    "fallbacks": "calls that the lock sent to the CPU so far",
}


def run(context: CanaryContext) -> Measured:
    """Generate greedily on the device and on the CPU, and compare up to the first different token.

    A different token is explained where the reference's own two best logits are closer than the error of the
    device's logits at that place.
    Metrics: tokens, equal_tokens, unexplained_tokens, never_ran (entries of the lock), fallbacks.
    """
    ids_BS = token_ids(context.spec, 1, context.prompt_tokens, seed=3)
    with suspended():
        expected_BN, logits_BNV = greedy(context.reference(), ids_BS, context.new_tokens)
    got_BN, device_BNV = greedy(context.on_device(), ids_BS.to(context.device), context.new_tokens)
    differs = (expected_BN[0] != got_BN[0]).tolist()
    equal = differs.index(True) if True in differs else len(differs)
    unexplained = 0
    if equal < len(differs):
        best_2 = logits_BNV[0, equal].topk(2).values
        margin = float(best_2[0] - best_2[1])
        error = float((logits_BNV[0, equal] - device_BNV[0, equal]).abs().max())
        unexplained = int(not margin <= 2.0 * error) if error < float(logits_BNV[0, equal].abs().max()) else 1
    return Measured(
        metrics={
            "tokens": float(len(differs)),
            "equal_tokens": float(equal),
            "unexplained_tokens": float(unexplained),
            "never_ran": float(sum(1 for receipt in context.active.receipts() if not receipt.calls)),
            "fallbacks": float(context.active.fallbacks),
        }
    )
