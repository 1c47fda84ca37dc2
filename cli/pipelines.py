"""What `--ci` adds: annotations on the screen and the job's summary, from the report that was just written."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from day0.errors import Day0Error

__all__ = ["SUMMARY_FILE", "commands_stopped", "show_in_pipeline"]

SUMMARY_FILE = "GITHUB_STEP_SUMMARY"
"""GitHub names in it the file whose Markdown it shows on the job's page."""


@contextmanager
def commands_stopped(*, as_json: bool = False) -> Iterator[None]:
    """Keep GitHub from obeying commands in what is printed meanwhile: names of operators come from anybody.

    The word that ends it is random, so that no name can be it.
    """
    word, stream = secrets.token_hex(16), _stream(as_json)
    print(f"::stop-commands::{word}", file=stream, flush=True)
    try:
        yield
    finally:
        print(f"::{word}::", file=stream, flush=True)


def show_in_pipeline(report: Path, *, as_json: bool = False) -> None:
    """Print `annotations.txt` of a report's folder, and add its `summary.md` to the file that GitHub names, if it does.

    With `as_json` annotations go to stderr, where GitHub reads them too.
    Raises Day0Error where that file cannot be written.
    """
    print((report / "annotations.txt").read_text(encoding="utf-8"), end="", file=_stream(as_json), flush=True)
    named = os.environ.get(SUMMARY_FILE)
    if not named:
        return
    try:
        with Path(named).open("a", encoding="utf-8") as file:
            file.write((report / "summary.md").read_text(encoding="utf-8") + "\n")
    except OSError as error:
        what = f"the job's summary cannot be written to {named}: {error.strerror}"
        raise Day0Error(SUMMARY_FILE, what, hint="unset it, or name a file in a folder that is there") from None


def _stream(as_json: bool) -> TextIO:
    return sys.stderr if as_json else sys.stdout
