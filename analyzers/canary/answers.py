"""Questions that a trained toy can answer: how many are right on the device and on the CPU, question by question.

Shape suffixes: B prompts, S tokens.
"""

from __future__ import annotations

import torch

from day0.analyzers.canary.context import CanaryContext
from day0.analyzers.canary.gates import Figure
from day0.analyzers.modules.scores import Answers, compare_scores
from day0.models.driver import step
from day0.models.toy.exam import HELD_OUT_SEED
from day0.models.toy.model import ToyModel
from day0.models.toy.tasks import IGNORED, Questions, recall_questions
from day0.registry.dispatch import suspended

__all__ = ["accuracy_figures"]

PROMPTS = 12


def accuracy_figures(context: CanaryContext) -> dict[str, float | Figure]:
    """Return the share of right answers on the device, and how it differs from the CPU's, each with its interval.

    The same questions are asked of both, so the difference is that of paired answers. All but the trained toy answer
    no questions that day0 knows.
    """
    names = ("accuracy", "accuracy_difference")
    if not context.spec.trained or not isinstance(context.reference(), ToyModel):
        why = "day0 has no questions for this model: compare scores of your own with `day0 check scores`"
        return {name: Figure(None, why=why) for name in names}
    asked = recall_questions(PROMPTS, 24, 8, torch.Generator().manual_seed(HELD_OUT_SEED))
    with suspended():
        before = _answers(step(context.reference(), asked.ids_BS).logits_BSV, asked)
    after = _answers(step(context.on_device(), asked.ids_BS.to(context.device)).logits_BSV.cpu(), asked)
    found = compare_scores(before, after, paired=True)
    low, high = found.intervals[1]
    return {
        "accuracy": Figure(found.scores[1], low, high, found.questions[1]),
        "accuracy_difference": Figure(found.difference, *found.interval, found.questions[1]),
    }


def _answers(logits_BSV: torch.Tensor, asked: Questions) -> Answers:
    said_BS = logits_BSV.argmax(dim=-1)
    right_BS = said_BS == asked.answer_BS
    places = (asked.answer_BS != IGNORED).nonzero().tolist()
    return {f"{row}.{column}": bool(right_BS[row, column]) for row, column in places}
