"""A changed helper is another kernel: every import of one is found, wherever it stands."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from day0.sources import sources

PLACES = {
    "function": "def f():\n    async def g():\n        IMPORT",
    "class": "class C:\n    def f(self):\n        IMPORT",
    "if": "if 1:\n    pass\nelif 2:\n    IMPORT",
    "else": "for x in ():\n    pass\nelse:\n    IMPORT",
    "while": "while False:\n    IMPORT",
    "with": "with x:\n    IMPORT",
    "except": "try:\n    pass\nexcept ValueError:\n    IMPORT",
    "finally": "try:\n    pass\nfinally:\n    IMPORT",
    "case": "match x:\n    case 1:\n        IMPORT",
    "line": "x = 1; IMPORT",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("how", ["import pack._help", "from pack import _help", "from pack._help import x as y"])
def test_an_import_is_found_wherever_it_stands(tmp_path: Path, place: str, how: str) -> None:
    package = ModuleType("pack")
    package.__path__ = [str(tmp_path)]
    (tmp_path / "_help.py").write_text("from pack._deep import z\n")
    (tmp_path / "_deep.py").write_text("")
    kernel = tmp_path / "kernel.py"
    kernel.write_text(PLACES[place].replace("IMPORT", how) + "\n")
    found = sources(kernel, [package])
    assert [one.name for one in found] == ["_deep.py", "_help.py", "kernel.py"]
