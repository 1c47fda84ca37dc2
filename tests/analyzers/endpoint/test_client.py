"""Every way in which a server can be wrong has a name of its own, and none waits longer or reads more than it may."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from email.utils import formatdate

import pytest

from day0.analyzers.endpoint.client import Reply, Retries, Server, api_root
from day0.analyzers.endpoint.outcomes import MAY_PASS, SERVER_FAULTS, UNREACHED, WORDS, Failure
from day0.analyzers.endpoint.prompts import Prompt
from day0.analyzers.endpoint.protocol import Api, Asked
from day0.analyzers.endpoint.secret import Secret
from day0.analyzers.endpoint.transport import Limits, open_client
from day0.errors import Day0Error
from tests.analyzers.endpoint.broken import Act, answer, broken, closed_port, drip, events, reset, silent, whole

PROMPT = Prompt(name="p", text="Hello", max_tokens=4)
KEY = "sk-very-secret-0123456789"
ERROR = json.dumps({"error": {"message": f"no, {KEY} is wrong", "type": "x"}})
PIECE = f"data: {whole('He', finish='')}\n\n".replace('"finish_reason": ""', '"finish_reason": null')


def ask(
    url: str,
    *,
    asked: Asked | None = None,
    retries: int = 0,
    seconds: float = 5.0,
    size: int = 1 << 16,
    longest: float = 1.0,
    api: Api = "completions",
) -> Reply:
    async def work() -> Reply:
        async with open_client(2, secure=url.startswith("https")) as http:
            server = Server(
                http=http,
                root=api_root(url, "--endpoint"),
                model="tiny",
                api=api,
                secret=Secret(KEY),
                limits=Limits(seconds=seconds, size=size),
                retries=Retries(most=retries, first_s=0.02, longest_s=longest),
            )
            return await server.ask(PROMPT, asked or Asked())

    return asyncio.run(work())


def logprobs(**fields: object) -> Act:
    return answer(whole("ab", logprobs=fields))


CASES: dict[str, tuple[str, Act, Asked]] = {
    "401": ("unauthorized", answer(ERROR, status="401 Unauthorized"), Asked()),
    "403": ("forbidden", answer(ERROR, status="403 Forbidden"), Asked()),
    "404 of the model": (
        "model_unknown",
        answer('{"error": {"message": "The model `tiny` does not exist."}}', status="404 Not Found"),
        Asked(),
    ),
    "404 of the path": ("not_found", answer('{"detail": "Not Found"}', status="404 Not Found"), Asked()),
    "404 page about models": (
        "not_found",
        answer("<html>see our model page</html>", status="404 Not Found", kind="text/html"),
        Asked(),
    ),
    "400": ("rejected", answer(ERROR, status="400 Bad Request"), Asked()),
    "422": ("rejected", answer('{"detail": [{"msg": "no such field"}]}', status="422 Unprocessable"), Asked()),
    "429": ("rate_limited", answer(ERROR, status="429 Too Many Requests"), Asked()),
    "500": ("server_error", answer(ERROR, status="500 Internal Server Error"), Asked()),
    "502": ("unavailable", answer("<h1>bad gateway</h1>", status="502 Bad Gateway", kind="text/html"), Asked()),
    "503": ("unavailable", answer(ERROR, status="503 Service Unavailable"), Asked()),
    "204": ("unexpected_status", answer("", status="204 No Content"), Asked()),
    "302": ("redirected", answer("", status="302 Found", head="Location: http://127.0.0.1:1/\r\n"), Asked()),
    "a page": ("not_json", answer("<html><title>Login</title></html>", kind="text/html"), Asked()),
    "no HTTP at all": ("not_http", lambda client: client.sendall(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), Asked()),
    "half of the JSON": ("invalid_json", answer(whole("Hello")[:-9]), Asked()),
    "not UTF-8": ("invalid_json", answer(whole("Hello").encode().replace(b"Hello", b"H\xff")), Asked()),
    "half of a character": ("invalid_json", answer(whole("x").replace('"x"', r'"\ud800"')), Asked()),
    "deep JSON": ("invalid_json", answer("[" * 30_000), Asked()),
    "a list": ("wrong_shape", answer("[]"), Asked()),
    "no choices": ("wrong_shape", answer('{"choices": []}'), Asked()),
    "a number for a text": ("wrong_shape", answer('{"choices": [{"text": 7}]}'), Asked()),
    "an error with 200": ("wrong_shape", answer('{"error": {"message": "boom"}}'), Asked()),
    "compressed": ("compressed", answer(b"\x1f\x8b00", head="Content-Encoding: gzip\r\n"), Asked()),
    "large": ("too_large", answer(whole("x" * 70_000)), Asked()),
    "large, of unknown length": (
        "too_large",
        lambda client: client.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + b" " * 80_000),
        Asked(),
    ),
    "a large event": ("too_large", events("data: " + "x" * 80_000), Asked(stream=True)),
    "many events": ("too_large", events(*[PIECE] * 900), Asked(stream=True)),
    "half an answer": (
        "cut_answer",
        lambda client: client.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{"
        ),
        Asked(),
    ),
    "a stream without an end": ("cut_stream", events(PIECE), Asked(stream=True)),
    "a stream cut in an event": ("cut_stream", events(PIECE, PIECE[:20]), Asked(stream=True)),
    "a stream cut in a chunk": ("cut_stream", events(PIECE, chunked_end=False), Asked(stream=True)),
    "an empty stream": ("cut_stream", events(), Asked(stream=True)),
    "an error in a stream": (
        "error_in_stream",
        events(PIECE, 'data: {"error": "CUDA out of memory"}\n\n'),
        Asked(stream=True),
    ),
    "bad JSON in a stream": ("invalid_json", events(PIECE, "data: {oops\n\n"), Asked(stream=True)),
    "a reset": ("reset", reset, Asked()),
    "a reset in a stream": ("reset", events(PIECE, then=reset), Asked(stream=True)),
    "closed without a word": ("reset", lambda client: client.close(), Asked()),
    "more tokens than asked for": ("wrong_counts", answer(whole("ab", usage={"completion_tokens": 9})), Asked()),
    "more logprobs than tokens": (
        "wrong_counts",
        answer(
            whole("ab", usage={"completion_tokens": 1}, logprobs={"tokens": ["a", "b"], "token_logprobs": [-1.0, -1.0]})
        ),
        Asked(top=1),
    ),
    "lists of other lengths": ("wrong_counts", logprobs(tokens=["a", "b"], token_logprobs=[-1.0]), Asked(top=1)),
    "fewer ids than logprobs": (
        "wrong_counts",
        answer(whole("ab", token_ids=[1], logprobs={"tokens": ["a", "b", "c"], "token_logprobs": [-1.0] * 3})),
        Asked(top=1, ids=True),
    ),
    "a logprob above 0": ("bad_logprobs", logprobs(tokens=["a"], token_logprobs=[0.5]), Asked(top=1)),
    "a logprob that is no number": (
        "bad_logprobs",
        logprobs(tokens=["a"], token_logprobs=[float("nan")]),
        Asked(top=1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_answer_has_its_own_name(name: str) -> None:
    outcome, act, asked = CASES[name]
    with broken([act]) as seen:
        reply = ask(seen.url, asked=asked)
    assert reply.answer is None
    assert reply.failure is not None
    assert reply.failure.outcome == outcome, reply.failure
    assert len(seen.requests) == 1


def test_nothing_listens() -> None:
    reply = ask(f"http://127.0.0.1:{closed_port()}")
    assert reply.failure is not None
    assert reply.failure.outcome == "refused"


def test_a_host_without_a_name() -> None:
    reply = ask("http://999.999.999.999:80")
    assert reply.failure is not None
    assert reply.failure.outcome == "unresolved"


def test_http_in_place_of_tls() -> None:
    with broken([answer(whole("x"))]) as seen:
        reply = ask(seen.url.replace("http:", "https:"))
    assert reply.failure is not None
    assert reply.failure.outcome == "tls"


@pytest.mark.parametrize("act", [silent, drip, events(PIECE, then=silent)], ids=["silent", "dripping", "stopped"])
def test_no_request_takes_longer_than_its_time(act: Act) -> None:
    with broken([act]) as seen:
        reply = ask(seen.url, seconds=0.3, asked=Asked(stream=True))
    assert reply.failure is not None
    assert reply.failure.outcome == "timeout"


GOOD = answer(whole("Hi", usage={"prompt_tokens": 1, "completion_tokens": 1}))


@pytest.mark.parametrize(
    "act",
    [reset, answer(ERROR, status="429 Slow Down"), answer(ERROR, status="503 Service Unavailable"), silent],
    ids=["reset", "429", "503", "timeout"],
)
def test_what_may_pass_is_tried_again_and_counted(act: Act) -> None:
    with broken([act, act, GOOD]) as seen:
        reply = ask(seen.url, retries=2, seconds=1.5)
    assert reply.answer is not None
    assert len(reply.earlier) == 2
    assert {one.outcome for one in reply.earlier} <= MAY_PASS


def test_tries_are_bounded() -> None:
    with broken([answer(ERROR, status="503 Service Unavailable")]) as seen:
        reply = ask(seen.url, retries=3)
    assert reply.failure is not None
    assert (len(seen.requests), len(reply.earlier)) == (4, 3)


@pytest.mark.parametrize("status", ["401 Unauthorized", "400 Bad Request", "500 Internal Server Error"])
def test_what_stays_is_not_tried_again(status: str) -> None:
    with broken([answer(ERROR, status=status), GOOD]) as seen:
        reply = ask(seen.url, retries=3)
    assert reply.answer is None
    assert len(seen.requests) == 1


@pytest.mark.parametrize("as_date", [False, True])
def test_retry_after_is_read_as_seconds_and_as_a_date(as_date: bool) -> None:
    wait = formatdate(time.time() + 600, usegmt=True) if as_date else "600"
    with broken([answer(ERROR, status="429 Slow Down", head=f"Retry-After: {wait}\r\n")]) as seen:
        reply = ask(seen.url)
    assert reply.failure is not None
    assert reply.failure.wait_s == pytest.approx(600, abs=60)


def test_retry_after_is_kept() -> None:
    waits = Retries(most=3, first_s=0.5, longest_s=30.0)
    assert waits.wait(1, Failure(outcome="rate_limited", wait_s=7.0)) == 7.0
    assert waits.wait(3, Failure(outcome="rate_limited", wait_s=0.0)) == 2.0
    assert waits.wait(4, Failure(outcome="rate_limited")) is None


def test_a_server_that_wants_an_hour_is_not_waited_for() -> None:
    with broken([answer(ERROR, status="429 Slow Down", head="Retry-After: 3600\r\n"), GOOD]) as seen:
        reply = ask(seen.url, retries=5)
    assert reply.failure is not None
    assert reply.failure.wait_s == 3600.0
    assert len(seen.requests) == 1


@pytest.mark.parametrize("end", ["data: [DONE]\n\n", f"data: {whole('', finish='length')}\n\n"], ids=["done", "reason"])
def test_a_stream_ends_with_done_or_with_a_reason(end: str) -> None:
    with broken([events(PIECE, ": a comment\n\n", PIECE, end)]) as seen:
        reply = ask(seen.url, asked=Asked(stream=True))
    assert reply.answer is not None
    assert reply.answer.text == "HeHe"
    assert reply.answer.first_s is not None


def test_a_server_that_does_not_stream_is_read_all_the_same() -> None:
    with broken([GOOD]) as seen:
        reply = ask(seen.url, asked=Asked(stream=True))
    assert reply.answer is not None
    assert reply.answer.first_s is None


def test_the_key_goes_to_the_server_and_into_no_message() -> None:
    with broken([answer(ERROR, status="401 Unauthorized")]) as seen:
        reply = ask(seen.url)
    assert f"Bearer {KEY}".encode() in seen.requests[0]
    assert KEY not in repr(Secret(KEY))
    assert reply.failure is not None
    assert Secret(KEY).hide(reply.failure.detail) == "401: no, [key] is wrong"


def test_no_key_follows_a_redirection() -> None:
    with broken([GOOD]) as other, broken([answer("", status="307 Go", head=f"Location: {other.url}\r\n")]) as seen:
        reply = ask(seen.url)
    assert reply.failure is not None
    assert other.requests == []


def test_without_the_library_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(Day0Error) as caught:
        open_client(1, secure=False)
    assert caught.value.hint == "install the extra: pip install 'day0[hf]'"


def test_each_outcome_has_words_and_a_kind() -> None:
    assert not UNREACHED & SERVER_FAULTS
    assert MAY_PASS <= UNREACHED
    assert WORDS.keys() >= UNREACHED | SERVER_FAULTS


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1"),
        ("https://host.example/models/x/v1", "https://host.example/models/x/v1"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_an_address_becomes_the_root_of_the_api(url: str, root: str) -> None:
    assert api_root(url, "--endpoint") == root


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8000",
        "ftp://host",
        "http://",
        "http://host:99999",
        "http://h?x=1",
        "http://a b",
        "http://\x1b[2J",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(Day0Error):
        api_root(url, "--endpoint")


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(Day0Error) as caught:
        api_root(f"http://me:{KEY}@host", "--endpoint")
    assert KEY not in str(caught.value)
