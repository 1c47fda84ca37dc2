"""Index tables: what is read is counted, and layers without an indexer read what was chosen before them."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch

from day0.models.driver import step
from day0.models.index_manager import IndexManager
from day0.models.toy.mla import MlaAttention
from tests.models.toys import TOPK, config_of, ids, toy

CPU = torch.device("cpu")


def chosen(seed: int, tokens: int) -> torch.Tensor:
    """Return indices [2, 3, 5] int32, -1 among them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, tokens, (2, 3, 5), generator=generator, dtype=torch.int32)


def counted(tables: list[torch.Tensor], tokens: int) -> list[list[int]]:
    bags = [Counter(int(one) for table in tables for one in table[row].flatten()) for row in range(2)]
    return [[bag[token] for token in range(tokens)] for bag in bags]


def test_reads_are_counts_and_later_tables_add_up() -> None:
    manager, tables = IndexManager(record=True), []
    for seed, tokens in ((0, 7), (1, 7), (2, 12)):
        tables.append(chosen(seed, tokens))
        manager.start("a", lambda: tables[-1], CPU)
        assert manager.table("a", tokens) is tables[-1]
        assert manager.reads["a"].tolist() == counted(tables, tokens)
    assert min(int(one.min()) for one in tables) == -1, "nothing to ignore"
    assert manager.reads["a"].dtype == torch.int64


def test_layers_are_counted_apart_and_another_batch_begins_anew() -> None:
    manager = IndexManager(record=True)
    one, other = chosen(0, 7), chosen(1, 7)
    for layer, table in (("a", one), ("b", other)):
        manager.start(layer, partial(torch.clone, table), CPU)
        manager.table(layer, 7)
    assert manager.reads["a"].tolist() == counted([one], 7) and manager.reads["b"].tolist() == counted([other], 7)
    manager.start("a", lambda: one[:1], CPU)
    manager.table("a", 7)
    assert manager.reads["a"].tolist() == counted([one], 7)[:1]


def test_nothing_is_counted_unless_asked() -> None:
    manager = IndexManager()
    manager.start("a", lambda: chosen(0, 7), CPU)
    manager.table("a", 7)
    assert manager.reads == {}


def test_a_selection_runs_ahead_of_the_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts before the main path makes its queries and is fetched after them; it is fetched once."""
    model, order = toy(config_of("kimi-k3.1")), []
    layer = model.get_submodule("layers.3.self_attn")
    assert isinstance(layer, MlaAttention) and layer.indexer is not None
    layer.indexer.register_forward_pre_hook(lambda *_args: order.append("select"))
    layer.q_b_proj.register_forward_pre_hook(lambda *_args: order.append("query"))
    fetch = layer.manager.table

    def table(name: str, tokens: int) -> torch.Tensor:
        order.append("table")
        return fetch(name, tokens)

    monkeypatch.setattr(layer.manager, "table", table)
    step(model, ids(1, 5))
    assert order == ["select", "query", "table"] and layer.manager._pending == {}


def test_recorded_reads_of_a_model_are_what_its_layers_chose() -> None:
    model, ids_BS = toy(config_of("deepseek-v3.2")), ids(2, 3 * TOPK)
    attention = [one for one in model.modules() if isinstance(one, MlaAttention)]
    seen: list[list[torch.Tensor]] = [[] for _ in attention]
    for number, one in enumerate(attention):
        one.manager.record = True
        one.register_forward_hook(lambda _module, _args, output, number=number: seen[number].append(output[1]))
    output = step(model, ids_BS)
    step(model, ids_BS[:, :1], output.cache)
    for number, one in enumerate(attention):
        name = f"layers.{number}.self_attn"
        assert one.manager.reads[name].tolist() == counted(seen[number], 3 * TOPK + 1)
        # Each query reads as many tokens as it can: 1, 2, up to the top-k.
        expected = sum(min(place + 1, TOPK) for place in range(3 * TOPK + 1))
        assert one.manager.reads[name].sum(dim=1).tolist() == [expected, expected]


def test_a_layer_without_an_indexer_reads_what_the_one_before_chose() -> None:
    model = toy(config_of("glm-5"))
    seen: list[Any] = []
    for layer in model.layers:
        layer.register_forward_hook(lambda _module, _args, output: seen.append(output[2]))
    output = step(model, ids(2, 3 * TOPK))
    step(model, ids(2, 1), output.cache)
    for one in (seen[:4], seen[4:]):
        assert one[1] is one[0] and one[3] is one[2], "a shared layer chose for itself"
        assert not torch.equal(one[0], one[2])
    names = set(model.state_dict())
    assert {name.split(".")[1] for name in names if ".indexer." in name} == {"0", "2"}
