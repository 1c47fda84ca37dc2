"""A small real server: it computes every answer with a transformers model, over the standard library's HTTP server.

It speaks what vLLM speaks: both APIs, streams, logprobs, token ids on demand, and the prompt's own logprobs.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
import transformers as typed

transformers: Any = typed
"""Much of it has no annotations."""

NAME = "tiny"


@dataclass(kw_only=True)
class Service:
    """A model, and which of its server's manners are switched off or wrong."""

    folder: Path
    name: str = NAME
    logprobs: bool = True
    ids: bool = True
    echo: bool = True
    extra_bos: bool = False
    """Begin the prompt twice, as servers do that tokenize the text of a template."""
    crowd_bug: float = 0.0
    """Change the logits by so much while there are other requests."""
    lie: float = 0.0
    """Add this to every logprob that is shown."""
    trouble: Callable[[dict[str, Any]], tuple[int, str] | None] = lambda body: None
    """Says for a request whether it is answered with another status, and with which text."""
    models_extra: dict[str, Any] = field(default_factory=dict)
    listed: bool = True
    """Whether the list of models has it."""
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        vision = (self.folder / "processor_config.json").is_file()
        auto = transformers.AutoModelForImageTextToText if vision else transformers.AutoModelForCausalLM
        self.model = auto.from_pretrained(self.folder, dtype="auto").eval()
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(self.folder)
        self.processor = transformers.AutoProcessor.from_pretrained(self.folder) if vision else None
        self.busy = 0
        self.lock, self.counting = threading.Lock(), threading.Lock()

    def encode(self, body: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
        """Return the prompt's ids, and what else the model takes: its images."""
        if "prompt" in body:
            ids = self.tokenizer(body["prompt"])["input_ids"]
            return ([0, *ids] if self.extra_bos else list(ids)), {}
        maker, messages = self.tokenizer, body["messages"]
        if self.processor is not None:
            maker, messages = self.processor, [{**one, "content": _parts(one["content"])} for one in messages]
        found = maker.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        )
        images = {"pixel_values": found["pixel_values"]} if "pixel_values" in found else {}
        return found["input_ids"][0].tolist(), images

    def generate(self, ids: list[int], most: int, images: dict[str, Any]) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield tokens with the logprobs they were chosen from, [V]."""
        cache: Any = None
        new = ids
        with torch.no_grad():
            for _ in range(most):
                # One forward at a time: torch's threads would only be in each other's way.
                with self.lock:
                    output = self.model(torch.tensor([new]), cache=cache, use_cache=True, **images)
                    images = {}  # they are in the cache now
                    cache, logits_V = output.cache, output.logits[0, -1].double()
                if self.crowd_bug and self.busy > 1:
                    logits_V = logits_V.clone()
                    logits_V[logits_V.topk(2).indices[1]] += self.crowd_bug
                token = int(logits_V.argmax())
                yield token, torch.log_softmax(logits_V, dim=-1)
                if token == self.tokenizer.eos_token_id:
                    return
                new = [token]

    def shown(self, token: int) -> str:
        return str(self.tokenizer.decode([token]))

    def top(self, logprobs_V: torch.Tensor, most: int) -> list[tuple[str, float]]:
        best = logprobs_V.topk(most)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [(self.shown(one), value + self.lie) for one, value in pairs]

    def logprobs_of(self, rows: Sequence[tuple[int, torch.Tensor | None]], body: dict[str, Any]) -> Any:
        """Return the logprobs part of a choice in the form of the API that was asked."""
        if not self.logprobs or not body.get("logprobs"):
            return None
        chat = "messages" in body
        most = int(body.get("top_logprobs") or 0) if chat else int(body["logprobs"])
        shown = [
            (
                self.shown(one),
                None if row is None else float(row[one]) + self.lie,
                [] if row is None else self.top(row, most),
            )
            for one, row in rows
        ]
        if chat:
            return {
                "content": [
                    {"token": text, "logprob": value, "top_logprobs": [{"token": a, "logprob": b} for a, b in top]}
                    for text, value, top in shown
                ]
            }
        return {
            "tokens": [text for text, _, _ in shown],
            "token_logprobs": [value for _, value, _ in shown],
            "top_logprobs": [dict(top) if value is not None else None for _, value, top in shown],
        }

    def prompt_rows(self, ids: list[int]) -> list[tuple[int, torch.Tensor | None]]:
        with torch.no_grad(), self.lock:
            logprobs_SV = torch.log_softmax(self.model(torch.tensor([ids])).logits[0].double(), dim=-1)
        return [(ids[0], None), *((one, logprobs_SV[at]) for at, one in enumerate(ids[1:]))]


def _parts(content: Any) -> list[dict[str, Any]]:
    """Return a message's parts as a processor takes them."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [one if one["type"] == "text" else {"type": "image", "url": one["image_url"]["url"]} for one in parts]


def _choice(service: Service, body: dict[str, Any], rows: Sequence[tuple[int, torch.Tensor | None]], text: str) -> Any:
    key = "text" if "prompt" in body else "delta" if body.get("stream") else "message"
    choice: dict[str, Any] = {"index": 0, key: text if key == "text" else {"role": "assistant", "content": text}}
    choice["logprobs"] = service.logprobs_of(rows, body)
    if service.ids and body.get("return_token_ids"):
        choice["token_ids"] = [one for one, _ in rows]
    return choice


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: Service

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        entry = {"id": self.service.name, "object": "model", **self.service.models_extra}
        self._json({"object": "list", "data": [entry] if self.service.listed else []})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        service = self.service
        service.bodies.append(body)
        service.keys.append(self.headers.get("Authorization"))
        trouble = service.trouble(body)
        if trouble is not None:
            self._json({"error": {"message": trouble[1]}}, trouble[0])
            return
        if body["model"] != service.name:
            self._json({"error": {"message": f"The model `{body['model']}` does not exist.", "code": 404}}, 404)
            return
        if body.get("return_token_ids") and not service.ids:
            self._json({"detail": "Unexpected fields in the request: {'return_token_ids'}"}, 422)
            return
        with service.counting:
            service.busy += 1
        try:
            self._answer(body, *service.encode(body))
        finally:
            with service.counting:
                service.busy -= 1

    def _answer(self, body: dict[str, Any], ids: list[int], images: dict[str, Any]) -> None:
        service = self.service
        steps = service.generate(ids, body["max_tokens"], images)
        if body.get("stream"):
            self._stream(body, ids, steps)
            return
        rows: list[tuple[int, torch.Tensor | None]] = list(steps)
        new = [one for one, _ in rows]
        text = service.tokenizer.decode(new, skip_special_tokens=True)
        if body.get("echo") and service.echo:
            rows = [*service.prompt_rows(ids), *rows]
            text = body["prompt"] + text
        choice = _choice(service, body, rows, text)
        choice["finish_reason"] = self._finish(new)
        self._json({"model": service.name, "choices": [choice], "usage": _usage(ids, new)})

    def _stream(self, body: dict[str, Any], ids: list[int], steps: Iterator[tuple[int, torch.Tensor]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        service, new, said = self.service, [], ""
        for token, row in steps:
            new.append(token)
            text = service.tokenizer.decode(new, skip_special_tokens=True)
            # A character in parts is held back until it is whole, or never will be.
            if text.endswith("\N{REPLACEMENT CHARACTER}") and len(new) < body["max_tokens"]:
                text = said if text.startswith(said) else text
            self._event({"choices": [_choice(service, body, [(token, row)], text[len(said) :])]})
            said = text
        last: dict[str, Any] = {"index": 0, "finish_reason": self._finish(new)}
        rest = service.tokenizer.decode(new, skip_special_tokens=True)[len(said) :]
        last |= {"text": rest} if "prompt" in body else {"delta": {"content": rest}}
        self._event({"choices": [last]})
        if (body.get("stream_options") or {}).get("include_usage"):
            self._event({"choices": [], "usage": _usage(ids, new)})
        self.wfile.write(b"data: [DONE]\n\n")

    def _finish(self, new: list[int]) -> str:
        return "stop" if new[-1] == self.service.tokenizer.eos_token_id else "length"

    def _event(self, document: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps({'model': self.service.name, **document})}\n\n".encode())
        self.wfile.flush()

    def _json(self, document: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _usage(ids: list[int], new: list[int]) -> dict[str, int]:
    return {"prompt_tokens": len(ids), "completion_tokens": len(new), "total_tokens": len(ids) + len(new)}


@contextmanager
def serve(service: Service) -> Iterator[Service]:
    """Serve on a free port of this machine until the end of the block."""
    handler = type("Handler", (_Handler,), {"service": service})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
