"""Which phases to run, and the token ids for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from day0.errors import Day0Error
from day0.models.spec import ModelSpec
from day0.playbook import WorkloadPlan

__all__ = ["Phase", "plan_phases", "token_ids"]

SHORT_PROMPT = 64
IMAGE_PROMPT = 8
"""Text tokens around an image."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """One call: `tokens` new tokens with `context` tokens already in the cache."""

    name: str
    batch: int
    tokens: int
    context: int
    reason: str
    images: int = 0
    """Images in each sequence; their visual tokens come on top of `tokens`."""
    prepare: Callable[[nn.Module, str], Callable[[], object]] | None = None
    """Set for a model's own phase (`OwnPhase`); then there are no token ids, and `tokens` is 0."""


def plan_phases(spec: ModelSpec, plan: WorkloadPlan) -> tuple[Phase, ...]:
    """Return the phases of the workload, or the model's own where it names none.

    Sparse attention is dense while the context is shorter than its top-k, and experts take another path when one
    token comes at a time: so a model with a sparse top-k gets two long phases too.
    Raises Day0Error for a phase longer than the model's positions, and for one asked of a model with its own inputs.
    """
    if spec.phases:
        return _own_phases(spec, plan)
    if plan.phases:
        phases = tuple(
            Phase(name=name, batch=plan.batch, tokens=phase.tokens, context=phase.context, reason="asked for")
            for name, phase in plan.phases.items()
        )
    else:
        phases = _default_phases(spec, plan.batch)
    for phase in phases:
        length = phase.tokens + phase.context
        if spec.max_positions is not None and length > spec.max_positions:
            raise Day0Error(
                f"phase {phase.name}",
                f"{length} tokens are more than the {spec.max_positions} positions of {spec.class_name}",
                hint="give a shorter phase in the playbook's workload",
            )
    return phases


def _own_phases(spec: ModelSpec, plan: WorkloadPlan) -> tuple[Phase, ...]:
    if plan.phases or plan.batch != 1:
        names = ", ".join(phase.name for phase in spec.phases)
        asked = f"phase {next(iter(plan.phases))}" if plan.phases else f"batch {plan.batch}"
        what = f"{spec.source} brings its own inputs, for {names}; day0 does not know how to make others"
        raise Day0Error(asked, what, hint="leave out --phase and --batch; change the inputs in the source itself")
    return tuple(
        Phase(name=own.name, batch=1, tokens=0, context=0, reason=own.reason, prepare=own.prepare)
        for own in spec.phases
    )


def _default_phases(spec: ModelSpec, batch: int) -> tuple[Phase, ...]:
    top_k = spec.sparse_top_k
    short = SHORT_PROMPT if top_k is None else max(1, min(SHORT_PROMPT, top_k - 2))
    if spec.max_positions is not None:
        short = max(1, min(short, spec.max_positions - 1))
    phases = [
        Phase(name="prefill", batch=batch, tokens=short, context=0, reason="short prompt"),
        Phase(name="decode", batch=batch, tokens=1, context=short, reason="one token after the short prompt"),
    ]
    long = top_k + max(1, top_k // 2) if top_k is not None else 0
    if top_k is not None and (spec.max_positions is None or long < spec.max_positions):
        why = f"longer than the sparse top-k of {top_k}"
        phases.append(Phase(name="prefill_long", batch=batch, tokens=long, context=0, reason=why))
        phases.append(Phase(name="decode_long", batch=batch, tokens=1, context=long, reason=why))
    if spec.image_inputs is not None:
        why = "; ".join(("a prompt with an image", *(note for note in spec.notes if note.startswith("vision"))))
        phases.append(Phase(name="vision", batch=batch, tokens=IMAGE_PROMPT, context=0, images=1, reason=why))
    return tuple(phases)


def token_ids(spec: ModelSpec, batch: int, tokens: int, *, seed: int) -> torch.Tensor:
    """Return int64 token ids [batch, tokens] on the CPU, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, spec.vocab_size, (batch, tokens), generator=generator)
