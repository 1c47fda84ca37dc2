from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from day0 import reference_ops
from day0.errors import Day0Error
from day0.reference_ops import load
from day0.reference_ops.load import operator_sources
from day0.registry.collect import collect, references

MINE = """\
import torch
from day0.implementation import Implementation

IMPLEMENTATIONS = (
    Implementation(
        operator="aten::silu", contract=1, id="{id}", version="1.0", kind="decomposition",
        run=lambda x: x * torch.sigmoid(x), why="x times its sigmoid", rank={rank},
    ),
)
"""


def test_a_users_file_is_collected_with_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE.format(id="mine", rank=1))
    found = [one for one in collect((path,)) if one.id == "mine"]
    assert len(found) == 1
    assert found[0].origin == f"{path}:7"
    assert found[0].source_hash.startswith("sha256:")
    path.write_text(MINE.format(id="mine", rank=2))
    assert next(one for one in collect((path,)) if one.id == "mine").source_hash != found[0].source_hash


def test_two_files_with_one_identity_are_a_conflict(tmp_path: Path) -> None:
    for name, rank in (("a.py", 1), ("b.py", 2)):
        (tmp_path / name).write_text(MINE.format(id="mine", rank=rank))
    with pytest.raises(Day0Error, match="claim this identity") as caught:
        collect((tmp_path / "a.py", tmp_path / "b.py"))
    assert all(name in str(caught.value.facts) for name in ("a.py", "b.py"))


def test_everything_that_ships_has_an_origin_and_a_hash() -> None:
    for one in collect():
        assert one.origin.startswith(("kernels/torch/", "kernels/triton/", "reference_ops/")), one
        assert len(one.source_hash) == len("sha256:") + 64, one
        assert one.why, one


def test_a_reference_stands_in_all_files_that_it_imports() -> None:
    files = [path.name for path in operator_sources("day0::kda_chunked")]
    assert files[0] == "_checks.py"  # by way of _kda.py
    assert {"_kda.py", "_spec.py", "kda_chunked.py"} <= set(files)
    # By `from day0.reference_ops import name as other` too, and never what imports the file.
    prefill = {path.name for path in operator_sources("day0::sparse_mla_prefill")}
    assert {"_cache_layouts.py", "_sparse_attention.py"} <= prefill
    assert not prefill & {"load.py", "torch_ops.py", "sparse_mla_decode.py"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose modules are found besides our own; what is found is forgotten afterwards."""
    monkeypatch.setattr(reference_ops, "__path__", [*reference_ops.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    load._found.cache_clear()
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]
    load._found.cache_clear()


@pytest.mark.parametrize("changed", ["zz_own.py", "_zz_near.py", "_zz_far.py"])
def test_a_change_in_a_helper_makes_a_reference_stale(folder: Path, changed: str) -> None:
    (folder / "zz_own.py").write_text(
        "from dataclasses import replace\nfrom day0.reference_ops import _zz_near as near\n"
        "OP = replace(near.BASE, name='day0::zz_own')\n"
    )
    (folder / "_zz_near.py").write_text(
        "def base():\n    from day0.reference_ops._zz_far import BASE\n    return BASE\nBASE = base()\n"
    )
    (folder / "_zz_far.py").write_text("from day0.reference_ops.topk_tokens import OP as BASE\n")
    before = {one.operator: one.source_hash for one in references()}
    (folder / changed).write_text((folder / changed).read_text() + "# another\n")
    after = {one.operator: one.source_hash for one in references()}
    assert {name for name in before if before[name] != after[name]} == {"day0::zz_own"}
