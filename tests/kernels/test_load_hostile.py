"""Files of a user's that raise errors of their own, or hold text that cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from day0.errors import Day0Error
from day0.kernels.load import load_implementation_file
from day0.registry.contract import signature_fault

ONE = """
from day0.implementation import Implementation
def same(self): return self
IMPLEMENTATIONS = (
    Implementation(operator="aten::silu", contract=1, id={id}, version="1.0", kind="kernel", run=same, why={why}),
)
"""


def refused(path: Path) -> Day0Error:
    with pytest.raises(Day0Error) as error:
        load_implementation_file(path)
    return error.value


@pytest.mark.parametrize(
    "text",
    [
        "class KernelError(Exception): pass\nraise KernelError('no compiler')\n",
        "import subprocess\nraise subprocess.CalledProcessError(1, 'nvcc')\n",
        "\nraise EOFError('cut off')\n",
        "import sys\nsys.exit(3)\n",
    ],
)
def test_what_a_file_raises_is_the_users_and_has_its_line(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(text)
    error = refused(Path("mine.py"))
    assert error.where == "mine.py:2"
    assert "it does not run" in error.what


@pytest.mark.parametrize(("name", "id_", "why"), [("id", "a\udc80", ""), ("id", "a\nb", ""), ("why", "a", "\udc80")])
def test_text_that_cannot_be_written_is_refused(name: str, id_: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(ONE.format(id=ascii(id_), why=ascii(why)))
    assert refused(path).what.startswith(f"{name} of 'aten::silu'")


def test_a_callable_that_cannot_be_inspected_loads(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    evil = (
        "class Evil:\n    def __call__(self, x): return x\n    def __getattr__(self, name): raise RuntimeError(name)\n"
    )
    path.write_text(evil + ONE.format(id="'a'", why="''").replace("run=same", "run=Evil()"))
    (one,) = load_implementation_file(path)
    assert signature_fault(one.run, (), strict=True) == ""
