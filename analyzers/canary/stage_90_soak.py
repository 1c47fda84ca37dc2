"""Sequences come and go for a while: nothing leaks, slows down or becomes wrong, and one failure stays one."""

from __future__ import annotations

from day0.analyzers.canary.context import CanaryContext, Measured
from day0.analyzers.modules.passes import plain_tokens
from day0.analyzers.soak import figures
from day0.analyzers.soak.loop import Soaked, soak
from day0.analyzers.soak.plan import SoakPlan

TITLE = "soak: sequences come and go"
GATES = figures.GATES
METRICS = figures.METRICS

LONGEST_PROMPT, LONGEST_ANSWER = 20, 6


def run(context: CanaryContext) -> Measured:
    """Soak for as long as the plan says, with prompts below and beyond the sparse top-k.

    Metrics: see `analyzers/soak/figures.py`. The failure names the first error, or the first sequence that went
    another way than alone.
    """
    model = context.on_device()
    why = plain_tokens(context.spec, model)
    if why:
        return Measured(metrics={}, unfit=why)
    top_k = context.spec.sparse_top_k or 0
    longest = max(LONGEST_PROMPT, 2 * top_k)
    room = (context.spec.max_positions or longest + LONGEST_ANSWER) - LONGEST_ANSWER
    plan = SoakPlan(seconds=context.soak_s, seed=context.seed, prompt_tokens=(1, max(1, min(longest, room))))
    seen = soak(model, context.device, context.spec.vocab_size, plan, lambda _: None)
    return Measured(metrics=figures.figures_of(seen), evidence=_named(seen))


def _named(seen: Soaked) -> str:
    if seen.errors:
        return seen.errors[0]
    if seen.wrong:
        return f"token {seen.wrong[0].token + 1} of a sequence: {seen.wrong[0].reason}"
    return "; ".join(seen.drill_failures[:1])
