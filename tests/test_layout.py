"""The folders at the top, the packages that are installed and the links in day0/ say the same."""

from __future__ import annotations

import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]
PACKAGE_DIR: dict[str, str] = SETUPTOOLS["package-dir"]
NOT_SHIPPED = {"tests", "benchmarks", "docs", "runs", "build", "dist"}
TOO_HEAVY_FOR_HELP = {"torch", "transformers", "pydantic", "altair"}


def package_folders() -> dict[str, Path]:
    """Return every package that stands in the tree, by its import name."""
    found: dict[str, Path] = {}
    for top in ROOT.iterdir():
        if top.is_dir() and not top.name.startswith(".") and top.name not in NOT_SHIPPED:
            for init in top.rglob("__init__.py"):
                if not (init.parents[1] / "__init__.py").is_file() and init.parents[1] != ROOT:
                    continue  # a package of its own among the examples
                parts = init.parent.relative_to(ROOT).parts
                found[".".join(parts if parts[0] == "day0" else ("day0", *parts))] = init.parent
    return found


@pytest.mark.parametrize("package", sorted(PACKAGE_DIR))
def test_link_leads_to_the_mapped_folder(package: str) -> None:
    link = ROOT / package.replace(".", "/")
    assert link.resolve() == (ROOT / PACKAGE_DIR[package]).resolve()
    assert link.is_symlink()
    assert not link.readlink().is_absolute()


def test_every_link_is_mapped() -> None:
    links = {f"day0.{path.name}" for path in (ROOT / "day0").iterdir() if path.is_symlink()}
    assert links == set(PACKAGE_DIR)


def test_every_package_is_listed() -> None:
    listed = SETUPTOOLS["packages"]
    assert sorted(listed) == sorted(package_folders())


def test_help_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "day0", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "typer" in imported, "the list of imports was not read"
    assert not imported & TOO_HEAVY_FOR_HELP
    assert "Usage:" in done.stdout


def test_tests_cannot_reach_another_machine() -> None:
    closed = socket.socket()
    closed.close()  # without the guard this is a bad descriptor, and nothing is sent either way
    with pytest.raises(pytest.fail.Exception, match="tests run without a network"):
        closed.connect(("192.0.2.1", 80))
    with pytest.raises(OSError, match="Bad file descriptor"):
        closed.connect(("127.0.0.1", 80))
