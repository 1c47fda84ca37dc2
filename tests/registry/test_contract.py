from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from day0.devices.profile import load_profile
from day0.errors import Day0Error
from day0.implementation import Constraints, Limit, TensorLimit
from day0.records import ScalarValue, Signature, TensorValue
from day0.registry.collect import collect
from day0.registry.contract import refuse_drift
from day0.registry.resolve import judge
from tests.registry.sampling import implementation

CPU = load_profile("cpu")


def _run(text: str) -> Callable[..., Any]:
    """Return a function with the arguments in a text."""
    space: dict[str, Any] = {"torch": torch}
    exec(f"def mine({text}): pass", space)  # noqa: S102  # the tests' own text
    found: Callable[..., Any] = space["mine"]
    return found


FITS = [
    ("day0::topk_tokens", "logits, topk, lengths=None"),
    ("day0::topk_tokens", "logits_BST, topk, lengths_BS=None"),
    ("day0::topk_tokens", "*args, **kwargs"),
    ("day0::topk_tokens", "logits, *rest, **more"),
    ("day0::mxfp4_decode", "codes, scales, dtype, order='low_first'"),
    ("day0::hyper_connection_post", "streams_BSnD, y_BSD, post_BSn, comb_BSnn"),
    ("aten::topk", "self, k, dim=-1, largest=True, sorted=True"),
    ("aten::topk", "x, k, dim=-1, largest=True, sorted=True"),
    ("aten::topk", "x, k, dim=-1, *more"),
    ("aten::topk", "*args"),
    ("aten::silu", "x, _scale=1.0"),
    ("aten::histc", "self, bins=100, min=0.0, max=0"),
    ("aten::add", "self, other, *, alpha=1"),
    ("aten::add.out", "self, other, *, alpha=1, out"),
    ("aten::zeros", "size, names=None, *, dtype=None, layout=None, device=None, pin_memory=None"),
    ("aten::_grouped_mm", "self, mat2, offs=None, bias=None, out_dtype=None"),
]

FAULTS = [
    ("day0::topk_tokens", "logits, k, lengths=None", "argument 1 is 'topk', and it has 'k' there"),
    ("day0::topk_tokens", "topk, logits, lengths=None", "argument 0 is 'logits', and it has 'topk' there"),
    ("day0::topk_tokens", "logits, topk", "there is no place for 'lengths'"),
    ("day0::topk_tokens", "logits, topk, lengths", "'lengths' has the default None, and it has none"),
    ("day0::topk_tokens", "logits, topk=8, lengths=None", "'topk' has no default, and it gives 8"),
    ("day0::topk_tokens", "logits, topk, lengths=None, fast=True", "it has 'fast' besides"),
    ("day0::topk_tokens", "logits, topk, lengths=None, /", "'logits' cannot be given by name"),
    ("day0::topk_tokens", "logits, topk, *, lengths=None", "there is no place for 'lengths'"),
    ("day0::mxfp4_decode", "codes, scales, dtype, order='high_first'", "'low_first', and it has 'high_first'"),
    ("aten::topk", "k, self, dim=-1, largest=True, sorted=True", "argument 0 is 'self', and it has 'k' there"),
    ("aten::topk", "self, k, dim=-1, largest=False, sorted=True", "'largest' has the default True, and it has False"),
    ("aten::topk", "self, k, dim, largest, sorted", "'dim' has the default -1, and it has none"),
    ("aten::topk", "self, k", "there is no place for 'dim'"),
    ("aten::silu", "self, scale", "it wants 'scale', which nothing gives it"),
    ("aten::silu", "", "there is no place for 'self'"),
    ("aten::add.Tensor", "self, other", "it cannot take the keyword 'alpha'"),
]


@pytest.mark.parametrize(("operator", "text"), FITS)
def test_what_fits(operator: str, text: str) -> None:
    refuse_drift(replace(implementation(operator), run=_run(text)))


@pytest.mark.parametrize(("operator", "text", "fault"), FAULTS)
def test_what_does_not_fit_is_refused_with_both_shown(operator: str, text: str, fault: str) -> None:
    with pytest.raises(Day0Error, match="does not fit contract") as caught:
        refuse_drift(replace(implementation(operator), run=_run(text)))
    assert fault in caught.value.what
    contract, mine = caught.value.facts
    assert contract.startswith(f"contract: {operator}(")
    assert contract.endswith(".py" if operator.startswith("day0::") else torch.__version__)
    assert mine == f"run():    mine({text}) from a.py:1"


def test_what_cannot_be_inspected_is_not_judged() -> None:
    refuse_drift(replace(implementation("aten::topk"), run=torch.topk))


def test_everything_that_ships_fits() -> None:
    for one in collect():
        refuse_drift(one)


def test_torch_leaves_out_what_equals_the_default() -> None:
    """That is why another default is another call."""
    seen: list[tuple[Any, ...]] = []

    def run(*args: Any) -> Any:
        seen.append(args)
        return args[0]

    library = torch.library.Library("day0_test_contract", "DEF")
    library.define("f(Tensor x, int k=3) -> Tensor")
    library.impl("f", run, "CPU")
    torch.ops.day0_test_contract.f(torch.ones(1), 3)
    assert len(seen[0]) == 1


@pytest.mark.parametrize(
    ("operator", "contract"), [("day0::topk_tokens", 1), ("day0::topk_tokens", 99), ("aten::silu", 2)]
)
def test_another_contract_is_refused_when_resolving_and_not_before(operator: str, contract: int) -> None:
    one = replace(implementation(operator), contract=contract, run=_run("anything"))
    refuse_drift(one)
    call = Signature(op=operator, args=(TensorValue(shape=(2,), dtype="float32", stride=(1,)),))
    decision = judge(one, call, CPU)
    assert not decision.accepted
    assert f"it is written for contract {contract} of {operator}, and contract" in decision.reason


def test_all_overloads_are_meant_only_as_far_as_they_fit() -> None:
    one = replace(implementation("aten::add"), run=_run("self, other, alpha=1"))
    tensor = TensorValue(shape=(2,), dtype="float32", stride=(1,))
    assert judge(one, Signature(op="aten::add.Tensor", args=(tensor, tensor)), CPU).accepted
    out = judge(one, Signature(op="aten::add.out", args=(tensor, tensor), kwargs={"out": tensor}), CPU)
    assert out.reason == "its run() does not fit aten::add.out: it cannot take the keyword 'out'"
    scalar = Signature(op="aten::add.Scalar", args=(tensor, ScalarValue(type="int", value="1")))
    assert judge(one, scalar, CPU).accepted


@pytest.mark.parametrize(
    ("limits", "fault"),
    [
        (Constraints(arguments={"queries": TensorLimit()}), "the operator has no argument 'queries'"),
        (Constraints(arguments={9: TensorLimit()}), "there is no argument 9: the operator has 4"),
        (Constraints(arguments={"first_position": TensorLimit()}), "'first_position' is no tensor"),
        (Constraints(arguments={"q": Limit(at_least=3)}), "'q' is a tensor"),
        (Constraints(equal=((("q", 0), ("first_position", 0)),)), "equal: the operator has no tensor 'first_position'"),
        (Constraints(any_of=(Constraints(arguments={"x": Limit()}),)), "the operator has no argument 'x'"),
    ],
)
def test_constraints_name_what_the_schema_has(limits: Constraints, fault: str) -> None:
    one = implementation("day0::lightning_indexer", limits=limits)
    with pytest.raises(Day0Error, match="constraints of day0::lightning_indexer") as caught:
        refuse_drift(one)
    assert fault in caught.value.what
    assert any("day0::lightning_indexer(Tensor q, Tensor k" in fact for fact in caught.value.facts)


MINE = """
from day0.implementation import Constraints, Implementation, Limit

def indexer(q, k, w{extra}):
    return q

IMPLEMENTATIONS = (
    Implementation(
        operator="day0::lightning_indexer", contract=1, id="mine", version="1.0", kind="kernel", run=indexer, why="it",
        constraints=Constraints({limits}),
    ),
)
"""


@pytest.mark.parametrize(
    ("extra", "limits", "what"),
    [
        ("", "", "does not fit contract 1: there is no place for 'first_position'"),
        (", first_position", "max_rank=-1", "max_rank: -1 is no number of dimensions"),
        (", first_position", "arguments={'p': Limit()}", "the operator has no argument 'p'"),
    ],
)
def test_a_users_file_is_refused_when_it_is_loaded(tmp_path: Path, extra: str, limits: str, what: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE.format(extra=extra, limits=limits))
    with pytest.raises(Day0Error) as caught:
        collect((path,))
    assert what in caught.value.what
    assert caught.value.where.startswith(str(path))
