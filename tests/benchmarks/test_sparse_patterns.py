"""Which tokens a query reads, by rules: each keeps what it says, and the indexer's rule is the model itself.

Shape suffixes: B batch, S queries, T tokens.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from day0.models.toy.exam import HELD_OUT_SEED
from day0.models.toy.model import ToyConfig, make_toy
from day0.models.toy.tasks import recall_questions
from day0.models.toy.weights import load_weights

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sparse_patterns.py"
DSA, GLOBAL, NEWEST = "DSA: the indexer's top-k", "global top-k", "fixed: the newest blocks"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sparse_patterns", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_rule_keeps_visible_tokens_and_no_more_than_asked(script: ModuleType) -> None:
    visible_BST = torch.ones(1, 23, 23, dtype=torch.bool).tril()
    weight_BST = torch.rand(1, 23, 23, generator=torch.Generator().manual_seed(1))
    chosen_BST = visible_BST & (torch.arange(23) < 8)
    kept = {name: rule((visible_BST, weight_BST, chosen_BST), 8) for name, rule in script.PATTERNS.items()}
    for name, one_BST in kept.items():
        assert not bool((one_BST & ~visible_BST).any()), name
        assert bool(one_BST.any(dim=-1).all()), name
        assert name == "dense" or int(one_BST.sum(dim=-1).max()) == 8, name
    assert kept[NEWEST][0, 22].nonzero().flatten().tolist() == [16, 17, 18, 19, 20, 21, 22]
    both = kept["fixed: the first and the newest"][0, 22]
    assert both.nonzero().flatten().tolist() == [0, 1, 2, 3, 20, 21, 22]
    least_kept = weight_BST[0, 22][kept[GLOBAL][0, 22]].min()
    assert bool((weight_BST[0, 22][~kept[GLOBAL][0, 22]] <= least_kept).all())


def test_the_indexers_rule_is_the_model_itself_and_others_are_further_from_dense(script: ModuleType) -> None:
    questions = recall_questions(1, 24, 2, torch.Generator().manual_seed(HELD_OUT_SEED))
    ids_BS, first = questions.ids_BS, questions.question_from

    def logits(calls: object) -> torch.Tensor:
        model = make_toy(ToyConfig(), calls=calls)
        load_weights(model)
        with torch.no_grad():
            before = model(input_ids=ids_BS[:, :first])
            after = model(input_ids=ids_BS[:, first : first + 1], past_key_values=before.past_key_values)
        return torch.cat((before.logits, after.logits), dim=1)

    reads = {name: script.Reads(name, ToyConfig().index_topk) for name in ("dense", DSA, GLOBAL, NEWEST)}
    found = {name: logits(one) for name, one in reads.items()}
    torch.testing.assert_close(found[DSA], logits(None), rtol=1e-4, atol=1e-4)
    for phase in ("prefill", "decode"):
        error = {name: one.error(phase) for name, one in reads.items()}
        assert error["dense"] == 0.0
        assert 0.0 < error[GLOBAL] <= error[DSA] < 0.5 * error[NEWEST], phase


def test_the_page_has_a_row_for_every_rule(script: ModuleType) -> None:
    page = script.PAGE.read_text(encoding="utf-8")
    made = page.partition(script.BEGIN)[2].partition(script.END)[0]
    rows = [line.split(" | ") for line in made.splitlines() if line.startswith("| ")]
    assert [cells[0].removeprefix("| ") for cells in rows[2:]] == list(script.PATTERNS)
    for name, cells in zip(script.PATTERNS, rows[2:], strict=True):
        cached, read = script.memory(name)
        assert cells[-2:] == [f"{cached:,}", f"{read / 2**20:.1f} |"], name
