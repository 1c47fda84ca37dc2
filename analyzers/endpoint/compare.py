"""The whole comparison: who is there, ask, hold against the reference, measure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from day0.analyzers.canary.gates import Figure
from day0.analyzers.endpoint.against import Rounding, judge_against
from day0.analyzers.endpoint.asking import Abilities, Round, ask_rounds, probe, served_model
from day0.analyzers.endpoint.client import Retries, Server
from day0.analyzers.endpoint.figures import default_gates, measure_endpoint
from day0.analyzers.endpoint.identity import refuse_other_counts, refuse_other_size, refuse_other_tokens
from day0.analyzers.endpoint.local import LocalReference
from day0.analyzers.endpoint.places import Judged, Replies
from day0.analyzers.endpoint.prompts import PromptSet
from day0.analyzers.endpoint.protocol import Api, ServedModel
from day0.analyzers.endpoint.secret import Secret
from day0.analyzers.endpoint.transport import Limits, open_client
from day0.errors import Day0Error
from day0.playbook import Gate

__all__ = ["Comparison", "Plan", "Side", "compare"]

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """A server as the user names it."""

    root: str
    model: str = ""
    """Empty: the only one that it has."""
    secret: Secret
    option: str
    """The option that names it, for messages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is asked of whom, and what it is held against: a folder or another server."""

    side: Side
    reference: LocalReference | Side
    prompts: PromptSet
    api: Api
    dtype: torch.dtype = torch.bfloat16
    """What both servers compute in; a folder knows its own."""
    concurrency: int = 8
    limits: Limits
    retries: Retries
    gates: tuple[Gate, ...] = ()
    """Of the user; each takes the place of the default gate on the same figure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """All that a report is made of."""

    server: Server
    reference: str
    can: Abilities
    asked: tuple[Replies, ...]
    rounds: tuple[Round, ...]
    judged: tuple[Judged, ...]
    figures: Mapping[str, float | Figure]
    gates: tuple[Gate, ...]
    left_out: Mapping[str, str]
    facts: Mapping[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """One server's part."""

    server: Server
    served: ServedModel | None
    can: Abilities
    replies: tuple[Replies, ...]
    rounds: tuple[Round, ...]


def compare(plan: Plan, progress: Progress) -> Comparison:
    """Ask the server and hold its answers against the reference.

    Raises Day0Error: a server that cannot be asked at all, a prompt that the API or the reference cannot take, a
    reference of another model. What fails later is counted.
    """
    _refuse_unfit_prompts(plan)
    mine, theirs = asyncio.run(_ask_all(plan, progress))
    if isinstance(plan.reference, LocalReference):
        refuse_other_tokens(mine.replies, plan.reference.vocabulary)
        judged = plan.reference.judge(mine.replies, plan.api, progress)
        title, where = plan.reference.title, str(plan.reference.folder)
    else:
        assert theirs is not None  # noqa: S101 - it was asked, as the plan names it
        judged = judge_against(mine.replies, theirs.replies, Rounding.of(plan.dtype))
        title, where = f"{theirs.server.model} at {theirs.server.root}", theirs.server.root
    refuse_other_counts(judged, where)
    gates, left_out = _gates(plan, mine, theirs, judged)
    return Comparison(
        server=mine.server,
        reference=title,
        can=mine.can,
        asked=mine.replies,
        rounds=mine.rounds,
        judged=judged,
        figures=measure_endpoint(mine.replies, judged, mine.rounds),
        gates=gates,
        left_out=left_out,
        facts=_facts(plan, mine),
        notes=(*mine.can.notes, *_notes_on(theirs)),
    )


def _refuse_unfit_prompts(plan: Plan) -> None:
    for one in plan.prompts.prompts:
        if one.messages and plan.api == "completions":
            what = f"prompt {one.name!r} is a chat, which completions cannot ask"
            raise Day0Error("--api", what, hint="leave --api away, or write --api chat")
        if isinstance(plan.reference, LocalReference):
            plan.reference.vocabulary.encode(one, plan.api)  # raises for what its template cannot make


async def _ask_all(plan: Plan, progress: Progress) -> tuple[_Asked, _Asked | None]:
    sides = (plan.side, *((plan.reference,) if isinstance(plan.reference, Side) else ()))
    secure = any(one.root.startswith("https:") for one in sides)
    async with open_client(plan.concurrency, secure=secure) as http:

        async def server_of(side: Side) -> tuple[Server, ServedModel | None, Abilities]:
            nameless = Server(
                http=http,
                root=side.root,
                model=side.model,
                api=plan.api,
                secret=side.secret,
                limits=plan.limits,
                retries=plan.retries,
            )
            found = await nameless.models()
            name, served = served_model(found, nameless, side.option)
            server = nameless.named(name)
            return server, served, await probe(server, plan.prompts.prompts[:3], found)

        async def ask(side: Side) -> _Asked:
            server, served, can = await server_of(side)
            if isinstance(plan.reference, LocalReference):
                refuse_other_size(served, plan.reference.vocabulary.size, str(plan.reference.folder))
            replies, rounds = await ask_rounds(server, plan.prompts.prompts, can, plan.concurrency, progress)
            return _Asked(server=server, served=served, can=can, replies=replies, rounds=rounds)

        mine = await ask(plan.side)
        # One after the other: two servers on one machine would slow each other.
        return mine, await ask(plan.reference) if isinstance(plan.reference, Side) else None


def _gates(
    plan: Plan, mine: _Asked, theirs: _Asked | None, judged: Sequence[Judged]
) -> tuple[tuple[Gate, ...], dict[str, str]]:
    can = mine.can
    if theirs is not None:
        can = Abilities(
            logprobs=can.logprobs and theirs.can.logprobs,
            ids=can.ids and theirs.can.ids,
            echo=can.echo and theirs.can.echo,
        )
    counts = any(one.prompt_tokens is not None and one.counted is not None for one in judged)
    answers = any(one.answers for one in plan.prompts.prompts)
    gates, left_out = default_gates(can, counts=counts or not judged, answers=answers)
    asked_for = {one.metric for one in plan.gates}
    kept = tuple(one for one in gates if one.metric not in asked_for)
    return (*kept, *plan.gates), {name: why for name, why in left_out.items() if name not in asked_for}


def _facts(plan: Plan, mine: _Asked) -> dict[str, str]:
    facts = {"server logprobs": "given" if mine.can.logprobs else "not given"}
    facts["server token ids"] = "given" if mine.can.ids else "not given"
    if mine.served is not None and mine.served.root:
        facts["server weights"] = mine.served.root[:300]
    if isinstance(plan.reference, LocalReference):
        facts["reference tokens"] = str(plan.reference.vocabulary.size)
        facts["reference tokenizer"] = plan.reference.vocabulary.fingerprint
        facts["reference weights"] = plan.reference.spec.fingerprint
    return facts


def _notes_on(theirs: _Asked | None) -> tuple[str, ...]:
    """Say what the reference server did not answer: those prompts are not judged."""
    lacking = [one.prompt.name for one in theirs.replies if one.main is None] if theirs is not None else []
    return (f"the reference did not answer {len(lacking)} prompts: {', '.join(lacking[:5])}",) if lacking else ()
