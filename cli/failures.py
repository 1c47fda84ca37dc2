"""The one place where every failure ends: a message and an exit code; a log for our own bugs."""

from __future__ import annotations

import platform
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from day0 import __version__
from day0.errors import Day0Error, ExitCode

__all__ = ["clean", "message_of", "run_guarded"]


def run_guarded(action: Callable[[], int]) -> int:
    """Run the program and turn whatever it raises into an exit code."""
    try:
        return action()
    except Day0Error as error:
        print(message_of(error), file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept, run the same command to go on", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except SystemExit as error:
        print(f"error: code that is not day0's ended the program with {error.code!r}", file=sys.stderr)
        return int(ExitCode.USER_CAN_REPAIR)
    except BrokenPipeError:
        # The reader (a pager, `head`) has gone: nothing to tell anybody.
        sys.stderr.close()
        return int(ExitCode.OK)
    except OSError as error:
        place = error.filename or "the system"
        print(clean(f"error: {place}: {error.strerror or error}\n\nhint: check space and permissions"), file=sys.stderr)
        return int(ExitCode.USER_CAN_REPAIR)
    except Exception as error:  # noqa: BLE001 - the one place: a bug of ours becomes a log and a line
        print(_bug_message(error), file=sys.stderr)
        return int(ExitCode.OUR_BUG)


def message_of(error: Day0Error) -> str:
    """Return the message as the user reads it."""
    lines = [_indented(f"error: {error.where}: {error.what}"), *(_indented(f"  {fact}") for fact in error.facts)]
    if error.hint:
        lines += ["", f"hint: {error.hint}"]
    return clean("\n".join(lines))


def _indented(text: str) -> str:
    """Move further lines to the right: names from files may hold a line break, and a line that looks like ours."""
    return text.replace("\n", "\n      ")


def clean(text: str) -> str:
    """Replace control characters: names come from files that may be hostile to a terminal."""
    return "".join(char if char == "\n" or char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _bug_message(error: Exception) -> str:
    facts = (
        f"day0 {__version__}, Python {platform.python_version()}, {platform.platform()}",
        f"command: {' '.join(sys.argv)}",
        "",
        "".join(traceback.format_exception(error)),
    )
    with tempfile.NamedTemporaryFile("w", prefix="day0-bug-", suffix=".log", delete=False, encoding="utf-8") as file:
        file.write("\n".join(facts))
    first = (str(error).strip().splitlines() or [""])[0]
    return clean(
        f"error: day0: this is a bug of ours: {type(error).__name__}: {first[:200]}\n"
        f"  log: {Path(file.name)}\n\nhint: please report it with that log"
    )
