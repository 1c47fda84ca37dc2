"""One HTTP request with limits on time and size; whatever goes wrong has a name.

The library is httpx2, which huggingface_hub brings: it cancels a request at any point of it, also while a server
drips headers, and reads server-sent events.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from day0.analyzers.endpoint.outcomes import FailedOutcome, Failure
from day0.errors import Day0Error

if TYPE_CHECKING:
    import httpx2

__all__ = ["Event", "Limits", "Received", "open_client", "request"]

MAX_ERROR_BYTES = 64 << 10
_STATUS: dict[int, FailedOutcome] = {
    401: "unauthorized",
    403: "forbidden",
    429: "rate_limited",
    502: "unavailable",
    503: "unavailable",
    504: "unavailable",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How long one request may take as a whole, in seconds, and how large its answer may be, in bytes."""

    seconds: float = 60.0
    size: int = 16 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One server-sent event, and how many seconds after the request it came."""

    seconds: float
    data: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """A whole answer: either a body or the events of a stream."""

    seconds: float
    body: bytes | None = None
    events: tuple[Event, ...] = ()


def open_client(concurrency: int, *, secure: bool) -> httpx2.AsyncClient:
    """Return a client that takes nothing from the environment: no proxy, no certificates, no passwords of `.netrc`.

    Without `secure` it trusts nobody, which takes less time to set up: for addresses that are plain http.
    Raises Day0Error where httpx2 is not installed.
    """
    try:
        import httpx2
    except ModuleNotFoundError as error:
        if error.name != "httpx2":
            raise
        raise Day0Error(
            "--endpoint", "the httpx2 library is not installed", hint="install the extra: pip install 'day0[hf]'"
        ) from None
    pool = httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    # No limits of its own: asyncio.timeout covers the whole request, where httpx2 covers each read alone.
    trusted = True if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx2.AsyncClient(timeout=None, limits=pool, trust_env=False, follow_redirects=False, verify=trusted)


async def request(
    client: httpx2.AsyncClient, url: str, body: Mapping[str, object] | None, headers: dict[str, str], limits: Limits
) -> Received | Failure:
    """Send one request, as POST where there is a body, and read all of the answer."""
    import httpx2

    began, seen = time.perf_counter(), _Seen()
    try:
        async with asyncio.timeout(limits.seconds):
            return await _request(client, url, body, headers, limits, seen)
    except TimeoutError:
        waited = f"{seen.bytes:,} bytes" if seen.status else "nothing"
        return Failure(outcome="timeout", detail=f"{waited} within {limits.seconds:g} s")
    except httpx2.ConnectError as error:
        return _unconnected(error)
    except (httpx2.SSEError, _TooLargeError) as error:
        return Failure(outcome="too_large", detail=str(error))
    except httpx2.RemoteProtocolError as error:
        cut: FailedOutcome = "cut_stream" if seen.streams else "cut_answer"
        text = f"{_first_line(error)} after {time.perf_counter() - began:.3g} s"
        return Failure(outcome=cut if seen.status else _unlike_http(error), detail=text)
    except httpx2.TransportError as error:
        return Failure(outcome="reset", detail=_first_line(error) or type(error).__name__)
    except httpx2.InvalidURL as error:
        return Failure(outcome="unresolved", detail=_first_line(error))


class _TooLargeError(Exception):
    """An answer grew over its limit."""


@dataclass(kw_only=True, slots=True)
class _Seen:
    """How far a request came before it broke."""

    status: int = 0
    streams: bool = False
    bytes: int = 0

    def count(self, size: int, limit: int) -> None:
        """Add what came. Raises _TooLargeError."""
        self.bytes += size
        if self.bytes > limit:
            raise _TooLargeError(f"more than {limit:,} bytes")


async def _request(
    client: httpx2.AsyncClient,
    url: str,
    body: Mapping[str, object] | None,
    headers: dict[str, str],
    limits: Limits,
    seen: _Seen,
) -> Received | Failure:
    import httpx2

    began = time.perf_counter()
    # Compressed answers are not asked for: a small one can be a very large one.
    sent = {"Accept-Encoding": "identity", "Accept": "application/json, text/event-stream", **headers}
    method = "GET" if body is None else "POST"
    async with client.stream(method, url, json=body, headers=sent) as response:
        seen.status = response.status_code
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code != 200:
            return await _refused(response, kind)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            return Failure(outcome="compressed", detail=response.headers["content-encoding"][:40])
        if kind == "text/event-stream":
            seen.streams = True
            events = []
            async for one in httpx2.EventSource(response, max_event_size=limits.size):
                seen.count(len(one.data), limits.size)
                events.append(Event(seconds=time.perf_counter() - began, data=one.data))
            return Received(seconds=time.perf_counter() - began, events=tuple(events))
        data = await _whole(response, limits.size, seen)
        if kind not in ("", "application/json", "text/json") and not kind.endswith("+json"):
            return Failure(outcome="not_json", detail=f"{kind[:60]}: {_text(data)}")
        return Received(seconds=time.perf_counter() - began, body=data)


async def _whole(response: httpx2.Response, limit: int, seen: _Seen) -> bytes:
    size = response.headers.get("content-length", "")
    if size.isdecimal() and len(size) < 19:
        seen.count(int(size), limit)
        seen.bytes = 0
    parts = []
    async for part in response.aiter_raw():
        seen.count(len(part), limit)
        parts.append(part)
    return b"".join(parts)


async def _refused(response: httpx2.Response, kind: str) -> Failure:
    """Name the case of an answer with another status than 200."""
    status = response.status_code
    if 300 <= status < 400:
        return Failure(outcome="redirected", detail=f"{status} to {response.headers.get('location', '?')[:200]}")
    data = b""
    async for part in response.aiter_raw():
        data += part
        if len(data) > MAX_ERROR_BYTES:
            break
    said = f"{status}: {_message(data[:MAX_ERROR_BYTES])}"
    if status in _STATUS:
        return Failure(outcome=_STATUS[status], detail=said, wait_s=_wait(response.headers.get("retry-after", "")))
    if status == 404:
        return Failure(
            outcome="model_unknown" if kind != "text/html" and b"model" in data else "not_found", detail=said
        )
    if 400 <= status < 500:
        return Failure(outcome="rejected", detail=said)
    return Failure(outcome="server_error" if status >= 500 else "unexpected_status", detail=said)


def _message(data: bytes) -> str:
    """Return the server's own words: those of the API's error form, else the beginning of what it sent."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return _text(data)
    found = document
    for key in ("error", "detail", "message"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return found[:300] if isinstance(found, str) else _text(data)


def _text(data: bytes) -> str:
    return " ".join(data[:400].decode("utf-8", "replace").split())[:200]


def _wait(text: str) -> float | None:
    """Return the seconds of a Retry-After header, which holds seconds or a date."""
    if text.isdecimal() and len(text) < 10:
        return float(text)
    try:
        then = parsedate_to_datetime(text)
    except ValueError:
        return None
    aware = then if then.tzinfo is not None else then.replace(tzinfo=UTC)
    return max(0.0, (aware - datetime.now(UTC)).total_seconds())


def _unconnected(error: Exception) -> Failure:
    """Tell a closed port, a name that nobody knows and a failed handshake apart by what lies below the error."""
    below: BaseException | None = error
    kinds: set[str] = set()
    while below is not None:
        kinds.add(type(below).__name__)
        below = below.__cause__ or below.__context__
    text = _first_line(error)
    if kinds & {"SSLError", "SSLCertVerificationError", "SSLEOFError", "SSLZeroReturnError"}:
        return Failure(outcome="tls", detail=text)
    return Failure(outcome="refused" if "ConnectionRefusedError" in kinds else "unresolved", detail=text)


def _unlike_http(error: Exception) -> FailedOutcome:
    """Closed without a word is a reset; other words than HTTP are no answer of an API."""
    return "reset" if "disconnected" in str(error).lower() else "not_http"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
