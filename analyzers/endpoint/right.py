"""Whether a text answers a prompt right, where the prompt says what is right."""

from __future__ import annotations

from day0.analyzers.endpoint.prompts import Prompt

__all__ = ["is_right"]


def is_right(text: str, prompt: Prompt) -> bool | None:
    """Return whether a text holds one of the prompt's answers, upper and lower case alike; None without answers."""
    if not prompt.answers:
        return None
    return any(one.casefold() in text.casefold() for one in prompt.answers)
