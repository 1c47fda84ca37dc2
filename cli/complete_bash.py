"""Completion in bash of words with colons in them, such as `hf:deepseek_v32` and `day0::rope`.

Bash ends words at colons, and puts what is offered in place of the last piece only.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
from collections.abc import Callable

__all__ = ["VARIABLE", "answer", "asked"]

VARIABLE = "_DAY0_COMPLETE"
"""Set by the function that `day0 --install-completion` defines in the shell."""


def asked() -> bool:
    """Say whether bash asks what could come next."""
    return os.environ.get(VARIABLE) == "complete_bash"


def answer(program: Callable[[], None]) -> None:
    """Let the program answer for whole words, and print of each answer what is behind the last colon that was typed."""
    words, place = _whole_words(os.environ.get("COMP_WORDS", ""), os.environ.get("COMP_CWORD", "0"))
    typed = words[place] if place < len(words) else ""
    os.environ.update(COMP_WORDS=shlex.join(words), COMP_CWORD=str(place))
    said = io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(said):
        try:
            program()
        except SystemExit as ended:
            code = ended.code
    there = typed.rpartition(":")[0] + ":" if ":" in typed else ""
    print("\n".join(line.removeprefix(there) for line in said.getvalue().splitlines()))
    raise SystemExit(code)


def _whole_words(text: str, place: str) -> tuple[list[str], int]:
    """Join the pieces around colons again. Returns the words and which of them is being written."""
    try:
        pieces = shlex.split(text)
    except ValueError:  # a quote is still open
        pieces = text.split()
    at = int(place) if place.isdecimal() else len(pieces)
    words: list[str] = []
    whole = 0
    for number, piece in enumerate(pieces):
        joins = words and number > 0 and (set(piece) == {":"} or set(pieces[number - 1]) == {":"})
        words[-1:] = [words[-1] + piece] if joins else [*words[-1:], piece]
        if number == at:
            whole = len(words) - 1
    return words, whole if at < len(pieces) else len(words)
