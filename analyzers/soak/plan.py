"""How long a soak takes and what comes in."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["SOAK_FAULTS", "Arrival", "SoakPlan", "arrivals"]

SOAK_FAULTS: dict[str, str] = {
    "soak_blocks_kept": "pages of every third sequence that ends are not given back",
    "soak_host_grows": "every sequence that ends leaves 4 MiB on the host",
    "soak_device_grows": "every sequence that ends leaves 256 KiB on the device",
    "soak_slows": "every step does a little more work than the one before",
    "soak_wrong_page": "two sequences swap their last pages",
    "soak_failed_kept": "what a failed step held is not given back",
}
"""By name; for tests of the soak itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SoakPlan:
    """What a soak does."""

    seconds: float = 2.0
    """Of wall time; what is still running then is finished."""
    steps: int | None = None
    """Ends it earlier, and makes it the same on every machine."""
    seed: int = 0
    most_live: int = 6
    """Sequences at one time."""
    most_batch: int = 3
    """Sequences that arrive together."""
    prompt_tokens: tuple[int, int] = (2, 20)
    new_tokens: tuple[int, int] = (1, 6)
    cycle: int = 6
    """Steps with arrivals between two quiet points, at which nothing is held and memory is compared."""
    drill: bool = True
    """Let one operator raise once, and see what becomes of the rest."""
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """Sequences that arrive together, with prompts of one length."""

    prompt_tokens: int
    new_tokens: tuple[int, ...]
    """For each sequence."""


def arrivals(plan: SoakPlan, dice: random.Random, live: int, lengths: tuple[int, ...] = ()) -> Arrival | None:
    """Return what arrives now, or None where nothing does or there is no room.

    Some prompts are as long as a batch that lives, whose `lengths` are given: only such batches can become one.
    """
    room = plan.most_live - live
    if room < 1 or (live and dice.random() < 0.4):
        return None
    count = dice.randint(1, min(plan.most_batch, room))
    least, most = plan.prompt_tokens
    meeting = [length for length in lengths if least <= length <= most]
    meets = bool(meeting) and dice.random() < 0.4
    return Arrival(
        prompt_tokens=dice.choice(meeting) if meets else dice.randint(least, most),
        new_tokens=tuple(dice.randint(*plan.new_tokens) for _ in range(count)),
    )
