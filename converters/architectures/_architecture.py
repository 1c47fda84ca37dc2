"""What a model family's names mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["PREFIX", "Architecture", "Role", "Rule", "rule"]

Role = Literal["expert", "linear", "keep"]
"""expert and linear: matrices that may become four or eight bits; keep: what stays as it is."""

PREFIX = r"(?:language_model\.)?(?:model\.)?(?:language_model\.)?"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Names that match mean this."""

    pattern: re.Pattern[str]
    role: Role
    meaning: str


def rule(pattern: str, role: Role, meaning: str) -> Rule:
    """Make a rule; the pattern has to match the whole name after the prefix of the text model."""
    return Rule(pattern=re.compile(PREFIX + pattern), role=role, meaning=meaning)


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """A family of models."""

    name: str
    summary: str
    model_types: tuple[str, ...]
    rules: tuple[Rule, ...]
    transposed: bool = False
    """True where the plain model has its stacked experts as [E, in, out], and a checkpoint of four bits as [E, out, in]."""
    gate_up: Literal["interleaved", "concatenated"] = "concatenated"
    """Rows of gate and up in a fused matrix: gate, up, gate, up, ... or all gates first."""
    split: Mapping[str, tuple[str, ...]] | None = None
    """Fused name to the names of its parts in one expert."""
    meaning: Callable[[str, Mapping[str, Any]], str] | None = None
    """What a name means that means different things in different layers; empty where the rules say it all."""
    check: Callable[[Mapping[str, tuple[int, ...]], Mapping[str, Any]], tuple[str, ...]] | None = None
    """Look at names with shapes and the config: notes, or Day0Error for what does not fit."""

    def role(self, name: str) -> Rule | None:
        """Return the rule of a name; None for one that is not known."""
        return next((one for one in self.rules if one.pattern.fullmatch(name)), None)
