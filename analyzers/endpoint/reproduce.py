"""The request of one prompt as a file and a `curl` command, without the key."""

from __future__ import annotations

import json
import shlex

from day0.analyzers.endpoint.client import Server
from day0.analyzers.endpoint.prompts import Prompt
from day0.analyzers.endpoint.protocol import PATHS, Asked, body_of

__all__ = ["curl_command", "request_body"]


def request_body(server: Server, prompt: Prompt, top: int) -> str:
    """Return the JSON text of the request."""
    return json.dumps(body_of(prompt, server.model, server.api, Asked(top=top)), ensure_ascii=False, indent=1) + "\n"


def curl_command(server: Server, file: str) -> str:
    """Return the command that sends a file with a request. A key is read by the shell that runs it."""
    parts = ["curl", "-sS", shlex.quote(server.root + PATHS[server.api]), "-H", "'Content-Type: application/json'"]
    if server.secret.shell:
        parts += ["-H", f'"Authorization: Bearer {server.secret.shell}"']
    return " ".join([*parts, "--data", shlex.quote(f"@{file}")])
