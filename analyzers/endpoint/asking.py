"""Ask all prompts in rounds: alone, once more, together, and for the prompts' own logprobs. Nothing is dropped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from day0.analyzers.endpoint.client import Reply, Server
from day0.analyzers.endpoint.outcomes import UNREACHED, WORDS, FailedOutcome, Failure, hint_for
from day0.analyzers.endpoint.places import Replies
from day0.analyzers.endpoint.prompts import Prompt
from day0.analyzers.endpoint.protocol import Answer, Asked, ServedModel
from day0.errors import Day0Error, near_names

__all__ = ["Abilities", "Round", "ask_rounds", "probe", "served_model"]

MOST_FAILED = 5
"""So many failures one after the other end a round: the rest would only wait for the same."""
BEST = 5

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Abilities:
    """What a server gave when it was asked for all that there is."""

    logprobs: bool
    ids: bool
    """Token ids beside texts."""
    echo: bool
    """Logprobs of the prompt."""
    top: int = BEST
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """The replies of one round in the order of the prompts, and the seconds that it took."""

    name: str
    replies: tuple[Reply, ...]
    seconds: float


def served_model(
    found: tuple[ServedModel, ...] | Failure, server: Server, option: str
) -> tuple[str, ServedModel | None]:
    """Return the name of the model to ask for, and what the server says of it; without a name the only one there is.

    A server without a list of models is asked all the same. Raises Day0Error: it cannot be asked, or has other models.
    """
    name = server.model
    if isinstance(found, Failure) and found.outcome != "not_found":
        raise _refusal(found, server)
    if isinstance(found, Failure) or not found:
        if not name:
            raise Day0Error(option, f"{server.root} does not say which models it has", hint="name one of them")
        return name, None
    names = tuple(server.secret.hide(one.id)[:200] for one in found)
    if not name and len(found) == 1:
        return found[0].id, found[0]
    for one in found:
        if one.id == name:
            return name, one
    facts = (*(f"it has {one}" for one in names[:10]), *((f"and {len(names) - 10} more",) if len(names) > 10 else ()))
    what = f"model_unknown: {server.root} does not have {name!r}" if name else f"{server.root} has {len(names)} models"
    raise Day0Error(option, what, facts=facts, hint=near_names(name, names) or "name one that it has")


async def probe(server: Server, prompts: Sequence[Prompt], has: tuple[ServedModel, ...] | Failure) -> Abilities:
    """Ask a prompt for all that there is, then for less until the server takes it.

    An answer that ends at once shows nothing; then the next prompt is asked. Raises Day0Error where it takes nothing.
    """
    refused = ""
    for prompt in prompts:
        for ids, top in ((True, BEST), (False, BEST), (False, 0)):
            reply = await server.ask(prompt, Asked(top=top, ids=ids))
            failure = reply.failure
            if failure is None or failure.outcome not in ("rejected", "server_error", "unexpected_status"):
                break
            refused = refused if ids else refused or server.secret.hide(failure.detail)
        if failure is not None:
            raise _refusal(failure, server, has)
        if reply.answer is not None and reply.answer.text:
            break
    answer = reply.answer
    assert answer is not None  # noqa: S101 - a reply has an answer or a failure
    notes = (f"a request for logprobs was refused: {refused}",) if refused and not top else ()
    echo = bool(answer.tokens) and server.api == "completions" and await _echoes(server, prompt)
    return Abilities(logprobs=bool(answer.tokens), ids=bool(answer.token_ids), echo=echo, notes=notes)


async def _echoes(server: Server, prompt: Prompt) -> bool:
    answer = (await server.ask(prompt, Asked(top=BEST, echo=True))).answer
    return answer is not None and answer.text.startswith(prompt.text) and len(answer.tokens) > 1


def _refusal(failure: Failure, server: Server, has: tuple[ServedModel, ...] | Failure = ()) -> Day0Error:
    facts = [f"{failure.outcome}: {failure.detail}"] if failure.detail else []
    if failure.outcome == "model_unknown" and not isinstance(has, Failure):
        facts += [f"it has {one.id[:200]}" for one in has[:10]]
    return Day0Error(
        server.root,
        WORDS[failure.outcome],
        facts=tuple(server.secret.hide(one) for one in facts),
        hint=hint_for(failure.outcome),
    )


async def ask_rounds(
    server: Server, prompts: Sequence[Prompt], can: Abilities, concurrency: int, progress: Progress
) -> tuple[tuple[Replies, ...], tuple[Round, ...]]:
    """Ask every prompt in every round, and return what became of each."""
    top = can.top if can.logprobs else 0
    plan = [
        ("alone", Asked(stream=True, top=top, ids=can.ids), 1),
        ("again", Asked(top=top, ids=can.ids), 1),
        ("together", Asked(stream=True, top=top, ids=can.ids), concurrency),
    ]
    if can.echo:
        plan.append(("echo", Asked(top=top, echo=True), concurrency))
    patience = _Patience()
    rounds = []
    for name, asked, many in plan:
        patience.begin()
        rounds.append(await _ask_round(server, prompts, name, asked, many, patience, progress))
    asked_of = tuple(
        Replies(prompt=prompt, rounds={one.name: one.replies[number] for one in rounds})
        for number, prompt in enumerate(prompts)
    )
    return asked_of, tuple(rounds)


@dataclass(kw_only=True, slots=True)
class _Patience:
    """How many requests have failed one after the other, and whether nobody was reached at all."""

    failed: int = 0
    unreached: int = 0

    @property
    def over(self) -> bool:
        return self.failed >= MOST_FAILED

    def begin(self) -> None:
        """Forget failures at the beginning of a round: it asks in another way. A server that is gone stays gone."""
        if self.unreached < MOST_FAILED:
            self.failed = self.unreached = 0

    def note(self, reply: Reply) -> None:
        gone = reply.failure is not None and reply.failure.outcome in UNREACHED
        self.failed = self.failed + 1 if reply.failure is not None else 0
        self.unreached = self.unreached + 1 if gone else 0


async def _ask_round(
    server: Server,
    prompts: Sequence[Prompt],
    name: str,
    asked: Asked,
    many: int,
    patience: _Patience,
    progress: Progress,
) -> Round:
    gate, done = asyncio.Semaphore(many), 0

    async def one(prompt: Prompt) -> Reply:
        nonlocal done
        async with gate:
            if patience.over:
                return Reply(prompt=prompt, failure=Failure(outcome="not_asked"))
            reply = _complete(await server.ask(prompt, asked), asked)
            patience.note(reply)
            done += 1
            progress(name, done, len(prompts))
            return reply

    began = time.perf_counter()
    replies = await asyncio.gather(*(one(prompt) for prompt in prompts))
    return Round(name=name, replies=tuple(replies), seconds=time.perf_counter() - began)


def _complete(reply: Reply, asked: Asked) -> Reply:
    """Refuse an answer without the logprobs that the server gave when it was probed."""
    answer = reply.answer
    if answer is None or not asked.top or not _lacks_logprobs(answer):
        return reply
    missing: FailedOutcome = "no_logprobs"
    return Reply(prompt=reply.prompt, failure=Failure(outcome=missing), earlier=reply.earlier)


def _lacks_logprobs(answer: Answer) -> bool:
    # An answer that ends at once has no tokens at all.
    return not answer.tokens and bool(answer.text)
