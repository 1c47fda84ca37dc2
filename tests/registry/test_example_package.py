"""The example package, really built and installed: day0 finds it, a lock takes it, and says so when it is gone."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from day0.analyzers.kernel_check import check_kernel
from day0.cli.app import app
from day0.cli.rundir import RunFolder
from day0.errors import Day0Error
from day0.records import Lock
from day0.registry.collect import collect
from day0.registry.entry_points import load_entry_points, refuse_missing_distribution
from day0.registry.namespaces import load_parents, search_path

EXAMPLE = Path(__file__).resolve().parents[2] / "playbooks" / "examples" / "vendor_kernels"
RELEASE = "acme-kernels==1.2.0"


def day0(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the package from a copy and install it into a folder, without a network."""
    base = tmp_path_factory.mktemp("example")
    shutil.copytree(EXAMPLE, base / "source", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--target", str(base / "site"), str(base / "source")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return base / "site"


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Let this process see the package; afterwards nothing of it is left."""
    with monkeypatch.context() as path:
        path.syspath_prepend(str(site))
        importlib.invalidate_caches()
        yield path
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_kernels"]:
        del sys.modules[name]
    importlib.invalidate_caches()


def test_it_is_found_by_its_entry_point(installed: pytest.MonkeyPatch) -> None:
    (brought,) = [one for one in load_entry_points() if one.distribution == RELEASE]
    assert brought.parents == {"acme/k3.1": "kimi/k3.1"}
    mine = [one for one in collect() if one.distribution == RELEASE]
    assert {one.operator for one in mine} == {"aten::silu", "day0::rms_norm", "day0::topk_tokens"}
    assert all(one.origin.startswith("acme-kernels 1.2.0, acme_kernels/registered.py:") for one in mine)
    assert search_path("acme/k3.1", load_parents()) == ("acme/k3.1", "kimi/k3.1", "kimi/k3", "kimi/linear", "base")
    done = day0("ops", "list", "silu", "--namespace", "acme/k3.1", "--json")
    (row,) = json.loads(done.stdout)["aten::silu"]["implementations"]
    assert (row["identity"], row["source"]) == ("aten::silu@1 acme/k3.1:acme_silu==1.0", RELEASE)


def test_without_it_there_is_nothing_of_it() -> None:
    assert not [one for one in collect() if one.distribution == RELEASE]
    with pytest.raises(Day0Error, match=r"'acme/k3\.1' is not declared"):
        search_path("acme/k3.1", load_parents())


def test_a_lock_takes_it_and_says_so_when_it_is_gone(installed: pytest.MonkeyPatch, run_folder: Path) -> None:
    assert day0("trace", "toy", "--dtype", "float32", "--phase", "prefill=24", "--run", run_folder).exit_code == 0
    assert day0("inventory", "--run", run_folder, "--device", "sim").exit_code in (0, 1)
    done = day0("register", "--run", run_folder, "--namespace", "acme/k3.1")
    assert done.exit_code == 0, done.output
    lock = RunFolder(run_folder).need(Lock).record
    entries = {one.operator: one for one in lock.entries}
    silu, topk = entries["aten::silu"], entries["day0::topk_tokens"]
    assert (str(silu.identity), silu.distribution) == ("aten::silu@1 acme/k3.1:acme_silu==1.0", RELEASE)
    # The predicate was asked, and its reason stands in the lock.
    (refused,) = [one for one in topk.decisions if "acme_all" in one.candidate]
    assert "are more than the 8 to be chosen" in refused.reason and topk.distribution == ""
    assert day0("ops", "diff", run_folder).exit_code == 0
    installed.undo()
    forget()
    with pytest.raises(Day0Error, match=r"the package acme-kernels==1\.2\.0, which brought it, is not installed"):
        refuse_missing_distribution(silu)
    gone = day0("ops", "diff", run_folder)
    assert gone.exit_code == 1
    assert "the package acme-kernels==1.2.0, which brought it, is not installed" in gone.stdout


def test_another_release_is_said(installed: pytest.MonkeyPatch, site: Path) -> None:
    one = next(one for one in collect() if one.operator == "aten::silu" and one.distribution)
    entry: Any = _entry(one).model_copy(update={"distribution": "acme-kernels==1.1.0"})
    with pytest.raises(Day0Error, match=r"locked with acme-kernels==1\.1\.0, and acme-kernels 1\.2\.0 is installed"):
        refuse_missing_distribution(entry)


def _entry(one: Any) -> Any:
    from day0.records import LockEntry

    return LockEntry(
        operator=one.operator,
        dtypes=("float32",),
        signatures=(),
        identity=one.identity,
        kind=one.kind,
        source_hash=one.source_hash,
        origin=one.origin,
        decisions=(),
        distribution=one.distribution,
    )


def test_it_is_right(installed: pytest.MonkeyPatch) -> None:
    mine = [one for one in collect() if one.distribution == RELEASE]
    assert len(mine) == 3
    for one in mine:
        assert {check.status for check in check_kernel(one)} <= {"pass", "skipped"}, one
