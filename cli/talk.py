"""Talk to a person: progress and notes on stderr, results on stdout. With `--json` all talk goes to stderr."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from day0.cli.failures import clean

__all__ = ["Talk", "safe", "stopwatch"]

PLAIN_WIDTH = 120
"""Columns where nobody says how wide it is: logs of pipelines are read in a browser."""


def safe(text: object) -> str:
    """Return text from outside so that the terminal shows it and obeys nothing in it."""
    return escape(clean(str(text)))


class _Console(Console):
    """A console whose reader may go away (`| head`): the work goes on without it."""

    def on_broken_pipe(self) -> None:
        """Send the rest nowhere."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def _console(*, stderr: bool, plain: bool) -> _Console:
    if not plain:
        return _Console(stderr=stderr, highlight=False, emoji=False)
    width = None if "COLUMNS" in os.environ else PLAIN_WIDTH
    console = _Console(
        stderr=stderr, highlight=False, emoji=False, color_system=None, force_terminal=False, width=width
    )
    console.no_color = True
    return console


class Talk:
    """Two consoles and one progress line; a plain one has neither colours nor progress, wherever it goes."""

    def __init__(self, *, as_json: bool = False, plain: bool = False) -> None:
        self.as_json = as_json
        self.plain = plain
        self.err = _console(stderr=True, plain=plain)
        self.out = self.err if as_json else _console(stderr=False, plain=plain)
        self._progress: Progress | None = None

    def say(self, text: str) -> None:
        """Print a result line."""
        self.out.print(text)

    def note(self, text: str) -> None:
        """Print a remark on stderr."""
        self.err.print(f"[dim]{escape(clean(text))}[/dim]")

    @contextmanager
    def busy(self, title: str) -> Iterator[None]:
        """Show that something is going on, after a moment and only on a terminal."""
        bar = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24))
        columns = (*bar, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(compact=True))
        with Progress(*columns, console=self.err, transient=True, disable=not self.err.is_terminal) as progress:
            self._progress = progress
            progress.add_task(title, total=None)
            try:
                yield
            finally:
                self._progress = None

    def progress(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """Update the progress line."""
        if self._progress is not None and self._progress.task_ids:
            self._progress.update(
                self._progress.task_ids[0], description=escape(clean(text)), completed=done or 0, total=total
            )


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """Measure seconds of wall time into a list of one."""
    began = time.perf_counter()
    seconds = [0.0]
    try:
        yield seconds
    finally:
        seconds[0] = time.perf_counter() - began
