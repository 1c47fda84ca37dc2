"""Ask a trained toy questions it has not seen, the way it is served: prefill, then one token at a time.

Shape suffixes: B batch, S tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from day0.models.toy import tasks
from day0.models.toy.model import ToyModel
from day0.models.toy.tasks import IGNORED, Questions

__all__ = ["accuracy", "exam", "held_out"]

HELD_OUT_SEED = 90210
"""No other seed is used in training; a prompt that was seen by chance is one of more than 2^100."""


def held_out(batch: int, patch: int) -> tuple[Questions, ...]:
    """Return questions for an exam: 24 pairs are 49 rows of cache, far beyond the sparse top-k of 8."""
    generator = torch.Generator().manual_seed(HELD_OUT_SEED)
    return (
        tasks.recall_questions(batch, 24, 8, generator),
        tasks.largest_questions(batch, 24, generator),
        tasks.copy_questions(batch, 10, generator),
        tasks.image_questions(batch, patch, generator),
    )


def exam(model: ToyModel, questions: Iterable[Questions]) -> dict[str, float]:
    """Return the share of right answers by kind of question."""
    return {one.kind: accuracy(model, one) for one in questions}


def accuracy(model: ToyModel, questions: Questions) -> float:
    """Return the share of right answers: what is asked about is prefilled, questions are decoded token by token."""
    ids_BS, first = questions.ids_BS, questions.question_from
    with torch.no_grad():
        output = model(input_ids=ids_BS[:, :first], pixel_values=questions.pixels)
        rows = [output.logits]
        for position in range(first, ids_BS.shape[1]):
            output = model(input_ids=ids_BS[:, position : position + 1], past_key_values=output.past_key_values)
            rows.append(output.logits)
    said_BS = torch.cat(rows, dim=1).argmax(dim=-1)
    asked_BS = questions.answer_BS != IGNORED
    return float((said_BS == questions.answer_BS)[asked_BS].double().mean())
