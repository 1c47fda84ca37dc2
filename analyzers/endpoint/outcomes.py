"""What can become of one request: each case has a name of its own, and none is dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

__all__ = [
    "MAY_PASS",
    "SERVER_FAULTS",
    "UNREACHED",
    "WORDS",
    "FailedOutcome",
    "Failure",
    "hint_for",
]

Unreached = Literal["refused", "unresolved", "tls", "reset", "timeout", "rate_limited", "unavailable"]
Unwanted = Literal[
    "unauthorized", "forbidden", "model_unknown", "not_found", "rejected", "redirected", "unexpected_status"
]
Faulty = Literal[
    "server_error",
    "not_http",
    "not_json",
    "invalid_json",
    "wrong_shape",
    "compressed",
    "too_large",
    "cut_answer",
    "cut_stream",
    "error_in_stream",
    "no_logprobs",
    "bad_logprobs",
    "wrong_counts",
]
FailedOutcome = Literal[Unreached, Unwanted, Faulty, "not_asked"]

UNREACHED: frozenset[str] = frozenset(get_args(Unreached))
"""Nobody answered, or the server had no time: says nothing about the model."""
SERVER_FAULTS: frozenset[str] = frozenset(get_args(Faulty))
"""The server answered, and the answer is wrong in itself."""
MAY_PASS: frozenset[str] = frozenset({"reset", "timeout", "rate_limited", "unavailable"})
"""What another try may not meet again; everything else stays as it is, and is not tried again."""

WORDS: dict[str, str] = {
    "refused": "nothing listens there: the connection was refused",
    "unresolved": "the host cannot be found or reached",
    "tls": "no secure connection could be made",
    "reset": "the connection was closed before an answer",
    "timeout": "there was no whole answer in time",
    "rate_limited": "the server takes no more requests now (429)",
    "unavailable": "the server is not ready (502, 503 or 504)",
    "unauthorized": "the server wants another key (401)",
    "forbidden": "the key may not do this (403)",
    "model_unknown": "the server does not have this model (404)",
    "not_found": "the server has no such path (404)",
    "rejected": "the server refuses the request",
    "redirected": "the server sends the request elsewhere, and a key follows no redirection",
    "unexpected_status": "the server answered with a status that the API does not have",
    "server_error": "the server failed (5xx)",
    "not_http": "what answers there does not speak HTTP",
    "not_json": "the answer is a page, not JSON",
    "invalid_json": "the answer is no valid JSON",
    "wrong_shape": "the answer is JSON of another form",
    "compressed": "the answer is compressed, which was not asked for",
    "too_large": "the answer is larger than an answer can be",
    "cut_answer": "the answer ended in the middle",
    "cut_stream": "the stream ended in the middle",
    "error_in_stream": "the server reported an error in the middle of the stream",
    "no_logprobs": "this answer has no logprobs, and others have",
    "bad_logprobs": "a logprob is not a number of at most 0",
    "wrong_counts": "the number of tokens contradicts itself",
    "not_asked": "it was not asked, since the requests before it all failed",
}

_HINTS: dict[str, str] = {
    "refused": "is the server running, and is this its port?",
    "unresolved": "check the host's name",
    "tls": "write http:// for a server without TLS; else check its certificate",
    "unauthorized": "name the key's file with --api-key-file, or its variable with --api-key-env",
    "forbidden": "ask for a key that may use this model",
    "not_found": "give the server's root, such as http://127.0.0.1:8000, or its path that ends in /v1",
    "not_http": "is this the server's own port?",
    "not_json": "is this the server's own port, and not that of a page in front of it?",
    "redirected": "name the final address",
    "timeout": "give it more time with --timeout, or ask less at one time with --concurrency",
    "rate_limited": "ask less at one time with --concurrency 1, or wait",
    "unavailable": "wait until the model is loaded",
    "rejected": "what the server says stands above; --api chat or --api completions asks in the other way",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why a request brought no answer."""

    outcome: FailedOutcome
    detail: str = ""
    """What was seen, such as the server's own words; may hold anything that a server sent."""
    wait_s: float | None = None
    """For how long the server asks to be left alone."""

    @property
    def words(self) -> str:
        """The case in words, with what was seen."""
        return f"{WORDS[self.outcome]}{f': {self.detail}' if self.detail else ''}"


def hint_for(outcome: FailedOutcome) -> str:
    """Return what a person can do about it."""
    return _HINTS.get(outcome, "look into the server's log; `curl` shows the same answer")
