"""A server: what it has, and answers to prompts, asked again where that may help. Failures are values, and counted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from day0.analyzers.endpoint.outcomes import MAY_PASS, Failure
from day0.analyzers.endpoint.prompts import Prompt
from day0.analyzers.endpoint.protocol import PATHS, Answer, Api, Asked, ServedModel, body_of, read_answer, read_models
from day0.analyzers.endpoint.secret import Secret
from day0.analyzers.endpoint.transport import Limits, Received, request
from day0.errors import Day0Error

if TYPE_CHECKING:
    import httpx2

__all__ = ["Reply", "Retries", "Server", "api_root"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Retries:
    """How often a request that may yet pass is made again, and the seconds between: doubled each time, up to a most."""

    most: int = 2
    first_s: float = 0.5
    longest_s: float = 30.0

    def wait(self, tries: int, failure: Failure) -> float | None:
        """Return the seconds until the next try; None: there is none, or the server asks for too many."""
        if failure.outcome not in MAY_PASS or tries > self.most:
            return None
        # The exponent is bounded: 2 to a large power is no float.
        own = min(self.first_s * 2.0 ** min(tries - 1, 32), self.longest_s)
        wait = max(own, failure.wait_s or 0.0)
        return wait if wait <= self.longest_s else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What became of one prompt."""

    prompt: Prompt
    answer: Answer | None = None
    failure: Failure | None = None
    """Why there is no answer in the end."""
    earlier: tuple[Failure, ...] = ()
    """What happened before, in tries that were made again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """A server at a root that ends in `/v1`, and how it is asked."""

    http: httpx2.AsyncClient
    root: str
    model: str
    api: Api = "completions"
    secret: Secret
    limits: Limits
    retries: Retries

    def named(self, model: str) -> Server:
        """Return the same server, asked for a model."""
        return replace(self, model=model)

    async def models(self) -> tuple[ServedModel, ...] | Failure:
        """Return what the server has."""
        received = await self._tried("/models", None)
        return received[0] if isinstance(received[0], Failure) else read_models(received[0])

    async def ask(self, prompt: Prompt, asked: Asked) -> Reply:
        """Ask a prompt."""
        body = body_of(prompt, self.model, self.api, asked)
        received, earlier = await self._tried(PATHS[self.api], body)
        found = received if isinstance(received, Failure) else read_answer(received, prompt, asked)
        if isinstance(found, Failure):
            return Reply(prompt=prompt, failure=found, earlier=earlier)
        return Reply(prompt=prompt, answer=found, earlier=earlier)

    async def _tried(
        self, path: str, body: Mapping[str, object] | None
    ) -> tuple[Received | Failure, tuple[Failure, ...]]:
        earlier: list[Failure] = []
        while True:
            found = await request(self.http, self.root + path, body, self.secret.headers(), self.limits)
            if isinstance(found, Received):
                return found, tuple(earlier)
            wait = self.retries.wait(len(earlier) + 1, found)
            if wait is None:
                return found, tuple(earlier)
            earlier.append(found)
            await asyncio.sleep(wait)


def api_root(url: str, option: str) -> str:
    """Return the root of the API, which ends in `/v1`, of a server's address.

    Raises Day0Error for what is no plain http address: the message does not show what may be a password.
    """
    hint = "give an address such as http://127.0.0.1:8000"
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise Day0Error(option, f"this is no address: {str(error)[:100]}", hint=hint) from None
    if parts.username is not None or parts.password is not None:
        raise Day0Error(option, "there is a name or password in the address", hint="use --api-key-file in place of it")
    if parts.query or parts.fragment:
        raise Day0Error(option, "the address goes on after its path with ? or #", hint=hint)
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable() or " " in url.strip():
        raise Day0Error(option, f"{url[:200]!r} is no http address", hint=hint)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/")
    place = f"{parts.scheme}://{host}{f':{port}' if port is not None else ''}{path}"
    return place if path.endswith("/v1") else f"{place}/v1"
