"""The weights that ship answer questions; each planted mistake costs answers."""

from __future__ import annotations

from functools import cache

import pytest

from day0.models.toy.exam import exam, held_out
from day0.models.toy.faults import FAULTS, faulty
from day0.models.toy.model import ToyConfig, make_toy
from day0.models.toy.tasks import Questions
from day0.models.toy.weights import load_weights

CONFIG = ToyConfig()
PROMPTS = 24


@cache
def questions() -> tuple[Questions, ...]:
    return held_out(PROMPTS, CONFIG.vision_patch)


@cache
def shares(fault: str = "") -> dict[str, float]:
    model = make_toy(CONFIG, calls=faulty(fault) if fault else None)
    load_weights(model)
    return exam(model, questions())


def test_the_questions_reach_beyond_the_sparse_top_k() -> None:
    for one in questions():
        if one.kind in ("recall", "largest"):
            assert one.question_from > CONFIG.index_topk


@pytest.mark.parametrize("kind", ["recall", "largest", "copy", "image"])
def test_the_toy_answers_held_out_questions(kind: str) -> None:
    assert shares()[kind] >= 0.95


# Ten seconds each. Each time tests/analyzers/modules/test_toy_faults.py plants the same mistakes, and their modules are named.
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_each_mistake_costs_answers(fault: str) -> None:
    right, wrong = shares(), shares(fault)
    assert max(right[kind] - wrong[kind] for kind in right) >= 0.05
