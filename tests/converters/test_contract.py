"""Every format to every target, and every architecture: a new file is found by name and held to the same rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from day0.converters.architectures.load import load_architectures, pick_architecture
from day0.converters.convert import convert
from day0.converters.folder import open_folder
from day0.converters.formats.load import load_formats
from day0.converters.pairs import pairs
from day0.converters.plan import make_plan
from day0.converters.targets.load import load_targets
from day0.converters.tiers.load import pick_tier
from day0.converters.verify import verify
from day0.errors import Day0Error
from day0.records.convert import ConversionParameters


@pytest.mark.parametrize("name", sorted(load_formats()))
def test_format(name: str, kit: Any, tmp_path: Path) -> None:
    """Found in a checkpoint of its own, converted to every target, read back, and as exact as it was said to be."""
    form = load_formats()[name]
    assert form.name == name and form.summary and (form.mx is None) != (form.values is None), name
    assert name in kit.MAKERS, f"tests/converters/conftest.py needs a checkpoint in {name}"
    make, model_type = kit.MAKERS[name]
    source = open_folder(kit.write(tmp_path / "source", make(), model_type))
    for target in load_targets().values():
        plain_to_plain = name == "plain" and target.quantisation is None
        if plain_to_plain or (target.mx_only and form.mx is None):
            with pytest.raises(Day0Error, match=r"nothing to convert|only takes four-bit"):
                make_plan(source, ConversionParameters(to=target.name))
            continue
        plan = make_plan(source, ConversionParameters(to=target.name, allow_bounded=True))
        items = [one for one in plan.items() if one.target is not None]
        assert [one.weight.format.name for one in items if one.weight] == [name]
        report = convert(plan, tmp_path / target.name, pick_tier("eager"))
        found = verify(plan, tmp_path / target.name, report)
        assert found.wrong == (), (name, target.name)
        weight = report.weights[0]
        assert weight.changed is not None and (weight.exactness == "bounded") == (weight.changed > 0)
        assert bool(weight.bound) == (weight.changed > 0)
        if weight.changed:
            statement = next(one.statement for one in pairs() if (one.source, one.target) == (name, target.name))
            assert "always exact" not in statement


@pytest.mark.parametrize("name", sorted(load_targets()))
def test_target(name: str) -> None:
    target = load_targets()[name]
    assert target.name == name and target.summary and target.from_mx and target.from_values
    assert all(one in load_targets() for one in target.finer)
    assert any(word in target.from_mx for word in ("exact", "bounded"))


@pytest.mark.parametrize("name", sorted(load_architectures()))
def test_architecture(name: str) -> None:
    found = load_architectures()[name]
    assert found.name == name and found.summary and found.rules
    for kind in found.model_types:
        assert pick_architecture("auto", {"model_type": kind}, keep_unknown=False) is found, f"{kind} is claimed twice"


def test_pairs_are_complete() -> None:
    assert len({(one.source, one.target) for one in pairs()}) == len(load_formats()) * len(load_targets())
