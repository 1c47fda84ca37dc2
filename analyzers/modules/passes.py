"""One pass of a model, the same on every device: a prompt and the token after it, or the calls that its source brings.

Shape suffixes: B batch, S tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from day0.models.driver import CallStyle, StepOutput, step, style_of
from day0.models.pictures import picture_inputs
from day0.models.spec import ModelSpec, OwnPhase

__all__ = ["Call", "Pass", "own_calls", "picture_calls", "plain_tokens", "prompt_length", "token_calls", "walk"]

SHORT_PROMPT = 40
"""Several pages of a cache."""
LONGEST_PROMPT = 512
"""A golden in float64 of more tokens takes minutes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of a model: what it is named, and how it is made on a device after the calls before it."""

    name: str
    run: Callable[[nn.Module, torch.device, Any], Any]
    """Takes the model, the device and what the call before returned (None for the first); returns its result."""


Pass = tuple[Call, ...]


def token_calls(ids_BS: torch.Tensor, new_tokens: int = 1) -> Pass:
    """Return a prefill of all tokens [B, S] but the last `new_tokens`, and one call for each of those."""
    first = ids_BS.shape[1] - new_tokens
    prefill = Call(name="prefill", run=_step_with(ids_BS[:, :first]))
    return (
        prefill,
        *(Call(name=_name(n), run=_step_with(ids_BS[:, first + n : first + n + 1])) for n in range(new_tokens)),
    )


def _name(number: int) -> str:
    return "decode" if not number else f"decode {number + 1}"


def _step_with(ids_BS: torch.Tensor) -> Callable[[nn.Module, torch.device, Any], StepOutput]:
    def run(model: nn.Module, device: torch.device, before: StepOutput | None) -> StepOutput:
        cache = before.cache if before is not None else None
        return step(model, ids_BS.contiguous().to(device), cache, earlier=before)

    return run


def own_calls(phases: tuple[OwnPhase, ...]) -> Pass:
    """Return the calls that a model's source brings."""

    def calling(phase: OwnPhase) -> Callable[[nn.Module, torch.device, Any], Any]:
        return lambda model, device, _: phase.prepare(model, str(device))()

    return tuple(Call(name=phase.name, run=calling(phase)) for phase in phases)


def picture_calls(spec: ModelSpec, ids_BS: torch.Tensor) -> Pass:
    """Return one prefill of prompts [B, S] with an image each, for a model that takes images."""

    def run(model: nn.Module, device: torch.device, _: Any) -> StepOutput:
        made = picture_inputs(spec, model, ids_BS, lambda one: one.to(device))
        if made is None:
            raise RuntimeError("the model takes no image")
        return step(model, made.ids_BS.to(device), inputs=made.arguments)

    return (Call(name="vision", run=run),)


def plain_tokens(spec: ModelSpec, model: nn.Module) -> str:
    """Say why a model cannot be given one token after the other, or return an empty text."""
    if spec.phases or spec.vocab_size < 2:
        return "it takes the inputs that its source brings, not token ids"
    style: CallStyle = style_of(model)
    if style.encoder_decoder or style.all_tokens or style.streams > 1 or not style.takes_ids or style.extra:
        return "it takes more than new token ids and a cache"
    return "" if style.cache_name and style.switch else "it keeps nothing between calls"


def prompt_length(spec: ModelSpec, new_tokens: int) -> tuple[int, str]:
    """Return how many tokens a prompt has, beyond the sparse top-k where that is affordable; and a note if it is not."""
    wanted = max(SHORT_PROMPT, 3 * (spec.sparse_top_k or 0))
    room = LONGEST_PROMPT if spec.max_positions is None else min(LONGEST_PROMPT, spec.max_positions - new_tokens)
    length = max(1, min(wanted, room))
    top_k = spec.sparse_top_k
    if top_k is not None and length <= top_k:
        length = max(1, min(SHORT_PROMPT, room))
        return length, f"the prompt of {length} tokens is below the sparse top-k of {top_k}: only dense paths were run"
    return length, ""


def walk(calls: Pass, model: nn.Module, device: torch.device) -> Iterator[tuple[str, Any]]:
    """Make the calls one after the other; yield each name before its call, then its result."""
    before: Any = None
    for call in calls:
        with torch.no_grad():
            before = call.run(model, device, before)
        yield call.name, before
