"""Whether a server and its reference are the same model, as far as it shows; else nothing is compared."""

from __future__ import annotations

from collections.abc import Sequence

from day0.analyzers.endpoint.places import Judged, Replies
from day0.analyzers.endpoint.protocol import ServedModel
from day0.analyzers.endpoint.vocabulary import Vocabulary
from day0.errors import Day0Error

__all__ = ["refuse_other_counts", "refuse_other_size", "refuse_other_tokens"]

MOST_UNKNOWN = 0.2
"""Servers show special tokens and halves of characters in their own ways; more unknown texts are other tokens."""
MOST_EXTRA = 3
"""A second token that begins the text, or a template's: the same number on every prompt is a fault and no other model."""
_HINT = "name the folder of the very checkpoint that the server has loaded"


def refuse_other_size(served: ServedModel | None, size: int, where: str) -> None:
    """Raise Day0Error where the server says how many tokens its model knows, and the reference knows others."""
    if served is not None and served.meta is not None and served.meta.n_vocab not in (None, size):
        what = f"another model: the server's has {served.meta.n_vocab:,} tokens, and the reference {size:,}"
        raise Day0Error(where, what, hint=_HINT)


def refuse_other_tokens(asked: Sequence[Replies], vocabulary: Vocabulary) -> None:
    """Raise Day0Error where the server's tokens are not those of the reference's vocabulary."""
    answers = [one.main for one in asked if one.main is not None]
    largest = max((number for one in answers for number in (*one.token_ids, *one.prompt_ids)), default=-1)
    lowest = min((number for one in answers for number in (*one.token_ids, *one.prompt_ids)), default=0)
    if largest >= vocabulary.size or lowest < 0:
        odd = largest if largest >= vocabulary.size else lowest
        what = f"another model: the server gives token id {odd:,}, and the reference has {vocabulary.size:,} tokens"
        raise Day0Error(vocabulary.where, what, hint=_HINT)
    texts = [token.text for one in answers for token in one.tokens]
    unknown = sorted({text for text in texts if not vocabulary.lookup(text)})
    if sum(not vocabulary.lookup(text) for text in texts) > MOST_UNKNOWN * max(len(texts), 1):
        raise Day0Error(
            vocabulary.where,
            "another model: most of the server's tokens are not in the reference's vocabulary",
            facts=tuple(f"not a token: {text[:60]!r}" for text in unknown[:5]),
            hint=_HINT,
        )


def refuse_other_counts(judged: Sequence[Judged], where: str) -> None:
    """Raise Day0Error where prompts have other numbers of tokens, by no one number: another tokenizer or template.

    The same small number on every prompt is a finding and not another model.
    """
    counts = [
        (one.replies.prompt.name, one.counted, one.prompt_tokens)
        for one in judged
        if one.counted is not None and one.prompt_tokens is not None
    ]
    off = {mine - theirs for _, mine, theirs in counts}
    unlike = sum(mine != theirs for _, mine, theirs in counts)
    if unlike * 2 <= len(counts) or (len(off) == 1 and abs(next(iter(off))) <= MOST_EXTRA):
        return
    raise Day0Error(
        where,
        "another model or chat template: the server counts other prompt tokens than the reference",
        facts=tuple(
            f"prompt {name!r}: {mine} on the server, {theirs} in the reference"
            for name, mine, theirs in counts
            if mine != theirs
        )[:5],
        hint=_HINT,
    )
