"""The two text APIs of OpenAI-compatible servers: what is sent, and what answers mean.

A stream and a plain answer are read in the same way: as one reply or many, whose parts are put together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from day0.analyzers.endpoint.outcomes import FailedOutcome, Failure
from day0.analyzers.endpoint.prompts import Prompt
from day0.analyzers.endpoint.transport import Received

__all__ = ["PATHS", "Answer", "Api", "Asked", "ServedModel", "Token", "body_of", "read_answer", "read_models"]

Api = Literal["completions", "chat"]
PATHS: dict[Api, str] = {"completions": "/completions", "chat": "/chat/completions"}
DONE = "[DONE]"
SLACK = 1e-4
"""A logprob may be that much above 0 by rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """How a prompt is asked."""

    stream: bool = False
    top: int = 0
    """How many of the best tokens are wanted with their logprobs; 0: none."""
    ids: bool = False
    """Whether token ids are wanted, which only some servers give (vLLM and SGLang: `return_token_ids`)."""
    echo: bool = False
    """Whether the prompt's own logprobs are wanted, with one new token. Completions only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """One token as the server shows it, and the best tokens at its place. Logprobs are in nats."""

    text: str
    logprob: float | None = None
    top: tuple[tuple[str, float], ...] = ()
    data: bytes = b""
    """Its bytes, where the server shows them: a part of a character is no text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A whole answer. Seconds count from the request."""

    text: str
    tokens: tuple[Token, ...] = ()
    """Empty where the server gives no logprobs."""
    token_ids: tuple[int, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    finish: str = ""
    prompt_tokens: int | None = None
    new_tokens: int | None = None
    seconds: float = 0.0
    first_s: float | None = None
    """When the first token came, in a stream."""
    last_s: float | None = None
    model: str = ""


class _Wire(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


_Number = Annotated[float, Field(strict=False, allow_inf_nan=True)]


class _Top(_Wire):
    token: str
    logprob: _Number


class _ChatToken(_Top):
    bytes: list[Annotated[int, Field(ge=0, le=255)]] | None = None
    top_logprobs: list[_Top] | None = None


class _Logprobs(_Wire):
    content: list[_ChatToken] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[_Number | None] | None = None
    top_logprobs: list[dict[str, _Number] | None] | None = None


class _Message(_Wire):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(_Wire):
    text: str | None = None
    message: _Message | None = None
    delta: _Message | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    response_token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None

    @property
    def said(self) -> str:
        part = self.message or self.delta
        if part is None:
            return self.text or ""
        return (part.reasoning_content or part.reasoning or "") + (part.content or "")


class _Usage(_Wire):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Reply(_Wire):
    choices: list[_Choice]
    usage: _Usage | None = None
    model: str | None = None
    prompt_token_ids: list[int] | None = None


class _Meta(_Wire):
    n_vocab: int | None = None


class ServedModel(_Wire):
    """One entry of `/v1/models`."""

    id: str
    root: str | None = None
    """The folder or repository that the weights come from, where the server says so."""
    meta: _Meta | None = None


class _Models(_Wire):
    data: list[ServedModel]


def body_of(prompt: Prompt, model: str, api: Api, asked: Asked) -> dict[str, object]:
    """Return the JSON of a request: greedy, with a fixed seed."""
    body: dict[str, object] = {
        "model": model,
        **({"prompt": prompt.text} if api == "completions" else {"messages": prompt.wire_messages()}),
        "max_tokens": 1 if asked.echo else prompt.max_tokens,
        "temperature": 0,
        "seed": 0,
    }
    if asked.top:
        body |= {"logprobs": asked.top} if api == "completions" else {"logprobs": True, "top_logprobs": asked.top}
    if asked.ids:
        body["return_token_ids"] = True
    if asked.echo:
        body["echo"] = True
    if asked.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def read_models(received: Received) -> tuple[ServedModel, ...] | Failure:
    """Read what `/v1/models` says."""
    document = _parsed(received.body or b"")
    if isinstance(document, Failure):
        return document
    try:
        return tuple(_Models.model_validate(document).data)
    except ValidationError as error:
        return _wrong_shape(error)


def read_answer(received: Received, prompt: Prompt, asked: Asked) -> Answer | Failure:
    """Read an answer, and refuse one that contradicts itself."""
    replies = _replies(received)
    if isinstance(replies, Failure):
        return replies
    choices = [choice for _, reply in replies for choice in reply.choices[:1]]
    if not choices:
        return Failure(outcome="wrong_shape", detail="there are no choices in it")
    tokens = _tokens(choices)
    if isinstance(tokens, Failure):
        return tokens
    usage = next((reply.usage for _, reply in reversed(replies) if reply.usage is not None), _Usage())
    spoken = [when for when, reply in replies if any(one.said or one.logprobs for one in reply.choices[:1])]
    streamed = received.body is None
    answer = Answer(
        text="".join(one.said for one in choices),
        tokens=tokens,
        token_ids=tuple(number for one in choices for number in one.token_ids or one.response_token_ids or ()),
        prompt_ids=_prompt_ids(replies),
        finish=next((one.finish_reason for one in choices if one.finish_reason), ""),
        prompt_tokens=usage.prompt_tokens,
        new_tokens=usage.completion_tokens,
        seconds=received.seconds,
        first_s=spoken[0] if streamed and spoken else None,
        last_s=spoken[-1] if streamed and spoken else None,
        model=next((reply.model for _, reply in replies if reply.model), ""),
    )
    return _contradiction(answer, prompt, asked) or answer


def _replies(received: Received) -> list[tuple[float, _Reply]] | Failure:
    if received.body is not None:
        parts = [(received.seconds, received.body)]
    else:
        parts = [(one.seconds, one.data.encode("utf-8", "replace")) for one in received.events]
    replies: list[tuple[float, _Reply]] = []
    done = received.body is not None
    for when, data in parts:
        if data.strip() == DONE.encode():
            done = True
            break
        document = _parsed(data)
        if isinstance(document, Failure):
            return document
        if isinstance(document, dict) and document.get("error"):
            outcome: FailedOutcome = "wrong_shape" if received.body is not None else "error_in_stream"
            return Failure(outcome=outcome, detail=json.dumps(document["error"])[:200])
        try:
            replies.append((when, _Reply.model_validate(document)))
        except ValidationError as error:
            return _wrong_shape(error)
    # Servers differ in how they end a stream: some with [DONE], some with the reason alone.
    if not done and not any(one.finish_reason for _, reply in replies for one in reply.choices):
        said = sum(len(one.said) for _, reply in replies for one in reply.choices)
        return Failure(outcome="cut_stream", detail=f"after {len(parts)} events and {said} characters")
    return replies


def _parsed(data: bytes) -> object | Failure:
    try:
        text = data.decode("utf-8")
        found: object = json.loads(text)
        # A lone surrogate in an escape is no Unicode, and no record could hold it.
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        return Failure(outcome="invalid_json", detail=str(error).splitlines()[0][:200])
    return found


def _wrong_shape(error: ValidationError) -> Failure:
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = ".".join(str(part) for part in fault["loc"])
    return Failure(outcome="wrong_shape", detail=f"{path or 'the whole'}: {fault['msg'].lower()}"[:200])


def _prompt_ids(replies: Sequence[tuple[float, _Reply]]) -> tuple[int, ...]:
    for _, reply in replies:
        found = reply.prompt_token_ids or next((one.prompt_token_ids for one in reply.choices), None)
        if found:
            return tuple(found)
    return ()


def _tokens(choices: Sequence[_Choice]) -> tuple[Token, ...] | Failure:
    tokens: list[Token] = []
    for one in choices:
        if one.logprobs is None:
            continue
        found = _of_chat(one.logprobs) if one.logprobs.content is not None else _of_completion(one.logprobs)
        if isinstance(found, Failure):
            return found
        tokens += found
    for number, token in enumerate(tokens):
        for value in (token.logprob, *(value for _, value in token.top)):
            if value is not None and not (math.isfinite(value) and value <= SLACK):
                return Failure(outcome="bad_logprobs", detail=f"token {number}: {value}")
    return tuple(tokens)


def _of_chat(logprobs: _Logprobs) -> list[Token]:
    return [
        Token(
            text=one.token,
            logprob=one.logprob,
            top=tuple((top.token, top.logprob) for top in one.top_logprobs or ()),
            data=bytes(one.bytes or ()),
        )
        for one in logprobs.content or ()
    ]


def _of_completion(logprobs: _Logprobs) -> list[Token] | Failure:
    texts, values = logprobs.tokens or [], logprobs.token_logprobs or []
    tops: Sequence[Mapping[str, float] | None] = logprobs.top_logprobs or [None] * len(texts)
    if not len(texts) == len(values) == len(tops):
        detail = f"{len(texts)} tokens, {len(values)} logprobs and {len(tops)} lists of the best"
        return Failure(outcome="wrong_counts", detail=detail)
    return [
        Token(text=text, logprob=value, top=tuple((top or {}).items()))
        for text, value, top in zip(texts, values, tops, strict=True)
    ]


def _contradiction(answer: Answer, prompt: Prompt, asked: Asked) -> Failure | None:
    """Return what is wrong with an answer's own numbers. The end of a text may be counted or not."""
    ends = int(answer.finish == "stop")
    most = 1 if asked.echo else prompt.max_tokens
    if answer.new_tokens is not None and answer.new_tokens > most + ends:
        return _counts(f"{answer.new_tokens} new tokens, and {most} were asked for")
    listed = 0 if asked.echo else len(answer.tokens)
    if listed > most + ends:
        return _counts(f"logprobs of {listed} new tokens, and {most} were asked for")
    if listed and answer.new_tokens is not None and abs(listed - answer.new_tokens) > ends:
        return _counts(f"logprobs of {listed} tokens, and the usage says {answer.new_tokens}")
    if listed and answer.token_ids and abs(listed - len(answer.token_ids)) > ends:
        return _counts(f"logprobs of {listed} tokens, and {len(answer.token_ids)} token ids")
    return None


def _counts(detail: str) -> Failure:
    return Failure(outcome="wrong_counts", detail=detail)
