from __future__ import annotations

from pathlib import Path

import pytest

from day0.errors import Day0Error
from day0.hashing import hash_file
from day0.kernels.load import PACKAGES, load_implementation_file, load_implementations

GOOD = """
from day0.implementation import Implementation

IMPLEMENTATIONS = (
    Implementation(
        operator="aten::relu", contract=1, id="mine", version="1.0", kind="kernel", run=lambda x: x, why="a test"
    ),
)
"""


def test_every_file_is_found_by_its_name_with_origin_and_hash() -> None:
    folders = [Path(str(package.__file__)).parent for package in PACKAGES]
    files = [path for folder in folders for path in folder.glob("*.py") if not path.name.startswith("_")]
    found = load_implementations()
    assert {one.origin.partition(":")[0] for one in found} == {f"kernels/{one.parent.name}/{one.name}" for one in files}
    for one in found:
        assert one.origin.partition(":")[2].isdecimal(), one.origin
        assert one.source_hash.startswith("sha256:")
        assert one.why and one.kind == ("kernel" if one.devices == ("cuda",) else "decomposition")


def test_identities_are_unique_and_a_versioned_namespace_is_shown() -> None:
    found = load_implementations()
    assert len({str(one.identity) for one in found}) == len(found)
    assert {"base", "kimi/k3.1"} == {one.namespace for one in found}


def test_a_file_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    (one,) = load_implementation_file(path)
    assert (one.operator, one.origin, one.source_hash) == ("aten::relu", f"{path}:6", hash_file(path))


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("", "has no IMPLEMENTATIONS", ""),
        ("IMPLEMENTATIONS = 3\n", "has no IMPLEMENTATIONS", ""),
        ("IMPLEMENTATIONS = ('topk',)\n", "has no IMPLEMENTATIONS", ""),
        ("\nimport no_such_module\n", "does not run: ModuleNotFoundError", ":2"),
        ("\n\nx = (\n", "does not run: SyntaxError", ":3"),
        ("\n1 + None\n", "does not run: TypeError", ":2"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(tmp_path: Path, text: str, what: str, where: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(Day0Error, match=what) as caught:
        load_implementation_file(path)
    assert caught.value.where == f"{path}{where}" and caught.value.hint


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Day0Error, match="there is no such file"):
        load_implementation_file(tmp_path / "no.py")


def test_the_hash_of_a_kernel_covers_what_it_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paged kernel stands on the other one: a change there makes both locks stale."""
    before = {f"{one.operator} {one.id}": one.source_hash for one in load_implementations()}
    changed = "sparse_mla_prefill.py"
    monkeypatch.setattr(
        "day0.kernels.load.hash_file", lambda path: "other" if path.name == changed else hash_file(path)
    )
    after = {f"{one.operator} {one.id}": one.source_hash for one in load_implementations()}
    changed_ones = {name for name in before if before[name] != after[name]}
    assert {"day0::sparse_mla_decode gathered_rows", "day0::sparse_mla_prefill gathered_rows"} <= changed_ones
    assert "day0::topk_tokens rank_cut" not in changed_ones
