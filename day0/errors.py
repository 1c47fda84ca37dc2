"""What can go wrong, as values a person can act on.

A message reads `error: WHERE: WHAT is wrong with WHICH value`, then facts, then `hint:` with the next step.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["USER_ERRORS", "Day0Error", "ExitCode", "near_names"]

USER_ERRORS: tuple[type[BaseException], ...] = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    NameError,
    OSError,
    RuntimeError,
    StopIteration,
    SyntaxError,
    SystemExit,
    TypeError,
    ValueError,
)
"""What code that is not ours may raise: a user's file, a model, a kernel. `sys.exit` there must not end our run."""


class ExitCode(IntEnum):
    """What the shell sees (design: commands)."""

    OK = 0
    GATE_FAILED = 1
    USER_CAN_REPAIR = 2
    OUR_BUG = 3
    INTERRUPTED = 130


class Day0Error(Exception):
    """A mistake that the user can repair: place, problem, facts and the exact next step.

    It leaves the process with exit code 2 and without a traceback.
    """

    exit_code: ExitCode = ExitCode.USER_CAN_REPAIR

    def __init__(self, where: str, what: str, *, facts: tuple[str, ...] = (), hint: str = "") -> None:
        super().__init__(f"{where}: {what}")
        self.where = where
        self.what = what
        self.facts = facts
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Worker processes send errors back; the default rebuilds from `args` and loses the keywords.
        return (_rebuild, (type(self), self.where, self.what, self.facts, self.hint))


def _rebuild(kind: type[Day0Error], where: str, what: str, facts: tuple[str, ...], hint: str) -> Day0Error:
    return kind(where, what, facts=facts, hint=hint)


def near_names(wanted: str, known: tuple[str, ...], *, most: int = 3) -> str:
    """Return `did you mean a, b?` for a misspelt name, or an empty string."""
    import difflib  # not needed unless something is wrong, and `--help` must stay quick

    near = difflib.get_close_matches(wanted, known, n=most, cutoff=0.5)
    return f"did you mean {', '.join(near)}?" if near else ""
