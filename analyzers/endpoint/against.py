"""Another server as the reference: its own answers, and what its logprobs say where two answers part.

Nobody knows the wider result here. The yardstick is one rounding of a usual logit in the dtype of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from day0.analyzers.endpoint.places import Difference, Judged, Place, Replies, coarse_divergence, first_difference
from day0.analyzers.endpoint.protocol import Answer, Token
from day0.analyzers.endpoint.right import is_right
from day0.analyzers.modules.measure import RATIO, floor_of

__all__ = ["Rounding", "judge_against"]

LOGIT = 8.0
"""The best logits of most models lie between this and its double."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounding:
    """What one dtype explains, in nats."""

    logprob: float
    """Half a unit in the last place of a usual logit; of float32 as many units as in the model's check."""

    @classmethod
    def of(cls, dtype: torch.dtype) -> Rounding:
        """Return that of what the servers compute in."""
        return cls(logprob=0.5 * LOGIT * floor_of(dtype))

    @property
    def explained(self) -> float:
        """Two tokens may come that much nearer: each moves by some roundings."""
        return 2.0 * RATIO * self.logprob

    @property
    def divergence(self) -> float:
        """It grows as the square of the error."""
        return 0.5 * self.logprob**2


def judge_against(asked: Sequence[Replies], reference: Sequence[Replies], rounding: Rounding) -> tuple[Judged, ...]:
    """Hold answers against another server's, prompt by prompt, up to the first difference.

    Prompts that one of the two did not answer are left out.
    """
    return tuple(
        _judged(one, two, rounding) for one, two in zip(asked, reference, strict=True) if one.main and two.main
    )


def _judged(mine: Replies, theirs: Replies, rounding: Rounding) -> Judged:
    got, right = mine.main, theirs.main
    assert got is not None and right is not None  # noqa: S101 - asked for by the caller only with both
    parts = first_difference(right, got)
    by_tokens = bool(got.tokens and right.tokens)
    places = _places(got, right, parts, rounding) if by_tokens else _place_of_text(got, right)
    return Judged(
        replies=mine,
        by_tokens=by_tokens,
        places=places,
        prompt_places=_prompt_places(mine, theirs, rounding),
        differences=_differences(mine, right, parts, rounding),
        prompt_tokens=right.prompt_tokens,
        expected=right.text if parts is None or not by_tokens else "".join(_texts(right)[parts.number :]),
        right=is_right(got.text, mine.prompt),
        reference_right=is_right(right.text, mine.prompt),
    )


def _texts(answer: Answer) -> list[str]:
    return [one.text for one in answer.tokens]


def _places(got: Answer, right: Answer, parts: Difference | None, rounding: Rounding) -> tuple[Place, ...]:
    shared = min(len(got.tokens), len(right.tokens))
    count = shared if parts is None else min(parts.number, shared)
    places = [
        _with_logprobs(Place(number=at, got=one.text, best=two.text, equal=True), one, two, rounding)
        for at, (one, two) in enumerate(zip(got.tokens[:count], right.tokens[:count], strict=True))
    ]
    if parts is not None:
        # An end of text that a server does not show has no token.
        theirs = right.tokens[count] if count < len(right.tokens) else Token(text="")
        mine = got.tokens[count] if count < len(got.tokens) else Token(text="")
        margin = _margin(theirs, mine.text)
        parting = Place(
            number=count, got=mine.text, best=theirs.text, equal=False, margin=margin, explained=rounding.explained
        )
        places.append(parting)
    return tuple(places)


def _place_of_text(got: Answer, right: Answer) -> tuple[Place, ...]:
    if got.text == right.text:
        return (Place(number=0, got=got.text, best=right.text, equal=True),)
    at = next((at for at, (one, two) in enumerate(zip(got.text, right.text, strict=False)) if one != two), None)
    at = min(len(got.text), len(right.text)) if at is None else at
    # Texts alone say nothing of how near the choice was.
    return (Place(number=0, got=got.text[at:], best=right.text[at:], equal=False, margin=float("inf")),)


def _margin(token: Token, other: str) -> float:
    """Return how far a server puts its own token above another: at least, where the other is not among the best."""
    top = dict(token.top)
    if token.logprob is None or not top:
        return float("inf")
    return token.logprob - top.get(other, min(top.values()))


def _with_logprobs(place: Place, got: Token, right: Token, rounding: Rounding) -> Place:
    if got.logprob is None or right.logprob is None:
        return place
    theirs: Mapping[str, float] = dict(right.top)
    shared = [(theirs[text], value) for text, value in got.top if text in theirs]
    wide = [one for one, _ in shared]
    return replace(
        place,
        error=abs(got.logprob - right.logprob),
        yardstick=rounding.logprob,
        divergence=coarse_divergence(wide, [two for _, two in shared]) if shared else None,
        divergence_yardstick=rounding.divergence,
    )


def _prompt_places(mine: Replies, theirs: Replies, rounding: Rounding) -> tuple[Place, ...]:
    got, right = mine.answer("echo"), theirs.answer("echo")
    if got is None or right is None or _texts(got)[:-1] != _texts(right)[:-1]:
        return ()
    return tuple(
        _with_logprobs(Place(number=at, got=one.text, best=two.text, equal=True), one, two, rounding)
        for at, (one, two) in enumerate(zip(got.tokens[:-1], right.tokens[:-1], strict=True))
        if at
    )


def _differences(mine: Replies, right: Answer, parts: Difference | None, rounding: Rounding) -> dict[str, Difference]:
    """Return how later rounds differ from the first, with margins where the reference went the same way until then."""
    found: dict[str, Difference] = {}
    first = mine.main
    for name in ("again", "together"):
        other = mine.answer(name)
        if first is None or other is None or other is first:
            continue
        one = first_difference(first, other)
        if one is None:
            continue
        same_way = one.number >= 0 and (parts is None or one.number <= parts.number)
        if same_way and one.number < len(right.tokens):
            margins = [_margin(right.tokens[one.number], text) for text in (one.first, one.second)]
            one = replace(one, margin=abs(margins[0] - margins[1]), explained=rounding.explained)
        found[name] = one
    return found
