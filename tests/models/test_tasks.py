"""Questions: their answers are right by someone who reads tokens and pixels one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from day0.models.toy import tasks
from day0.models.toy.exam import accuracy, held_out
from day0.models.toy.model import ToyConfig
from day0.models.toy.tasks import IGNORED, Questions
from tests.models.toys import CONFIG, toy

BATCH = 9
MAKERS: dict[str, Callable[[torch.Generator], Questions]] = {
    "recall": lambda generator: tasks.recall_questions(BATCH, 12, 6, generator),
    "plain recall": lambda generator: tasks.recall_questions(BATCH, 12, 6, generator, plain=True),
    "copy": lambda generator: tasks.copy_questions(BATCH, 7, generator),
    "largest": lambda generator: tasks.largest_questions(BATCH, 20, generator),
    "image": lambda generator: tasks.image_questions(BATCH, CONFIG.vision_patch, generator),
    "one image": lambda generator: tasks.image_questions(1, CONFIG.vision_patch, generator),
}


def made(name: str, seed: int = 3) -> Questions:
    return MAKERS[name](torch.Generator().manual_seed(seed))


def read_recall(ids: list[int], start: int) -> dict[int, int]:
    table, told = tasks.facts(), dict(zip(ids[1:start:2], ids[2:start:2], strict=True))
    right = {}
    for place in range(start, len(ids), 3):
        how, key = ids[place : place + 2]
        value = told[key]
        if how == tasks.ASK_FACT:
            value = int(table[(key - tasks.KEYS.start) % tasks.CLASSES, value - tasks.VALUES.start])
        else:
            assert how == tasks.ASK
        right[place + 1] = value
    return right


def read_copy(ids: list[int], start: int) -> dict[int, int]:
    told = ids[2:start]
    assert ids[:2] == [tasks.BOS, tasks.COPY] and ids[start] == tasks.SEPARATOR and len(set(told)) == len(told)
    return {start + number: token for number, token in enumerate(told)}


def read_largest(ids: list[int], start: int) -> dict[int, int]:
    assert ids[:2] == [tasks.BOS, tasks.LARGEST]
    return {place: max(ids[2 : place + 1]) for place in range(2, len(ids))}


READERS = {"recall": read_recall, "copy": read_copy, "largest": read_largest}


@pytest.mark.parametrize("name", ["recall", "plain recall", "copy", "largest"])
def test_answers_are_right(name: str) -> None:
    questions = made(name)
    for ids, answers in zip(questions.ids_BS.tolist(), questions.answer_BS.tolist(), strict=True):
        right = READERS[questions.kind](ids, questions.question_from)
        assert {place: answer for place, answer in enumerate(answers) if answer != IGNORED} == right


@pytest.mark.parametrize("name", ["image", "one image"])
def test_colours_of_neighbours_are_right(name: str) -> None:
    """Looked up in the pixels: the marked patch by its cross, colours by channels above one half."""
    questions, patch = made(name), CONFIG.vision_patch
    assert questions.pixels is not None
    assert questions.pixels.shape[1:] == (3, tasks.GRID * patch, tasks.GRID * patch)
    for ids, answers, pixels in zip(questions.ids_BS, questions.answer_BS, questions.pixels, strict=True):
        marked = [divmod(place, tasks.GRID) for place in range(tasks.GRID**2)
                  if float(cell(pixels, *divmod(place, tasks.GRID))[:, 0, 0].min()) > 1.75]  # fmt: skip
        assert len(marked) == 1, "the cross is on one patch"
        row, column = marked[0]
        places = [place for place, answer in enumerate(answers.tolist()) if answer != IGNORED]
        assert [int(ids[place]) for place in places] != [] and len(places) == len(tasks.DIRECTIONS)
        assert {int(ids[place]) for place in places} == set(tasks.DIRECTIONS)
        for place in places:
            down, right = tasks.DIRECTIONS[int(ids[place])]
            # Beside the diagonals, where no cross can be.
            colour = cell(pixels, row + down, column + right)[:, 0, 1] > 0.5
            assert int(answers[place]) == tasks.COLOURS.start + sum(int(on) << bit for bit, on in enumerate(colour))


def cell(pixels: torch.Tensor, row: int, column: int) -> torch.Tensor:
    patch = CONFIG.vision_patch
    return pixels[:, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]


@pytest.mark.parametrize("name", MAKERS)
def test_a_generator_gives_the_same_questions_again(name: str) -> None:
    one, again, other = made(name), made(name), made(name, 4)
    assert torch.equal(one.ids_BS, again.ids_BS) and torch.equal(one.answer_BS, again.answer_BS)
    if one.pixels is not None and again.pixels is not None and other.pixels is not None:
        assert torch.equal(one.pixels, again.pixels) and not torch.equal(one.pixels, other.pixels)
    assert not torch.equal(one.ids_BS, other.ids_BS)


@pytest.mark.parametrize("name", MAKERS)
def test_tokens_are_known_and_questions_begin_where_it_says(name: str) -> None:
    questions = made(name)
    assert int(questions.ids_BS.min()) >= 0 and int(questions.ids_BS.max()) < ToyConfig().vocab_size
    asked = (questions.answer_BS != IGNORED).any(dim=0)
    first = int(asked.nonzero()[0])
    start = questions.question_from
    if questions.kind == "largest":
        assert start > 2, "there must be something to look back at"
    else:
        assert first in (start, start + 1) and not asked[:start].any()
    if questions.pixels is not None:
        assert questions.ids_BS[:, :start].eq(tasks.IMAGE).all()
        assert toy().vision_tower.tokens(questions.pixels) == start == tasks.MERGED
    # An answer that is said is the next token, so that a model is told it before the next question.
    if questions.kind != "largest":
        told = questions.ids_BS[:, 1:][asked[:-1].expand(len(questions.ids_BS), -1)]
        assert torch.equal(told, questions.answer_BS[:, :-1][:, asked[:-1]].flatten())


def test_plain_questions_ask_for_no_facts() -> None:
    plain, both = (made(name).ids_BS[:, 25::3] for name in ("plain recall", "recall"))
    assert set(plain.flatten().tolist()) == {tasks.ASK}
    assert set(both.flatten().tolist()) == {tasks.ASK, tasks.ASK_FACT}


def test_facts_are_one_table_without_a_rule() -> None:
    table = tasks.facts()
    assert torch.equal(table, tasks.facts()) and table.shape == (tasks.CLASSES, len(tasks.VALUES))
    assert set(table.flatten().tolist()) <= set(tasks.VALUES)
    assert len({tuple(row) for row in table.tolist()}) == tasks.CLASSES


def test_kinds_of_tokens_do_not_overlap() -> None:
    signs = {tasks.BOS, tasks.ASK, tasks.ASK_FACT, tasks.COPY, tasks.SEPARATOR, tasks.IMAGE, tasks.LARGEST}
    groups = [signs, set(tasks.DIRECTIONS), set(tasks.COLOURS), set(tasks.KEYS), set(tasks.VALUES)]
    assert sum(map(len, groups)) == len(set().union(*groups)) and len(signs) == 7


def test_the_exam_counts_right_answers() -> None:
    """With the answers taken from the model itself all are right, and each wrong one costs its share."""
    model = toy(dtype=torch.float32)
    for questions in held_out(2, CONFIG.vision_patch):
        with torch.no_grad():
            said_BS = model(input_ids=questions.ids_BS, pixel_values=questions.pixels).logits.argmax(dim=-1)
        asked_BS = questions.answer_BS != IGNORED
        answers = torch.where(asked_BS, said_BS, IGNORED)
        again = Questions(
            kind=questions.kind,
            ids_BS=questions.ids_BS,
            answer_BS=answers,
            pixels=questions.pixels,
            question_from=questions.question_from,
        )
        assert accuracy(model, again) == 1.0
        row, place = asked_BS.nonzero()[0].tolist()
        answers[row, place] = (answers[row, place] + 1) % CONFIG.vocab_size
        assert accuracy(model, again) == pytest.approx(1 - 1 / int(asked_BS.sum()))
