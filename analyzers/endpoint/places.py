"""What is known of an answer, token by token: what the server took, what the reference would have taken, how far apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from day0.analyzers.endpoint.client import Reply
from day0.analyzers.endpoint.outcomes import FailedOutcome
from day0.analyzers.endpoint.prompts import Prompt
from day0.analyzers.endpoint.protocol import Answer

__all__ = ["ROUNDS", "Difference", "Judged", "Place", "Replies", "coarse_divergence", "first_difference"]

ROUNDS = ("alone", "again", "together", "echo")
"""Each prompt is asked alone in a stream, once more without one, among others, and for the prompt's own logprobs."""
LEAST = 1e-12
"""A share of the distribution that is smaller is rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replies:
    """One prompt and what became of it in each round that was made."""

    prompt: Prompt
    rounds: Mapping[str, Reply]

    def answer(self, name: str) -> Answer | None:
        """Return the answer of a round, if there is one."""
        return self.rounds[name].answer if name in self.rounds else None

    @property
    def main(self) -> Answer | None:
        """The answer that is held against the reference: the first that there is."""
        return next((found for name in ROUNDS[:3] if (found := self.answer(name)) is not None), None)

    @property
    def outcome(self) -> FailedOutcome | None:
        """Why there is no answer at all; None where there is one."""
        failures = [one.failure for one in self.rounds.values() if one.failure is not None]
        return failures[0].outcome if self.main is None and failures else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """One token, with the history that the server chose. All distances are in nats."""

    number: int
    """From 0, the first new token."""
    got: str
    best: str
    """What the reference would take."""
    got_id: int = -1
    best_id: int = -1
    equal: bool
    margin: float = 0.0
    """How far the reference puts its own token above the server's."""
    explained: float = 0.0
    """How much of that rounding explains."""
    error: float | None = None
    """How far the server's logprob of its token is from the reference's; None where it gives none."""
    yardstick: float = 0.0
    """The same for the reference's own dtype."""
    divergence: float | None = None
    divergence_yardstick: float = 0.0

    @property
    def unexplained(self) -> bool:
        """Whether rounding does not explain the server's choice. NaN is not explained."""
        return not self.equal and not self.margin <= self.explained


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Two answers of one server to one prompt are not the same."""

    number: int
    """The token at which they part, from 0; -1 where only texts are known."""
    first: str
    second: str
    margin: float = math.inf
    explained: float = 0.0

    @property
    def unexplained(self) -> bool:
        """Whether rounding does not explain it."""
        return not self.margin <= self.explained


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """One prompt's answer, held against the reference."""

    replies: Replies
    by_tokens: bool
    """Whether the server's tokens are known; else texts are compared up to the first difference."""
    places: tuple[Place, ...]
    prompt_places: tuple[Place, ...] = ()
    """The prompt's own tokens, where the server gives their logprobs."""
    differences: Mapping[str, Difference] = field(default_factory=dict)
    """By round, where the answer is not that of the first round."""
    prompt_tokens: int | None = None
    """How many the reference counts."""
    expected: str = ""
    """What the reference goes on with: from the first difference on, or the whole where a text was asked for."""
    reference_right: bool | None = None
    """Whether the reference answers right; None where nobody knows what is right."""
    right: bool | None = None

    @property
    def counted(self) -> int | None:
        """How many tokens of the prompt the server counts; None where it does not say."""
        return self.replies.main.prompt_tokens if self.replies.main is not None else None

    @property
    def first(self) -> Place | None:
        """The place that decides: the first that rounding does not explain, else the first that differs."""
        return self.unexplained or next((one for one in self.places if not one.equal), None)

    @property
    def unexplained(self) -> Place | None:
        """The first place that rounding does not explain."""
        return next((one for one in self.places if one.unexplained), None)


def first_difference(first: Answer, second: Answer) -> Difference | None:
    """Return where two answers part; None where they are the same. Token ids decide, else tokens, else texts."""
    if first.token_ids and second.token_ids:
        left = tuple(str(one) for one in first.token_ids)
        right = tuple(str(one) for one in second.token_ids)
    else:
        left, right = tuple(one.text for one in first.tokens), tuple(one.text for one in second.tokens)
    if not left or not right:
        return None if first.text == second.text else Difference(number=-1, first=first.text, second=second.text)
    number = _parting(left, right)
    if number is None:
        return None
    texts = [one.tokens[number].text if number < len(one.tokens) else "" for one in (first, second)]
    return Difference(number=number, first=texts[0], second=texts[1])


def _parting(left: Sequence[str], right: Sequence[str]) -> int | None:
    number = next((at for at, (one, two) in enumerate(zip(left, right, strict=False)) if one != two), None)
    return number if number is not None or len(left) == len(right) else min(len(left), len(right))


def coarse_divergence(right: Sequence[float], got: Sequence[float]) -> float:
    """Return KL(right, got) in nats over some tokens and one share for all others: never more than the whole KL.

    Both are logprobs of the same tokens.
    """
    pairs = [(math.exp(one), math.exp(two)) for one, two in zip(right, got, strict=True)]
    rest = (1.0 - sum(one for one, _ in pairs), 1.0 - sum(two for _, two in pairs))
    terms = [(max(one, LEAST), max(two, LEAST)) for one, two in (*pairs, rest)]
    return max(0.0, sum(one * math.log(one / two) for one, two in terms))
