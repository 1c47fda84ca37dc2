"""Synthetic questions for the toy: recall beyond the sparse top-k, copying, and neighbours in an image.

Shape suffixes: B batch, S tokens, N pairs, Q questions, G patch rows and columns, P pixels of a patch's side.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["IGNORED", "Questions", "copy_questions", "image_questions", "recall_questions"]

IGNORED = -100
BOS, ASK, ASK_FACT, COPY, SEPARATOR, IMAGE, LARGEST = 1, 2, 3, 4, 5, 6, 9
DIRECTIONS = {11: (0, 0), 7: (0, 1), 8: (1, 0)}
"""Token of a direction: step in rows and columns."""
COLOURS, KEYS, VALUES = range(12, 20), range(20, 68), range(70, 110)
GRID, MERGED = 6, 9


@dataclass(frozen=True, kw_only=True, slots=True)
class Questions:
    """Token ids [B, S] with, at each position whose next token is an answer, that answer; IGNORED elsewhere."""

    kind: str
    ids_BS: torch.Tensor
    answer_BS: torch.Tensor
    pixels: torch.Tensor | None = None
    """[B, 3, height, width], values about 0 to 1."""
    question_from: int = 0
    """Where the questions begin; before it stands what they ask about."""


CLASSES = 4
"""Keys fall into classes, and a fact is what a class makes of a value."""


def facts() -> torch.Tensor:
    """Return a value for each class of keys and each value, [classes, values]: a fixed table without a rule."""
    generator = torch.Generator().manual_seed(5)
    return torch.randint(VALUES.start, VALUES.stop, (CLASSES, len(VALUES)), generator=generator)


def _distinct(batch: int, count: int, among: range, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(batch, len(among), generator=generator).argsort(dim=-1)[:, :count] + among.start


def recall_questions(
    batch: int, pairs: int, questions: int, generator: torch.Generator, *, plain: bool = False
) -> Questions:
    """Return pairs of key and value, then keys again: answer with the value, or with what it is swapped for."""
    key_BN = _distinct(batch, pairs, KEYS, generator)
    value_BN = torch.randint(VALUES.start, VALUES.stop, (batch, pairs), generator=generator)
    asked_BQ = torch.randint(0, pairs, (batch, questions), generator=generator)
    how_BQ = torch.randint(ASK, ASK + 1 if plain else ASK_FACT + 1, (batch, questions), generator=generator)
    plain_BQ = value_BN.gather(1, asked_BQ)
    class_BQ = (key_BN.gather(1, asked_BQ) - KEYS.start) % CLASSES
    right_BQ = torch.where(how_BQ == ASK, plain_BQ, facts()[class_BQ, plain_BQ - VALUES.start])
    told_BS = torch.stack((key_BN, value_BN), dim=-1).flatten(1)
    asked_BS = torch.stack((how_BQ, key_BN.gather(1, asked_BQ), right_BQ), dim=-1).flatten(1)
    ids_BS = torch.cat((torch.full((batch, 1), BOS), told_BS, asked_BS), dim=1)
    answer_BS = torch.full_like(ids_BS, IGNORED)
    first = 1 + 2 * pairs
    answer_BS[:, first + 1 :: 3] = right_BQ
    return Questions(kind="recall", ids_BS=ids_BS, answer_BS=answer_BS, question_from=first)


def copy_questions(batch: int, tokens: int, generator: torch.Generator) -> Questions:
    """Return distinct tokens, a separator, and the same tokens again."""
    told_BN = _distinct(batch, tokens, range(KEYS.start, VALUES.stop), generator)
    head_B2 = torch.tensor([BOS, COPY]).expand(batch, 2)
    ids_BS = torch.cat((head_B2, told_BN, torch.full((batch, 1), SEPARATOR), told_BN), dim=1)
    answer_BS = torch.full_like(ids_BS, IGNORED)
    first = 2 + tokens
    answer_BS[:, first:-1] = told_BN
    return Questions(kind="copy", ids_BS=ids_BS, answer_BS=answer_BS, question_from=first)


def largest_questions(batch: int, tokens: int, generator: torch.Generator) -> Questions:
    """Return rising and falling tokens: answer each with the largest so far, itself among them."""
    rise_BN = torch.linspace(0, len(VALUES) - 12, tokens).round().to(torch.int64)
    step_BN = torch.randint(0, 12, (batch, tokens), generator=generator)
    told_BN = rise_BN + step_BN + VALUES.start
    ids_BS = torch.cat((torch.tensor([BOS, LARGEST]).expand(batch, 2), told_BN), dim=1)
    answer_BS = torch.full_like(ids_BS, IGNORED)
    answer_BS[:, 2:] = told_BN.cummax(dim=1).values
    return Questions(kind="largest", ids_BS=ids_BS, answer_BS=answer_BS, question_from=2 + tokens // 2)


def image_questions(batch: int, patch: int, generator: torch.Generator) -> Questions:
    """Return images of coloured patches, one of them marked, and ask for the colours of its neighbours."""
    colour_BGG = torch.randint(0, len(COLOURS), (batch, GRID, GRID), generator=generator)
    place_B2 = torch.randint(1, GRID - 1, (batch, 2), generator=generator)
    pixels = _paint(colour_BGG, place_B2, patch, generator)
    order_B4 = torch.rand(batch, len(DIRECTIONS), generator=generator).argsort(dim=-1)
    step_42 = torch.tensor(list(DIRECTIONS.values()))
    beside_B42 = place_B2[:, None] + step_42[order_B4]
    right_B4 = colour_BGG[torch.arange(batch)[:, None], beside_B42[..., 0], beside_B42[..., 1]] + COLOURS.start
    asked_BS = torch.stack((torch.tensor(list(DIRECTIONS))[order_B4], right_B4), dim=-1).flatten(1)
    ids_BS = torch.cat((torch.full((batch, MERGED), IMAGE), asked_BS), dim=1)
    answer_BS = torch.full_like(ids_BS, IGNORED)
    answer_BS[:, MERGED::2] = right_B4
    return Questions(kind="image", ids_BS=ids_BS, answer_BS=answer_BS, pixels=pixels, question_from=MERGED)


def _paint(colour_BGG: torch.Tensor, place_B2: torch.Tensor, patch: int, generator: torch.Generator) -> torch.Tensor:
    """Return [B, 3, G * P, G * P]: the corners of the colour cube with a little noise, and a cross on one patch."""
    batch = colour_BGG.shape[0]
    cube = torch.stack([colour_BGG >> channel & 1 for channel in range(3)], dim=1).float()
    image = cube.repeat_interleave(patch, dim=2).repeat_interleave(patch, dim=3)
    marked = torch.zeros(batch, GRID, GRID)
    marked[torch.arange(batch), place_B2[:, 0], place_B2[:, 1]] = 1.0
    cross = ((torch.eye(patch) + torch.eye(patch).flip(0)) > 0).float()
    where = torch.kron(marked, cross) if batch == 1 else torch.stack([torch.kron(one, cross) for one in marked])
    image = image + (2.5 - image) * where.reshape(batch, 1, GRID * patch, GRID * patch)
    return image + 0.05 * torch.randn(image.shape, generator=generator)
