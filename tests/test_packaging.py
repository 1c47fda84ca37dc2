"""What leaves the house: the sdist, the wheel, the wheel made from the sdist, and what they do in an empty venv."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGE_DIR: dict[str, str] = {"day0": "day0", **PYPROJECT["tool"]["setuptools"]["package-dir"]}
NOT_COPIED = (".*", "__pycache__", "runs", "build", "dist", "*.egg-info", "tests", "benchmarks", "docs")

IMPORT_EVERYTHING = """
import importlib, pkgutil, day0
for info in pkgutil.walk_packages(day0.__path__, "day0."):
    if info.name != "day0.__main__":
        importlib.import_module(info.name)
"""

# The builds take seconds and are shared by the tests of this file.


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifacts:
    """One sdist and two wheels: straight from the tree, and by way of the sdist."""

    tree: Path
    sdist: Path
    wheel: Path
    wheel_of_sdist: Path


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    """Build from a copy: setuptools leaves a build/ in the tree, and a later wheel would hold its leftovers."""
    base = tmp_path_factory.mktemp("packaging")
    tree = base / "tree"
    shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
    # tests/test_x.py is what setuptools adds to an sdist unasked.
    (tree / "tests").mkdir()
    (tree / "tests" / "test_x.py").touch()
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(base / "by_sdist"), str(tree), cwd=base)
    call(
        *(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(base / "straight"), str(tree)),
        cwd=base,
    )
    return Artifacts(
        tree=tree,
        sdist=only(base / "by_sdist", "*.tar.gz"),
        wheel=only(base / "straight", "*.whl"),
        wheel_of_sdist=only(base / "by_sdist", "*.whl"),
    )


def call(*command: str, cwd: Path) -> str:
    """Run a command, return what it prints, and show all of it if it fails."""
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
    return done.stdout


def only(folder: Path, pattern: str) -> Path:
    """Return the one file that matches."""
    (path,) = folder.glob(pattern)
    return path


def source_files(tree: Path) -> dict[str, bytes]:
    """Return every file of every folder that ships, by its place in the installed package."""
    found: dict[str, bytes] = {}
    for package, folder in PACKAGE_DIR.items():
        for path in (tree / folder).rglob("*"):
            if path.is_file():
                inside = path.relative_to(tree / folder).as_posix()
                found[f"{package.replace('.', '/')}/{inside}"] = path.read_bytes()
    return found


def wheel_files(wheel: Path) -> dict[str, bytes]:
    """Return what a wheel installs, without its own metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}


def test_wheel_holds_the_packages_and_their_data_and_nothing_else(artifacts: Artifacts) -> None:
    held, expected = wheel_files(artifacts.wheel), source_files(artifacts.tree)
    assert sorted(held) == sorted(expected), "a data file needs a line in [tool.setuptools.package-data]"
    assert held == expected
    kinds = {(name.split("/")[1], Path(name).suffix) for name in held}
    data = {("devices", ".yaml"), ("playbooks", ".yaml"), ("registry", ".yaml"), ("models", ".safetensors")}
    assert data <= kinds
    assert any(name.startswith("day0/reports/templates/") for name in held)


def test_wheel_by_way_of_the_sdist_is_the_same(artifacts: Artifacts) -> None:
    assert wheel_files(artifacts.wheel_of_sdist) == wheel_files(artifacts.wheel)


def test_sdist_holds_what_builds_it_and_nothing_else(artifacts: Artifacts) -> None:
    with tarfile.open(artifacts.sdist) as archive:
        assert not [member.name for member in archive if not (member.isfile() or member.isdir())], "links in the sdist"
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    beside = {"LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
    sources = {f"{folder}/{inside}" for folder, inside in map(to_source, source_files(artifacts.tree))}
    assert {name for name in names if not name.startswith("day0.egg-info/")} == sources | beside


def to_source(installed: str) -> tuple[str, str]:
    """Return folder in the tree and the place in it: `day0/cli/app.py` stands at `cli/app.py`, `day0/records/` there."""
    _, second, *rest = installed.split("/")
    return (second, "/".join(rest)) if f"day0.{second}" in PACKAGE_DIR else ("day0", "/".join((second, *rest)))


def test_wheel_runs_in_an_empty_venv(artifacts: Artifacts, tmp_path: Path) -> None:
    bin_folder = make_venv(tmp_path)
    install(bin_folder, "--no-deps", "--no-index", str(artifacts.wheel_of_sdist), cwd=tmp_path)
    lend_site_packages(tmp_path)
    python = str(bin_folder / "python")
    assert tmp_path / "venv" in Path(call(python, "-c", "import day0; print(day0.__file__)", cwd=tmp_path)).parents
    assert "Usage: day0" in call(str(bin_folder / "day0"), "--help", cwd=tmp_path)
    call(python, "-c", IMPORT_EVERYTHING, cwd=tmp_path)


@pytest.mark.slow
def test_wheel_and_its_dependencies_walk_the_toy(artifacts: Artifacts, tmp_path: Path) -> None:
    bin_folder = make_venv(tmp_path)
    install(bin_folder, "-c", str(ROOT / "constraints.txt"), str(artifacts.wheel_of_sdist), cwd=tmp_path)
    assert "Usage: day0" in call(str(bin_folder / "day0"), "--help", cwd=tmp_path)
    call(str(bin_folder / "day0"), "run", "toy-on-sim", cwd=tmp_path)


def make_venv(base: Path) -> Path:
    """Make an empty venv, without pip, and return its folder of programs."""
    venv.create(base / "venv", with_pip=False, symlinks=True)
    return base / "venv" / "bin"


def install(bin_folder: Path, *what: str, cwd: Path) -> None:
    """Install with the pip of the running Python."""
    call(sys.executable, "-m", "pip", "--python", str(bin_folder / "python"), "install", "--quiet", *what, cwd=cwd)


def lend_site_packages(base: Path) -> None:
    """Let the venv see what day0 depends on; .pth files in there, and so the editable day0, stay unseen."""
    purelib = Path(sysconfig.get_path("purelib", vars={"base": str(base / "venv")}))
    (purelib / "lent.pth").write_text(sysconfig.get_path("purelib") + os.linesep, encoding="utf-8")


def requirements() -> list[str]:
    """Return every direct dependency: core, extras and what builds the package."""
    project = PYPROJECT["project"]
    extras = [line for extra in project["optional-dependencies"].values() for line in extra]
    return [*PYPROJECT["build-system"]["requires"], *project["dependencies"], *extras]


@pytest.mark.parametrize("line", requirements())
def test_constraints_pin_every_direct_dependency(line: str) -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = {
        canonicalize_name(name): release for name, release in re.findall(r"^([\w.-]+)==(\S+)$", pins, re.MULTILINE)
    }
    wanted = Requirement(line)
    assert canonicalize_name(wanted.name) in pinned
    assert wanted.specifier.contains(pinned[canonicalize_name(wanted.name)])


def test_constraints_hold_pins_and_comments_only() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if not re.fullmatch(r"#.*|[\w.-]+==[\w.]+", line)]


def test_what_comes_without_dependencies_is_pinned_and_nothing_that_day0_needs() -> None:
    lines = (ROOT / "requirements-nodeps.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins and not [line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", line)]
    named = {canonicalize_name(line.partition("==")[0]) for line in pins}
    assert not named & {canonicalize_name(Requirement(line).name) for line in requirements()}
    constrained = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert not named & {canonicalize_name(name) for name in constrained}
