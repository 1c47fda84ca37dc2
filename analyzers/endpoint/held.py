"""An answer's places, held against both passes of a local reference: what rounding explains, and what not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

import torch

from day0.analyzers.endpoint.case import Case, listed, same_token
from day0.analyzers.endpoint.places import Difference, Judged, Place, coarse_divergence
from day0.analyzers.endpoint.protocol import Token
from day0.analyzers.endpoint.right import is_right
from day0.analyzers.endpoint.scoring import Row
from day0.analyzers.endpoint.vocabulary import Vocabulary
from day0.analyzers.modules.measure import RATIO, floor_of

__all__ = ["hold", "typical_noise"]

IMPOSSIBLE = float("-inf")


def typical_noise(cases: Sequence[Case]) -> float:
    """Return the median of the yardstick over all places, in nats: one place alone may be exact by luck."""
    found = [_noise(one, two) for case in cases for one, two in _pairs(case)]
    return median(found) if found else 0.0


def hold(case: Case, vocabulary: Vocabulary, dtype: torch.dtype, noise: float) -> Judged:
    """Hold one answer against both passes; `noise` is the least that rounding is taken to do."""
    golden, same = case.golden[0].rows, case.same[0].rows
    explained = [_explained(one, two, noise, dtype) for one, two in zip(golden, same, strict=True)]
    if case.ids is None:
        places = _places_of_text(case, golden, explained, vocabulary)
    else:
        rows = zip(golden, same, explained, strict=True)
        places = tuple(_place(case, at, one, two, limit, vocabulary) for at, (one, two, limit) in enumerate(rows))
    return Judged(
        replies=case.replies,
        by_tokens=case.ids is not None,
        places=places,
        prompt_places=_prompt_places(case, vocabulary),
        differences={name: _measured(case, name, explained) for name in case.differences},
        prompt_tokens=len(case.encoded.ids),
        expected=case.expected,
        right=is_right(case.answer.text, case.replies.prompt),
        reference_right=is_right(case.own_text, case.replies.prompt),
    )


def _pairs(case: Case) -> Iterator[tuple[Row, Row]]:
    for golden, same in zip(case.golden, case.same, strict=True):
        yield from zip(golden.rows, same.rows, strict=True)


def _noise(golden: Row, same: Row) -> float:
    return max(abs(same.logprobs.get(one, value) - value) for one, value in golden.logprobs.items())


def _explained(golden: Row, same: Row, noise: float, dtype: torch.dtype) -> float:
    """Return how much nearer two tokens may come by rounding: each moves by the noise, as in the model's check."""
    return 2.0 * (RATIO * max(_noise(golden, same), noise) + floor_of(dtype) * golden.size)


def _place(case: Case, at: int, golden: Row, same: Row, explained: float, vocabulary: Vocabulary) -> Place:
    assert case.ids is not None  # noqa: S101 - texts have places of their own
    got = case.ids[at]
    if got in vocabulary.ends:
        got = max(sorted(vocabulary.ends), key=lambda one: golden.logprobs.get(one, IMPOSSIBLE))
    token = case.answer.tokens[at] if at < len(case.answer.tokens) else None
    place = Place(
        number=at,
        got=token.text if token is not None else vocabulary.decode([got], special=True),
        best=vocabulary.decode([golden.best], special=True),
        got_id=got,
        best_id=golden.best,
        equal=same_token(golden.best, got, vocabulary.ends),
        margin=golden.logprobs[golden.best] - golden.logprobs[got],
        explained=explained,
    )
    return _with_logprobs(place, token, golden, same, vocabulary)


def _with_logprobs(place: Place, token: Token | None, golden: Row, same: Row, vocabulary: Vocabulary) -> Place:
    """Add how far the server's own logprobs are from the reference's."""
    if token is None or token.logprob is None:
        return place
    right, own = golden.logprobs[place.got_id], same.logprobs[place.got_id]
    shared = [(one, value) for one, value in listed(token, vocabulary).items() if one in same.logprobs]
    shared = [(one, value) for one, value in shared if one in golden.logprobs]
    wide, mine = ([row.logprobs[one] for one, _ in shared] for row in (golden, same))
    return replace(
        place,
        error=abs(token.logprob - right),
        yardstick=abs(own - right),
        divergence=coarse_divergence(wide, [value for _, value in shared]) if shared else None,
        divergence_yardstick=coarse_divergence(wide, mine) if shared else 0.0,
    )


def _prompt_places(case: Case, vocabulary: Vocabulary) -> tuple[Place, ...]:
    echoed = case.replies.answer("echo")
    if len(case.wanted) < 2 or echoed is None:
        return ()
    rows = zip(case.golden[1].rows, case.same[1].rows, case.wanted[1].answer, strict=True)
    places = []
    for at, (golden, same, one) in enumerate(rows):
        token = echoed.tokens[at + 1]
        plain = Place(number=at + 1, got=token.text, best=token.text, got_id=one, best_id=one, equal=True)
        places.append(_with_logprobs(plain, token, golden, same, vocabulary))
    return tuple(places)


def _places_of_text(
    case: Case, golden: Sequence[Row], explained: Sequence[float], vocabulary: Vocabulary
) -> tuple[Place, ...]:
    """Return places up to the first difference: after it, a text does not say which tokens it was."""
    ids, parting = case.wanted[0].answer, case.parting
    texts = [vocabulary.decode([one], special=True) for one in ids]
    places = [
        Place(number=at, got=text, best=text, got_id=one, best_id=one, equal=True)
        for at, (one, text) in enumerate(zip(ids, texts, strict=True))
    ]
    if parting is None:
        return tuple(places)
    at = parting.number
    if at >= len(golden):
        # The reference's tokens were spent, and the server's text goes on.
        return (*places, Place(number=at, got=parting.rest, best="", equal=False, margin=float("inf")))
    row = golden[at]
    # A character of several tokens names none of them: then any other token may have been taken.
    possible = parting.possible or tuple(one for one in row.logprobs if one != row.best)
    got = max(possible, key=lambda one: row.logprobs.get(one, IMPOSSIBLE), default=-1)
    parted = Place(
        number=at,
        got=vocabulary.decode([got], special=True) if parting.possible and got >= 0 else parting.rest[:40],
        best=texts[at],
        got_id=got,
        best_id=ids[at],
        equal=False,
        margin=row.logprobs[row.best] - row.logprobs.get(got, IMPOSSIBLE),
        explained=explained[at],
    )
    return (*places[:at], parted)


def _measured(case: Case, name: str, explained: Sequence[float]) -> Difference:
    found, rival = case.differences[name], case.rivals.get(name)
    if rival is None or found.number >= len(explained):
        return found
    row = case.golden[0].rows[found.number].logprobs
    if rival[0] not in row or rival[1] not in row:
        return found
    return replace(found, margin=abs(row[rival[0]] - row[rival[1]]), explained=explained[found.number])
