"""`day0 ops new`: what it writes runs at once and goes red when it is broken; nothing is overwritten, nothing half done."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from day0 import reference_ops
from day0.analyzers.kernel_check import check_kernel
from day0.cli import ops_new
from day0.cli.app import app
from day0.cli.new_signature import find_schema, write_signature
from day0.errors import Day0Error
from day0.implementation import Implementation
from day0.kernels import torch as torch_kernels
from day0.kernels.load import load_implementation_file, load_implementations
from day0.reference_ops import load
from tests.reference_ops import contract, counts

ROOT = Path(__file__).resolve().parents[2]
NOT_COPIED = (".*", "__pycache__", "runs", "build", "dist", "*.egg-info", "weights")


NEW = ("gated_tail", "own_norm", "own_write", "own_add", "own_norm_of_torch")


def day0(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "80", "NO_COLOR": "1"})


def run(*command: str, cwd: Path, see: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in which `import day0` is the tree `see`, whatever is installed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(see or ROOT)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def pytest_in(folder: Path, *what: str, see: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *what, cwd=folder, see=see)


def ruff() -> str:
    found = shutil.which("ruff", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert found is not None
    return found


def checked_by_linters(folder: Path) -> str:
    """Return what ruff and mypy say against new files."""
    ruff = shutil.which("ruff", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert ruff is not None
    found = [
        run(ruff, *what, ".", cwd=folder) for what in (("check", "--no-cache"), ("format", "--check", "--no-cache"))
    ]
    return "".join(one.stdout + one.stderr for one in found if one.returncode)


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with a new operator, a kernel of one of ours and kernels of torch's."""
    tree = tmp_path_factory.mktemp("new") / "tree"
    shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
    for arguments in (
        ("gated_tail",),
        ("own_norm", "--for", "day0::rms_norm"),
        ("own_write", "--for", "day0::paged_kv_write"),
        ("own_add", "--for", "aten::add.Tensor"),
        ("own_norm_of_torch", "--for", "aten::native_layer_norm"),
    ):
        done = day0("ops", "new", *arguments, "--dir", tree)
        assert done.exit_code == 0, done.output
    return tree


@pytest.fixture
def found(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Implementation]]:
    """The new files are found as if they stood in our own folders; afterwards they are forgotten."""
    monkeypatch.setattr(reference_ops, "__path__", [*reference_ops.__path__, str(checkout / "reference_ops")])
    monkeypatch.setattr(torch_kernels, "__path__", [*torch_kernels.__path__, str(checkout / "kernels" / "torch")])
    importlib.invalidate_caches()
    load._found.cache_clear()
    yield {one.origin.split("/")[-1].split(".")[0]: one for one in load_implementations()}
    # Only what is new: torch cannot be imported in parts a second time.
    for name in [name for name in sys.modules if name.split(".")[-1] in NEW]:
        del sys.modules[name]
    load._found.cache_clear()


def test_in_a_checkout_the_new_files_are_found_and_right(checkout: Path, found: dict[str, Implementation]) -> None:
    assert not checked_by_linters(checkout)
    for name in NEW:
        assert {check.status for check in check_kernel(found[name])} == {"pass"}, name
    operator = load.load_operator("day0::gated_tail")
    contract.check_words(operator)
    assert {one.kind for one in operator.samples(torch.Generator())} == {"small", "odd", "corner", "traced"}
    for sample in operator.samples(torch.Generator().manual_seed(5)):
        contract.check_fake(operator, sample)
        contract.check_memory(operator, sample)
        contract.check_guards(operator, sample)
        counts.check_counts(operator, sample)
        for dtype in (torch.float32, *contract.HALF):
            contract.check_precision(operator, sample, dtype)
        assert sample.kind != "small" or not contract.check_leading(operator, sample)


@pytest.mark.slow
def test_in_a_checkout_everything_that_walks_everything_takes_the_new_files(checkout: Path) -> None:
    assert not checked_by_linters(checkout)
    own = [str(path.relative_to(checkout)) for path in checkout.rglob("test_*") if path.name.startswith("test_own_")]
    assert len(own) == 4
    walks = (
        "tests/kernels/test_kernels.py",
        "tests/reference_ops/test_contract.py",
        "tests/reference_ops/test_gated_tail.py",
    )
    done = pytest_in(checkout, *own, *walks, "-k", "gated_tail or own_", see=checkout)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.split(" passed")[0].split()[-1]) > 40, done.stdout


BROKEN = (
    ("kernels/torch/gated_tail.py", "(1.0 + torch", "(1.001 + torch", "tests/kernels/test_gated_tail.py"),
    (
        "reference_ops/gated_tail.py",
        "(wide_TD * torch",
        "(2 * wide_TD * torch",
        "tests/reference_ops/test_gated_tail.py",
    ),
    ("kernels/torch/own_norm.py", "weight, eps, round", "weight, 2 * eps, round", "tests/kernels/test_own_norm.py"),
)


@pytest.mark.slow
def test_the_new_tests_go_red_when_the_code_is_broken(checkout: Path) -> None:
    good = {file: (checkout / file).read_text() for file, *_ in BROKEN}
    for file, old, new, _ in BROKEN:
        assert old in good[file]
        (checkout / file).write_text(good[file].replace(old, new))
    try:
        done = pytest_in(checkout, *(test for *_, test in BROKEN), see=checkout)
    finally:
        for file, text in good.items():
            (checkout / file).write_text(text)
    for *_, test in BROKEN:
        assert f"FAILED {test}" in done.stdout, done.stdout


@pytest.mark.parametrize(
    "operator", ["day0::fused_experts", "aten::sum.dim_IntList", "day0::kda_chunked", "aten::silu"]
)
def test_long_signatures_are_folded_as_the_formatter_folds_them(operator: str, tmp_path: Path) -> None:
    written = write_signature("kernel", find_schema(operator), "reference")
    (tmp_path / "one.py").write_text(f"{written.head}\n{written.body}\n")
    assert max(len(line) for line in written.head.splitlines()) <= 120
    assert not run(ruff(), "format", "--check", "--line-length=120", "--isolated", ".", cwd=tmp_path).returncode


@pytest.mark.slow
def test_the_new_files_have_types(checkout: Path) -> None:
    done = run(sys.executable, "-m", "mypy", cwd=checkout, see=checkout)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow  # tests/registry/test_example_package.py finds a package by its entry point each time
def test_outside_it_is_a_package_that_day0_finds_by_its_entry_point(tmp_path: Path) -> None:
    done = day0("ops", "new", "fast_norm", "--for", "day0::rms_norm", "--dir", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert sorted(told["files"]) == sorted(str(path) for path in tmp_path.rglob("*") if path.is_file())
    folder = tmp_path / "fast-norm"
    text = (folder / "pyproject.toml").read_text()
    assert '[project.entry-points."day0.implementations"]\nfast_norm = "fast_norm.kernels"' in text
    green = pytest_in(folder, "tests")
    assert green.returncode == 0, green.stdout
    kernels = folder / "src" / "fast_norm" / "kernels.py"
    (good,) = load_implementation_file(kernels)
    assert {check.status for check in check_kernel(good)} == {"pass"}
    kernels.write_text(kernels.read_text().replace("(x, weight, eps", "(x, weight + 1, eps"))
    (bad,) = load_implementation_file(kernels)
    assert "fail" in {check.status for check in check_kernel(bad)}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("x-y",), "name 'x-y': it is no name of lower-case letters"),
        (("day0::x",), "the namespace day0:: is added"),
        (("../evil",), "it is no name"),
        (("lambda",), "it is no name"),
        (("class",), "it is no name"),
        (("signatures",), "this name has another meaning here"),
        (("rms_norm",), "operator 'rms_norm': it exists"),
        (("rmsnorm",), "it reads like day0::rms_norm, which exists"),
        (("mine", "--kind", "kernl"), "did you mean kernel?"),
        (("mine", "--kind", "kernel"), "of which operator?"),
        (("mine", "--kind", "operator", "--for", "aten::silu"), "a new operator is for no other"),
        (("mine", "--for", "aten::slu"), "did you mean aten::silu"),
        (("mine", "--for", "day0::rmsnorm"), "did you mean day0::rms_norm"),
        (("mine", "--for", "nonsense"), "there is no operator 'nonsense'"),
        (("mine", "--for", "aten::scatter"), "aten::scatter.src"),
        (("mine", "--for", "aten::silu.zz"), "torch has no overload 'zz' of it"),
        (("mine", "--for", "aten::convolution"), "day0 knows no call of it"),
        (("mine", "--for", "aten::silu", "--dir", "no/such"), "there is no such folder"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(
    arguments: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("day0", "reference_ops", "kernels/torch", "tests/kernels"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    before = snapshot(tmp_path)
    done = day0("ops", "new", *arguments)
    assert done.exit_code == 2 and says in done.stderr, done.output
    assert "hint: " in done.stderr
    assert snapshot(tmp_path) == before


def test_nothing_is_overwritten_not_even_a_broken_link(tmp_path: Path) -> None:
    assert day0("ops", "new", "fast_norm", "--for", "day0::rms_norm", "--dir", tmp_path).exit_code == 0
    kept = tmp_path / "fast-norm" / "README.md"
    for path in sorted((tmp_path / "fast-norm").rglob("*"), reverse=True):
        if path != kept:
            path.unlink() if path.is_file() else path.rmdir()
    (kept.parent / "pyproject.toml").symlink_to("nowhere")
    before = snapshot(tmp_path)
    done = day0("ops", "new", "fast_norm", "--for", "day0::rms_norm", "--dir", tmp_path)
    assert done.exit_code == 2
    assert "2 of 5 files exist already" in done.stderr and "fast-norm/README.md" in done.stderr
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_half_way_leaves_nothing(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    link = os.link

    def failing(*paths: Path) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise error
        link(*paths)

    monkeypatch.setattr(os, "link", failing)
    (tmp_path / "mine").mkdir()
    with pytest.raises((Day0Error, KeyboardInterrupt)):
        ops_new.write_all(tmp_path, {f"{folder}/{name}": "x" for folder in ("new/a", "mine") for name in "12"})
    assert len(calls) == 3
    assert snapshot(tmp_path) == {str(tmp_path / "mine"): None}


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def late(source: Path, target: Path) -> None:
        if target.name == "b":
            target.write_text("theirs")
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(Day0Error, match="it exists already"):
        ops_new.write_all(tmp_path, {"a": "mine", "b": "mine"})
    assert snapshot(tmp_path) == {str(tmp_path / "b"): b"theirs"}
