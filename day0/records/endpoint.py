"""What a server's answers are worth, held against a reference."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from day0.records._base import Record
from day0.records.canary import FigureResult, GateResult

__all__ = ["EndpointFailure", "EndpointPrompt", "EndpointReport"]


class EndpointFailure(Record):
    """One request that brought no answer, or brought one only when it was made again."""

    prompt: str
    round: str
    """`alone`, `again`, `together` or `echo`."""
    outcome: str
    detail: str = ""
    earlier: tuple[str, ...] = ()
    """The outcomes of the tries before the last."""
    answered: bool = False
    """Whether the last try was answered."""


class EndpointPrompt(Record):
    """One prompt's answer against the reference. Distances are in nats."""

    name: str
    status: Literal["pass", "explained", "fail", "unanswered", "not_judged"]
    """`explained`: another token than the reference's, nearer to it than rounding."""
    reason: str = ""
    compared: Literal["tokens", "text", "nothing"] = "nothing"
    tokens: int = 0
    """New tokens that were compared."""
    position: int | None = None
    """The first token that rounding does not explain, else the first that differs, from 0."""
    got: str = ""
    expected: str = ""
    got_id: int = -1
    expected_id: int = -1
    margin: float | None = None
    """How far the reference puts its own token above the server's; None where nobody knows."""
    explained: float = 0.0
    """How much of that rounding explains."""
    text: str = ""
    """The server's whole text."""
    expected_text: str = ""
    """What the reference goes on with where the two part."""
    logprob_error: float | None = None
    """Mean over the tokens."""
    prompt_tokens: int | None = None
    reference_prompt_tokens: int | None = None
    right: bool | None = None
    reference_right: bool | None = None
    differs: dict[str, str] = Field(default_factory=dict)
    """By round: how its answer parts from the first round's."""
    body: str = ""
    """File below the run folder with the request, for the command that makes it again."""
    reproduce: str = ""
    """Command that makes the request again; a key stands in it as the shell's own expression."""


class EndpointReport(Record):
    """A server held against a reference."""

    endpoint: str
    model: str
    api: Literal["completions", "chat"]
    reference: str
    prompts: str
    prompts_sha256: str
    concurrency: int
    verdict: Literal["successful", "failed", "inconclusive"]
    reason: str = ""
    gates: tuple[GateResult, ...] = ()
    left_out: dict[str, str] = Field(default_factory=dict)
    """Figures whose gates were left out, with the reasons: what the server does not offer."""
    figures: dict[str, FigureResult] = Field(default_factory=dict)
    outcomes: dict[str, int] = Field(default_factory=dict)
    """Requests by what became of them, tries that were made again included."""
    failures: tuple[EndpointFailure, ...] = ()
    results: tuple[EndpointPrompt, ...] = ()
    facts: dict[str, str] = Field(default_factory=dict)
    """What is known of both sides: tokens, hash of the tokenizer, where the server says its weights come from."""
    notes: tuple[str, ...] = ()
