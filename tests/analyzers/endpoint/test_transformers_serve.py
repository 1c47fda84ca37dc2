"""The canary on `transformers serve`, a server that nobody of day0 wrote; the quick cousins are in test_compare.py."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.analyzers.endpoint.broken import closed_port
from tests.analyzers.endpoint.conftest import Report
from tests.analyzers.endpoint.test_vision import ASK, TWO, sighted

__all__ = ["sighted"]

START = "from transformers.cli.transformers import main; main()"
ASKS: tuple[dict[str, object], ...] = (
    {"id": "one", "messages": [{"role": "user", "content": "return text"}], "max_tokens": 6},
    {"id": "two", "messages": [{"role": "user", "content": "import Path"}], "max_tokens": 6},
)


@contextmanager
def transformers_serve(folder: Path) -> Iterator[str]:
    """Start a server on a free port, and end it with the block."""
    port = closed_port()
    command = [sys.executable, "-c", START, "serve", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (folder.parent / "serve.log").open("w+") as log:
        server = subprocess.Popen([*command, "--device", "cpu"], stdout=log, stderr=log, env=environment)
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(600):
                if _is_up(url):
                    break
                assert server.poll() is None, (folder.parent / "serve.log").read_text()
                time.sleep(0.2)
            yield url
        finally:
            server.terminate()
            server.wait(30)


def _is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:  # noqa: S310 - an address of our own
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError):
        return False


@pytest.mark.slow
def test_the_same_model_passes_and_another_fails(tiny: Path, changed: Path, report: Report) -> None:
    with transformers_serve(tiny) as url:
        texts = report(url)
        chats = report(url, api="chat", lines=ASKS)
        wrong = report(url, reference=changed)
    for found in (texts, chats):
        assert (found.verdict, found.reason) == ("successful", "")
        assert {one.compared for one in found.results} == {"text"}
        assert found.left_out["logprob_error_ratio"] == "the server gives no logprobs"
        assert [one.prompt_tokens for one in found.results] == [one.reference_prompt_tokens for one in found.results]
        assert found.figures["first_token_p50"].value is not None
    assert wrong.verdict == "failed"
    first = next(one for one in wrong.results if one.status == "fail")
    assert wrong.reason.startswith(f"prompt {first.name!r}, token {first.position}: {first.got!r} instead of")


@pytest.mark.slow
def test_a_model_with_eyes_passes(sighted: Path, report: Report) -> None:
    with transformers_serve(sighted) as url:
        found = report(url, reference=sighted, api="chat", lines=(ASK, TWO))
    assert (found.verdict, found.reason) == ("successful", "")
