from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
import torch

from day0.errors import Day0Error
from day0.implementation import Constraints
from day0.registry import conflicts
from day0.registry.collect import without_conflicts
from day0.registry.conflicts import (
    Claim,
    find_key_taken,
    find_same_identity,
    find_shared_targets,
    find_unknown_targets,
    owner_of,
    refuse,
)
from day0.registry.dispatcher import registrations
from tests.registry.sampling import implementation

ONE = implementation("aten::topk", origin="a.py:3")
OTHER = replace(ONE, origin="acme 1.2, acme/topk.py:9", source_hash="sha256:2")


def test_one_identity_with_two_contents_names_both_in_any_order() -> None:
    seen = set()
    for pair in ((ONE, OTHER), (OTHER, ONE)):
        with pytest.raises(Day0Error, match="claim this identity with different content") as caught:
            without_conflicts(pair)
        seen.add(caught.value.facts)
    assert seen == {
        (
            "aten::topk@1 base:a==1.0 from a.py:3  sha256:1",
            "aten::topk@1 base:a==1.0 from acme 1.2, acme/topk.py:9  sha256:2",
        )
    }


@pytest.mark.parametrize("versions", [("1.0", "1.0.0"), ("1.0a1", "1.0alpha1"), ("1.0.post1", "1.0-1")])
def test_one_version_written_in_two_ways_is_one_identity(versions: tuple[str, str]) -> None:
    pair = [replace(ONE, version=one) for one in versions]
    (found,) = find_same_identity(pair)
    assert "are the same version, written differently" in found.what
    with pytest.raises(Day0Error, match="written differently"):
        without_conflicts(pair[::-1])
    assert not find_same_identity([replace(ONE, version=one) for one in ("1.0", "1.1", "1.0+local")])


def test_one_source_that_says_two_things() -> None:
    for change in ({"rank": 3}, {"constraints": Constraints(max_rank=2)}, {"devices": ("cuda",)}):
        with pytest.raises(Day0Error, match="one source and different declarations"):
            without_conflicts((ONE, replace(ONE, **change)))
    assert without_conflicts((ONE, replace(ONE, origin="b.py:3"))) == (ONE,)


def test_two_owners_of_one_target_of_an_engine() -> None:
    claims = [Claim(engine="vllm", target="SiluAndMul", owner=owner_of(one)) for one in (ONE, OTHER)]
    more = Claim(engine="vllm", target="RMSNorm", owner=owner_of(ONE))
    for order in itertools.permutations((*claims, more)):
        (found,) = find_shared_targets(order)
        assert (found.kind, found.where, len(found.owners)) == ("shared_target", "vllm: SiluAndMul", 2)
    assert not find_shared_targets((claims[0], claims[0], more))


def test_a_target_that_the_engine_does_not_have() -> None:
    claims = [Claim(engine="vllm", target=name, owner=owner_of(ONE)) for name in ("SiluAndMull", "RMSNorm")]
    (found,) = find_unknown_targets(claims, {"SiluAndMul", "RMSNorm"}, engine_version="0.33.0")
    error = found.error()
    assert str(error) == "vllm 0.33.0: SiluAndMull: the engine has no 'SiluAndMull', so it would never be called"
    assert (error.hint, error.facts) == (
        "did you mean SiluAndMul?",
        ("aten::topk@1 base:a==1.0 from a.py:3  sha256:1",),
    )


def test_what_is_raised_first_does_not_depend_on_what_was_found_first() -> None:
    found = [
        *find_shared_targets(Claim(engine="sglang", target="x", owner=owner_of(one)) for one in (ONE, OTHER)),
        *find_same_identity((ONE, OTHER)),
    ]
    raised = set()
    for order in itertools.permutations(found):
        with pytest.raises(Day0Error) as caught:
            refuse(order)
        raised.add(str(caught.value))
    assert len(raised) == 1
    refuse(())


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[ModuleType]:
    """Another library that puts a kernel of its own over torch's, from a file of its own."""
    path = tmp_path / "their_library.py"
    path.write_text(
        "import torch\n"
        "LIBRARY = torch.library.Library('aten', 'IMPL')\n"
        "LIBRARY.impl('histc', lambda *args: args[0], 'XPU')\n"
        "@torch.library.custom_op('day0_test_theirs::f', mutates_args=(), device_types='cpu')\n"
        "def f(x: torch.Tensor) -> torch.Tensor:\n"
        "    return x + 1\n"
    )
    module = ModuleType("their_library")
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)  # noqa: S102  # the tests' own text
    yield module
    module.LIBRARY._destroy()


def test_a_key_that_another_library_has_taken_is_named_with_its_file(theirs: ModuleType, tmp_path: Path) -> None:
    (found,) = find_key_taken("aten::histc", "XPU")
    assert (found.kind, found.where) == ("key_taken", "torch: aten::histc at XPU")
    assert found.owners[0].origin == f"{tmp_path / 'their_library.py'}:2"
    assert not find_key_taken("aten::histc", "CPU")
    (custom,) = find_key_taken("day0_test_theirs::f", "CPU")
    assert custom.owners[0].origin == f"{tmp_path / 'their_library.py'}:4"


def test_a_hidden_kernel_is_said_to_be_hidden(tmp_path: Path) -> None:
    library = torch.library.Library("aten", "IMPL")
    try:
        for _ in range(1):
            library.impl("histc", lambda *args: args[0], "XPU")
        assert [(one.key, one.active) for one in registrations("aten::histc") if one.key == "XPU"] == [("XPU", True)]
        assert find_key_taken("aten::histc", "XPU")
    finally:
        library._destroy()
    assert not find_key_taken("aten::histc", "XPU")
    assert registrations("nobody::knows") == ()


def test_torch_and_day0_are_no_strangers() -> None:
    from day0.reference_ops.torch_ops import register_operators

    register_operators()
    assert registrations("day0::topk_tokens")
    for op in ("day0::topk_tokens", "aten::topk", "aten::add.Tensor", "aten::silu"):
        for key in ("CPU", "Meta", "CUDA", "PrivateUse1", "CompositeImplicitAutograd"):
            assert not find_key_taken(op, key), (op, key)


def test_there_are_six_kinds() -> None:
    assert len(get_args(conflicts.Kind)) == 6
