"""The toy cut over ranks, which are threads of one process here: together they compute what the whole model does."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from day0.analyzers.parallel import trace_one_rank
from day0.analyzers.ranks.memory import held_bytes
from day0.errors import Day0Error
from day0.models.driver import step
from day0.models.source import open_model
from day0.models.spec import ModelSpec
from day0.models.toy import ranks as toy_ranks
from day0.models.toy.model import ToyModel
from day0.models.toy.ranks import cut_toy, plan_of_toy
from day0.models.workload import Phase, token_ids
from day0.playbook import ModelPlan

EVEN = {"vision": False, "kda_heads": 4, "mla_heads": 4, "shared_intermediate_size": 20, "n_experts": 12}
PHASES = (
    Phase(name="prefill", batch=1, tokens=6, context=0, reason="test"),
    Phase(name="decode", batch=1, tokens=1, context=6, reason="test"),
)


def toy(source: str = "toy", **changes: object) -> ModelSpec:
    return open_model(ModelPlan(source=source, set={**EVEN, **changes}, dtype="float64"))


class Group:
    """Collectives between threads, in the place of torch.distributed."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks, timeout=60.0)
        self.given: dict[int, torch.Tensor] = {}
        self.own = threading.local()

    def all_reduce(self, mine: torch.Tensor) -> None:
        mine.copy_(torch.stack(self._all(mine)).sum(dim=0))

    def all_gather(self, parts: list[torch.Tensor], mine: torch.Tensor) -> None:
        for part, one in zip(parts, self._all(mine), strict=True):
            part.copy_(one)

    def _all(self, mine: torch.Tensor) -> list[torch.Tensor]:
        self.given[self.own.rank] = mine.clone()
        self.barrier.wait()
        every = [self.given[rank] for rank in sorted(self.given)]
        self.barrier.wait()
        return every


def logits_of_ranks(spec: ModelSpec, ids_BS: torch.Tensor, ranks: int) -> list[torch.Tensor]:
    """Return the logits of prefill and of a token of decode of every rank, one after the other."""
    group, found = Group(ranks), dict[int, torch.Tensor]()

    def work(rank: int) -> None:
        group.own.rank = rank
        model = spec.build("cpu")
        assert isinstance(model, ToyModel)
        cut_toy(model, rank, ranks)
        found[rank] = both(model, ids_BS)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toy_ranks, "dist", group)
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    return [found[rank] for rank in range(ranks)]


def both(model: nn.Module, ids_BS: torch.Tensor) -> torch.Tensor:
    before = step(model, ids_BS[:, :-1])
    after = step(model, ids_BS[:, -1:], before.cache)
    return torch.cat((before.logits_BSV, after.logits_BSV), dim=1)


@pytest.mark.parametrize(("source", "ranks"), [("toy", 4), ("toy:deepseek-v3.2", 2)])
def test_ranks_together_are_the_whole_model(source: str, ranks: int) -> None:
    spec = toy(source)
    ids_BS = token_ids(spec, 2, 14, seed=1)
    whole_BSV = both(spec.build("cpu"), ids_BS)
    for part_BSV in logits_of_ranks(spec, ids_BS, ranks):
        assert torch.allclose(part_BSV, whole_BSV, rtol=1e-9, atol=1e-9), "float64: nothing but the order of sums"


def test_a_rule_left_out_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = toy(num_hidden_layers=2, mla_layers=[2])
    rules = {name: style for name, style in toy_ranks.TENSORS.items() if "A_log" not in name}
    monkeypatch.setattr(toy_ranks, "TENSORS", {**rules, "layers.*.self_attn.(A_log|k_b|v_b)": "heads"})
    model = spec.build("cpu")
    assert isinstance(model, ToyModel)
    cut_toy(model, 0, 2)
    with pytest.raises((RuntimeError, ValueError)):
        both(model, token_ids(spec, 1, 4, seed=1))


def test_what_is_cut_and_what_is_whole() -> None:
    model = toy().build("cpu")
    assert isinstance(model, ToyModel)
    tensors, experts = plan_of_toy(model)
    assert tensors["layers.0.self_attn.A_log"] == "heads"
    assert tensors["layers.4.self_attn.q_b_proj.weight"] == "colwise"
    assert tensors["layers.1.mlp.shared_experts.w2.weight"] == "rowwise"
    assert set(experts) == {name for name, _ in model.named_buffers() if ".experts." in name}
    assert not [name for name in tensors if "norm" in name or "indexer" in name or ".gate." in name or "_res" in name]
    whole = held_bytes(model)
    cut_toy(model, 1, 4)
    assert model.lm_head.weight.shape[0] == 30
    assert held_bytes(model) < 0.6 * whole, "what was cut away is not held by a view"


def test_a_rank_of_the_toy_is_traced_with_its_collectives() -> None:
    spec = toy(num_hidden_layers=2, mla_layers=[2])
    trace = trace_one_rank(spec, PHASES, 2)
    assert trace.parallel is not None
    assert trace.parallel.plan["layers.*.mlp.experts.w1.codes"] == "grouped_gemm"
    assert any(one.signature.op.startswith("c10d::allreduce_") for one in trace.entries)
    assert any(one.signature.op.startswith("c10d::allgather_") for one in trace.entries)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kda_heads": 3}, "kda_heads is 3, which does not divide by 2 ranks"),
        ({"n_experts": 9}, "(grouped_gemm) has size 9 in dimension 0"),
        ({"expert_slots": 8}, "an expert cache is made for all experts"),
    ],
)
def test_what_cannot_be_cut_is_refused(changes: dict[str, object], words: str) -> None:
    spec = toy("toy", **changes)
    with pytest.raises(Day0Error) as caught:
        trace_one_rank(spec, PHASES, 2)
    assert words in caught.value.what


@pytest.mark.slow
def test_weights_drawn_where_the_model_lies_are_weights() -> None:
    spec = toy()
    assert spec.draw is not None
    one, other = spec.draw("cpu"), spec.draw("cpu")
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))
    logits_BSV = both(one, token_ids(spec, 1, 9, seed=1))
    assert torch.isfinite(logits_BSV).all()
    assert logits_BSV.std() > 0.1
