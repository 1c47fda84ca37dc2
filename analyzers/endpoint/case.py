"""One prompt on its way to a verdict: which tokens the server took, and what both passes of the reference look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from day0.analyzers.endpoint.places import Difference, Replies, first_difference
from day0.analyzers.endpoint.protocol import Answer, Api, Token
from day0.analyzers.endpoint.scoring import Scored, Wanted, continue_greedily, score
from day0.analyzers.endpoint.vocabulary import BROKEN, Encoded, Vocabulary

__all__ = ["Case", "Parting", "ids_of", "listed", "make_case", "meet_golden", "meet_same", "same_token"]

SHOWN = 16
"""Tokens of the reference's own text that are shown from a difference on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parting:
    """Where a text parts from the reference's, in tokens of the reference, and the tokens that the server may have taken."""

    number: int
    possible: tuple[int, ...]
    rest: str
    """The server's text from there on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One prompt with its answer; what a pass has found is empty before it."""

    replies: Replies
    answer: Answer
    encoded: Encoded
    ids: tuple[int, ...] | None
    """The server's tokens; None where only its text is known."""
    differences: Mapping[str, Difference]
    rivals: Mapping[str, tuple[int, int]]
    """By round that differs: the two ids at the place where it parts from the answer."""
    wanted: tuple[Wanted, ...] = ()
    """The answer, and the prompt's own tokens where the server gave their logprobs."""
    golden: tuple[Scored, ...] = ()
    same: tuple[Scored, ...] = ()
    parting: Parting | None = None
    expected: str = ""
    """What the golden goes on with."""
    own_text: str = ""
    """The golden's whole answer, where it was asked for one."""
    notes: tuple[str, ...] = field(default=())


def make_case(replies: Replies, answer: Answer, vocabulary: Vocabulary, api: Api) -> Case:
    """Find the tokens of an answer, and where later rounds part from it."""
    ids = ids_of(answer, vocabulary)
    differences: dict[str, Difference] = {}
    rivals: dict[str, tuple[int, int]] = {}
    for name in ("again", "together"):
        other = replies.answer(name)
        found = first_difference(answer, other) if other is not None and other is not answer else None
        if other is None or found is None:
            continue
        differences[name] = found
        theirs = ids_of(other, vocabulary)
        if ids is not None and theirs is not None and 0 <= found.number < min(len(ids), len(theirs)):
            rivals[name] = ids[found.number], theirs[found.number]
    return Case(
        replies=replies,
        answer=answer,
        encoded=vocabulary.encode(replies.prompt, api),
        ids=ids,
        differences=differences,
        rivals=rivals,
    )


def meet_golden(case: Case, model: nn.Module, dtype: torch.dtype, vocabulary: Vocabulary) -> Case:
    """Score the answer with the golden; go on from the first difference, to show what would have been right."""
    prompt, ends, encoded = case.replies.prompt, vocabulary.ends, case.encoded
    own: tuple[int, ...] = ()
    if case.ids is None or prompt.answers:
        own = continue_greedily(model, encoded.ids, encoded.inputs, prompt.max_tokens, ends, dtype)
        case = replace(case, own_text=vocabulary.decode(own))
    if case.ids is None:
        case = replace(case, parting=_parting(case.answer.text, own, vocabulary), expected=case.own_text)
    ids = own if case.ids is None else case.ids
    wanted = [_wanted(case, ids, vocabulary)]
    echoed = case.replies.answer("echo")
    if echoed is not None and len(echoed.tokens) >= len(encoded.ids) > 1:
        wanted.append(_wanted_of_prompt(encoded, echoed, vocabulary))
    golden = tuple(score(model, one, dtype) for one in wanted)
    case = replace(case, wanted=tuple(wanted), golden=golden)
    at = next((at for at, row in enumerate(golden[0].rows) if not same_token(row.best, ids[at], ends)), None)
    if case.ids is None or at is None:
        return case
    following = continue_greedily(model, encoded.ids + ids[:at], encoded.inputs, SHOWN, ends, dtype)
    return replace(case, expected=vocabulary.decode(following))


def meet_same(case: Case, model: nn.Module, dtype: torch.dtype) -> Case:
    """Score the same tokens in the dtype that the server computes in."""
    return replace(case, same=tuple(score(model, one, dtype) for one in case.wanted))


def ids_of(answer: Answer, vocabulary: Vocabulary) -> tuple[int, ...] | None:
    """Return the ids of an answer's tokens, with the one that ended it; None where they cannot be known."""
    ids: tuple[int, ...] | None = answer.token_ids or None
    if ids is None and answer.tokens:
        ids = vocabulary.resolve(answer.tokens)
    if ids is None or answer.finish != "stop" or ids[-1] in vocabulary.ends or not vocabulary.ends:
        return ids
    # Servers differ in whether they show the token that ends a text. They all took one.
    return (*ids, min(vocabulary.ends))


def listed(token: Token, vocabulary: Vocabulary) -> dict[int, float]:
    """Return the best tokens that a server lists and whose ids are clear, with their logprobs."""
    found = {vocabulary.lookup(text): value for text, value in token.top}
    return {ids[0]: value for ids, value in found.items() if len(ids) == 1}


def same_token(one: int, other: int, ends: frozenset[int]) -> bool:
    """Return whether two tokens mean the same: all that end a text do."""
    return one == other or (one in ends and other in ends)


def _wanted(case: Case, ids: tuple[int, ...], vocabulary: Vocabulary) -> Wanted:
    rivals = {case.differences[name].number: pair for name, pair in case.rivals.items()}
    also = []
    for at, one in enumerate(ids):
        best = listed(case.answer.tokens[at], vocabulary) if at < len(case.answer.tokens) else {}
        ends = vocabulary.ends if one in vocabulary.ends else frozenset()
        possible = case.parting.possible if case.parting is not None and case.parting.number == at else ()
        also.append(frozenset({one, *best, *rivals.get(at, ()), *ends, *possible}))
    return Wanted(prompt=case.encoded.ids, answer=ids, also=tuple(also), inputs=case.encoded.inputs)


def _wanted_of_prompt(encoded: Encoded, echoed: Answer, vocabulary: Vocabulary) -> Wanted:
    """Return the prompt's tokens after the first, which has no history."""
    ids = encoded.ids
    also = [frozenset({one, *listed(echoed.tokens[at + 1], vocabulary)}) for at, one in enumerate(ids[1:])]
    return Wanted(prompt=ids[:1], answer=ids[1:], also=tuple(also), inputs={})


def _parting(text: str, own: tuple[int, ...], vocabulary: Vocabulary) -> Parting | None:
    """Return where a text parts from that of the reference's own tokens; None where both are the same."""
    if text == vocabulary.decode(own):
        return None
    number, shared = 0, ""
    while number < len(own):
        following = vocabulary.decode(own[: number + 1])
        # A token may hold a part of a character, which shows as a replacement until the rest has come.
        if not text.startswith(following.rstrip(BROKEN)):
            break
        shared = following if text.startswith(following) else shared
        number += 1
    if number == len(own) and own and own[-1] in vocabulary.ends:
        number -= 1  # the reference ended, and the server went on
    rest = text[len(shared) :]
    possible = vocabulary.beginnings(rest) if rest else tuple(sorted(vocabulary.ends))
    return Parting(number=number, possible=possible, rest=rest)
