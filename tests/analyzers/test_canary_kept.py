"""Passes of the reference that are kept: read again for the same model, refused for another, no harm when cut off."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from day0.analyzers.canary.context import CanaryContext
from day0.analyzers.canary.kept import Kept, Stored, hash_of_tensors
from day0.analyzers.canary.reference import history_of, told
from day0.analyzers.modules.passes import token_calls
from day0.errors import Day0Error
from day0.models.source import open_model
from day0.models.workload import token_ids
from day0.playbook import ModelPlan
from day0.records import Lock
from day0.registry.dispatch import activate

CPU = torch.device("cpu")
MODEL = {"model": "sha256:aa", "weights": "sha256:bb", "dtype": "torch.float32", "torch": "2"}


def _stored() -> Stored:
    return Stored(tensors={"golden": torch.arange(3.0)}, facts={"golden": [["a", 0, "op", [1, 1]]]})


def test_a_pass_is_found_by_its_name_and_inputs_alone(tmp_path: Path) -> None:
    kept = Kept(folder=tmp_path, model=MODEL)
    assert kept.find("all_layers", [1, 2]) is None
    kept.keep("all_layers", [1, 2], _stored())
    found = kept.find("all_layers", [1, 2])
    assert found is not None and torch.equal(found.tensors["golden"], torch.arange(3.0))
    assert found.facts == _stored().facts
    assert kept.find("all_layers", [1, 3]) is None
    assert kept.find("other", [1, 2]) is None
    assert Kept(folder=tmp_path, model={**MODEL, "weights": "sha256:cc"}).find("all_layers", [1, 2]) is None


def test_a_folder_of_another_model_is_refused_where_the_user_named_it(tmp_path: Path) -> None:
    Kept(folder=tmp_path, model=MODEL).keep("all_layers", [1, 2], _stored())
    other = Kept(folder=tmp_path, model={**MODEL, "weights": "sha256:cc"}, strict=True)
    with pytest.raises(Day0Error, match="the reference belongs to another model: it differs in weights") as caught:
        other.find("all_layers", [1, 2])
    assert "sha256:bb there, sha256:cc here" in caught.value.facts[0]
    same = Kept(folder=tmp_path, model=MODEL, strict=True)
    assert same.find("all_layers", [1, 3]) is None, "another prompt of the same model is only not there"


def test_a_file_that_says_it_is_of_another_model_is_refused_whatever_its_name(tmp_path: Path) -> None:
    mine, theirs = Kept(folder=tmp_path / "a", model=MODEL), Kept(folder=tmp_path / "b", model={**MODEL, "dtype": "x"})
    mine.keep("all_layers", [], _stored())
    theirs.keep("all_layers", [], _stored())
    (ours,), (other,) = (list((tmp_path / name).glob("*.safetensors")) for name in "ab")
    other.rename(ours)
    with pytest.raises(Day0Error, match="it differs in dtype"):
        mine.find("all_layers", [])


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"x" * 100])
def test_a_file_that_is_cut_off_is_made_again(tmp_path: Path, damage: object) -> None:
    kept = Kept(folder=tmp_path, model=MODEL)
    kept.keep("all_layers", [], _stored())
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(damage(file.read_bytes()))  # type: ignore[operator]  # one of the functions above
    assert kept.find("all_layers", []) is None
    kept.keep("all_layers", [], _stored())
    assert kept.find("all_layers", []) is not None


def test_the_hash_of_tensors_sees_bits_names_and_shapes() -> None:
    base = {"a": torch.zeros(4), "b": torch.ones(2, dtype=torch.bfloat16), "c": torch.empty(0)}
    assert hash_of_tensors(base) == hash_of_tensors({name: base[name].clone() for name in reversed(base)})
    others = [{**base, "a": -base["a"]}, {**base, "a": base["a"].view(2, 2)}, {**base, "d": torch.zeros(1)}]
    assert len({hash_of_tensors(one) for one in (base, *others)}) == 4


@pytest.fixture
def context(tmp_path: Path) -> Iterator[CanaryContext]:
    with activate(Lock(device="cpu", namespace="base", model="x", entries=()), CPU, []) as active:
        spec = open_model(ModelPlan(source="toy", dtype="float32"))
        kept = Kept(folder=tmp_path / "reference", model=MODEL)
        yield CanaryContext(
            spec=spec, device=CPU, active=active, evidence=tmp_path, prompt_tokens=6, new_tokens=2, kept=kept
        )


def _without_models(context: CanaryContext) -> CanaryContext:
    """A context in which building a reference fails: what it needs has to be on disk."""

    def build(device: str) -> torch.nn.Module:
        raise AssertionError("the reference was built again")

    return dataclasses.replace(context, spec=dataclasses.replace(context.spec, build=build), models={})


def test_a_pass_and_a_history_are_made_once_and_are_the_same_when_read(context: CanaryContext) -> None:
    ids_BS = token_ids(context.spec, 1, 12, seed=1)
    calls = token_calls(ids_BS)
    made, history = told(context, "x", calls, ids_BS.tolist()), history_of(context, ids_BS, 2)
    again = _without_models(context)
    read, read_history = told(again, "x", calls, ids_BS.tolist()), history_of(again, ids_BS, 2)
    assert torch.equal(read.golden_BSV, made.golden_BSV) and torch.equal(read.same_BSV, made.same_BSV)
    assert read.golden_BSV.dtype == torch.float64
    for mine, theirs in (
        (made.choices, read.choices),
        (made.noise, read.noise),
        (history.choices, read_history.choices),
    ):
        assert mine.keys() == theirs.keys() and mine
        for place, one in mine.items():
            assert torch.equal(one.chosen, theirs[place].chosen) and torch.equal(one.scores, theirs[place].scores)
            assert (one.op, one.groups) == (theirs[place].op, theirs[place].groups)
    assert (read_history.draws, read_history.seed) == (history.draws, history.seed)
    assert torch.equal(read_history.ids_BS, history.ids_BS)
    with pytest.raises(AssertionError, match="built again"):
        told(again, "x", calls, "another prompt")
