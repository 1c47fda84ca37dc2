from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from day0.errors import Day0Error
from day0.records import Identity, LockEntry
from day0.registry.collect import collect
from day0.registry.conflicts import find_same_identity
from day0.registry.entry_points import load_entry_points, refuse_missing_distribution
from day0.registry.namespaces import load_parents, merge_parents, search_path

KERNEL = """
from day0.implementation import Implementation
from acme_{name}.helper import run

IMPLEMENTATIONS = (
    Implementation(
        operator="aten::silu", contract=1, id="{id}", version="1.0", kind="kernel", run=run, why="theirs",
        namespace="{namespace}",
    ),
)
NAMESPACES = {parents}
"""

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install packages as pip leaves them: a folder with sources and one with metadata, each place on sys.path."""
    before = set(sys.modules)

    def make(
        name: str,
        *,
        version: str = "1.2",
        id: str = "theirs",
        namespace: str = "base",
        parents: dict[str, str] | None = None,
        source: str | None = None,
        value: str | None = None,
    ) -> Path:
        place = tmp_path / f"site-{name}-{version}"
        package = place / f"acme_{name}"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "helper.py").write_text("def run(x):\n    return x\n")
        text = (
            source
            if source is not None
            else KERNEL.format(name=name, id=id, namespace=namespace, parents=parents or {})
        )
        (package / "kernels.py").write_text(text)
        info = place / f"acme_{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: acme-{name}\nVersion: {version}\n")
        target = value or f"acme_{name}.kernels"
        (info / "entry_points.txt").write_text(f"[day0.implementations]\nmain = {target}\n")
        monkeypatch.syspath_prepend(place)
        return place

    yield make
    for module in set(sys.modules) - before:
        del sys.modules[module]
    importlib.invalidate_caches()


def test_nothing_is_installed_here() -> None:
    assert load_entry_points() == ()


def test_what_a_package_brings_has_its_name_its_place_and_the_hash_of_its_files(install: Install) -> None:
    place = install("one", namespace="acme/v2", parents={"acme/v2": "acme/v1", "acme/v1": "base"})
    (found,) = [one for one in collect() if one.id == "theirs"]
    assert found.distribution == "acme-one==1.2"
    assert found.origin == "acme-one 1.2, acme_one/kernels.py:5"  # its run() stands in the helper
    assert search_path("acme/v2", load_parents()) == ("acme/v2", "acme/v1", "base")
    (place / "acme_one" / "helper.py").write_text("def run(x):\n    return 2 * x\n")
    (changed,) = [one for one in collect() if one.id == "theirs"]
    assert changed.source_hash != found.source_hash
    (place / "acme_one" / "kernel.cu").write_text("__global__")
    (again,) = [one for one in collect() if one.id == "theirs"]
    assert again.source_hash != changed.source_hash
    (place / "acme_one" / "__pycache__").mkdir(exist_ok=True)
    (place / "acme_one" / "__pycache__" / "x.pyc").write_text("")
    assert [one for one in collect() if one.id == "theirs"] == [again]


def test_the_line_is_there_where_the_function_is_in_the_module(install: Install) -> None:
    install(
        "two",
        source="from day0.implementation import Implementation\ndef run(x): return x\nIMPLEMENTATIONS = (\n"
        " Implementation(operator='aten::silu', contract=1, id='z', version='1', kind='kernel', run=run, why=''),)",
    )
    assert [one.origin for one in collect() if one.id == "z"] == ["acme-two 1.2, acme_two/kernels.py:2"]


def test_the_order_of_sys_path_does_not_matter(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [str(install(name, id=name)) for name in ("c", "a", "b")]
    rest = [one for one in sys.path if one not in places]
    seen = set()
    for order in itertools.permutations(places):
        monkeypatch.setattr(sys, "path", [*order, *rest])
        seen.add(tuple((one.distribution, one.name) for one in load_entry_points()))
        seen.add(tuple((f"acme-{one.id}==1.2", "main") for one in collect() if one.distribution))
    assert seen == {(("acme-a==1.2", "main"), ("acme-b==1.2", "main"), ("acme-c==1.2", "main"))}


def test_two_packages_with_one_identity_are_a_conflict_that_names_both(install: Install) -> None:
    install("a")
    install("b")
    with pytest.raises(Day0Error, match="claim this identity with different content") as caught:
        collect()
    assert "acme-a 1.2, acme_a/kernels.py" in caught.value.facts[0]
    assert "acme-b 1.2, acme_b/kernels.py" in caught.value.facts[1]
    assert [one.id for one in collect(without=("acme-b",)) if one.distribution] == ["theirs"]


@pytest.mark.parametrize(
    ("source", "value", "what"),
    [
        ("import no_such_module", None, "it does not load: ModuleNotFoundError: No module named 'no_such_module'"),
        ("1 / 0", None, "it does not load: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", None, "it does not load: SystemExit: 3"),
        ("x = (", None, "it does not load: SyntaxError"),
        ("", None, "it has no IMPLEMENTATIONS"),
        ("IMPLEMENTATIONS = 'no'", None, "it has no IMPLEMENTATIONS"),
        ("IMPLEMENTATIONS = ()\nNAMESPACES = ['acme']", None, "NAMESPACES is ['acme'], and not a dict"),
        ("IMPLEMENTATIONS = ()\nNAMESPACES = {'base': 'acme'}", None, "NAMESPACES is {'base': 'acme'}"),
        ("", "acme_bad.nowhere", "it does not load: ModuleNotFoundError: No module named 'acme_bad.nowhere'"),
        ("", "acme_bad.kernels:IMPLEMENTATIONS", "is not the name of a module"),
        ("", "../../etc", "is not the name of a module"),
    ],
)
def test_a_broken_entry_point_is_named_with_a_way_on(
    install: Install, source: str, value: str | None, what: str
) -> None:
    install("bad", source=source, value=value)
    with pytest.raises(Day0Error) as caught:
        collect()
    assert what in caught.value.what
    assert caught.value.where.startswith("acme-bad 1.2, entry point main = ")
    assert "--without acme-bad" in caught.value.hint
    assert collect(without=("Acme_Bad",))


def test_a_package_that_is_to_be_left_out_must_be_there(install: Install) -> None:
    install("one")
    with pytest.raises(Day0Error, match="no installed package 'acme-won'") as caught:
        collect(without=("acme-won",))
    assert caught.value.hint == "did you mean acme-one?"


def test_two_parents_that_disagree(install: Install) -> None:
    install("a", parents={"acme/v2": "acme/v1", "acme/v1": "base"}, id="a")
    install("b", parents={"acme/v2": "base"}, id="b")
    with pytest.raises(Day0Error, match="two parents that disagree") as caught:
        collect()
    assert caught.value.where == "namespace acme/v2"
    assert caught.value.facts == (
        "'acme/v1' by acme-a 1.2, entry point main = acme_a.kernels",
        "'base' by acme-b 1.2, entry point main = acme_b.kernels",
    )


def test_parents_in_a_circle_over_two_files(tmp_path: Path) -> None:
    for name, child, parent in (("a", "acme/x", "acme/y"), ("b", "acme/y", "acme/z"), ("c", "acme/z", "acme/x")):
        (tmp_path / f"{name}.py").write_text(f"IMPLEMENTATIONS = ()\nNAMESPACES = {{'{child}': '{parent}'}}\n")
    files = [tmp_path / f"{name}.py" for name in "abc"]
    messages = set()
    for order in itertools.permutations(files):
        with pytest.raises(Day0Error, match="circle: acme/x → acme/y → acme/z → acme/x") as caught:
            load_parents(order)
        messages.add(caught.value.facts)
    assert len(messages) == 1
    assert f"'acme/y' is under 'acme/z' by {tmp_path / 'b.py'}" in messages.pop()


def test_parents_that_agree_and_one_that_is_not_there() -> None:
    said = {"acme/v1": "base"}
    assert merge_parents([("a", said), ("b", said)]) == said
    with pytest.raises(Day0Error, match="'acme/v0' is not declared"):
        search_path("acme/v1", merge_parents([("a", {"acme/v1": "acme/v0"})]))
    with pytest.raises(Day0Error, match="two parents that disagree"):
        merge_parents([("registry/namespaces.yaml", load_parents()), ("theirs", {"kimi/k3.1": "base"})])


def test_a_users_file_brings_its_own_namespace(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        KERNEL.format(name="x", id="mine", namespace="acme/v9", parents={"acme/v9": "kimi/k3.1"}).replace(
            "from acme_x.helper import run", "def run(x): return x"
        )
    )
    assert [one.namespace for one in collect((path,)) if one.id == "mine"] == ["acme/v9"]
    assert search_path("acme/v9", load_parents((path,)))[:2] == ("acme/v9", "kimi/k3.1")


def test_one_content_in_two_places_is_one(tmp_path: Path) -> None:
    text = KERNEL.format(name="x", id="mine", namespace="base", parents={}).replace(
        "from acme_x.helper import run", "def run(x): return x"
    )
    files = tuple(tmp_path / name for name in ("b.py", "a.py"))
    for path in files:
        path.write_text(text)
    origins = {tuple(one.origin for one in collect(order) if one.id == "mine") for order in (files, files[::-1])}
    assert origins == {(f"{tmp_path / 'a.py'}:3",)}
    assert find_same_identity(()) == ()


def _entry(distribution: str) -> LockEntry:
    identity = Identity(operator="aten::silu", contract=1, namespace="base", id="theirs", version="1.0")
    return LockEntry(
        operator="aten::silu",
        dtypes=("float32",),
        signatures=("0" * 16,),
        identity=identity,
        kind="kernel",
        source_hash="sha256:1",
        origin="acme-one 1.2, acme_one/kernels.py:3",
        decisions=(),
        distribution=distribution,
    )


def test_a_distribution_that_a_lock_names_must_be_there_in_that_version(install: Install) -> None:
    refuse_missing_distribution(_entry(""))
    with pytest.raises(Day0Error, match=r"the package acme-one==1.2, which brought it, is not installed") as caught:
        refuse_missing_distribution(_entry("acme-one==1.2"))
    assert "pip install acme-one==1.2" in caught.value.hint
    install("one")
    refuse_missing_distribution(_entry("acme-one==1.2"))
    with pytest.raises(Day0Error, match=r"locked with acme-one==1.3, and acme-one 1.2 is installed"):
        refuse_missing_distribution(_entry("acme-one==1.3"))
