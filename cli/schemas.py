"""`day0 schema`: print one JSON Schema, list them, or write all of them."""

from __future__ import annotations

import json
from pathlib import Path

from day0.cli.rundir import write_atomically
from day0.errors import ExitCode
from day0.reports.schemas import file_name, schema_names, schema_of

__all__ = ["schema", "text_of"]


def schema(*, name: str, out: Path | None) -> int:
    """Print a schema; without a name their names; with `out` write all of them into a folder."""
    if out is not None:
        for one in [name] if name else schema_names():
            write_atomically(out / file_name(one), text_of(one))
        print(f"written to {out}")
    elif name:
        print(text_of(name), end="")
    else:
        print("\n".join(schema_names()))
    return int(ExitCode.OK)


def text_of(name: str) -> str:
    """Return the text of a published schema."""
    return json.dumps(schema_of(name), indent=1, ensure_ascii=False) + "\n"
