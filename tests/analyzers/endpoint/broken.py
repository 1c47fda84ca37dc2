"""Servers that are wrong, on real sockets: each answers a request with bytes of its own, or not at all."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

__all__ = ["answer", "broken", "closed_port", "events", "reset", "silent", "whole"]

Act = Callable[[socket.socket], None]


def whole(text: str, *, finish: str = "length", usage: object = None, **more: object) -> str:
    """Return the JSON of a completion."""
    choice = {"text": text, "index": 0, "finish_reason": finish, **more}
    return json.dumps({"model": "tiny", "choices": [choice], **({} if usage is None else {"usage": usage})})


def answer(body: str | bytes, *, status: str = "200 OK", kind: str = "application/json", head: str = "") -> Act:
    """Return what answers with a body, and closes."""
    data = body.encode() if isinstance(body, str) else body

    def act(client: socket.socket) -> None:
        lines = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n{head}"
        client.sendall(f"{lines}Connection: close\r\n\r\n".encode() + data)

    return act


def events(*parts: str, chunked_end: bool = True, then: Act | None = None) -> Act:
    """Return what streams events; without its end the body is cut."""

    def act(client: socket.socket) -> None:
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for part in parts:
            data = part.encode()
            client.sendall(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        if then is not None:
            then(client)
        if chunked_end:
            client.sendall(b"0\r\n\r\n")

    return act


def reset(client: socket.socket) -> None:
    """Close so that the other side sees a reset and no end."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def silent(client: socket.socket) -> None:
    """Answer nothing for longer than any test waits; ends when the other side goes."""
    client.settimeout(20.0)
    client.recv(1)


def drip(client: socket.socket) -> None:
    """Send a header that never ends, a letter at a time."""
    client.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    for _ in range(400):
        client.sendall(b"a")
        time.sleep(0.05)


def closed_port() -> int:
    """Return a port of this machine on which nothing listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _read_request(client: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        part = client.recv(65536)
        if not part or part[0] == 0x16:  # a TLS handshake has no lines
            return part
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0
    )
    while len(body) < length:
        body += client.recv(65536)
    return head + b"\r\n\r\n" + body


class Seen:
    """Where a server listens, and the requests that it got."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.requests: list[bytes] = []


@contextmanager
def broken(acts: Sequence[Act]) -> Iterator[Seen]:
    """Serve each connection with the next of the acts, and those after the last with the last."""
    listener = socket.create_server(("127.0.0.1", 0))
    seen, workers = Seen(listener.getsockname()[1]), []

    def work(client: socket.socket, act: Act) -> None:
        with client:
            try:
                act(client)
            except OSError:
                return  # the other side went first, as it should

    def run() -> None:
        while True:
            try:
                client, _ = listener.accept()
                request = _read_request(client)
            except OSError:
                return
            if not request:
                client.close()
                continue
            act = acts[min(len(seen.requests), len(acts) - 1)]
            seen.requests.append(request)
            workers.append(threading.Thread(target=work, args=(client, act), daemon=True))
            workers[-1].start()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5.0)
        for worker in workers:
            worker.join(5.0)
