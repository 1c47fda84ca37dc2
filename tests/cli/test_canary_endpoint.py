"""`day0 canary --endpoint`: exit codes, the record, a request that can be sent again, and no key anywhere."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from day0.cli.app import app
from day0.codec import decode
from day0.records import EndpointReport
from tests.analyzers.endpoint.broken import answer, broken
from tests.analyzers.endpoint.served import Service, serve
from tests.analyzers.endpoint.tiny import perturbed, save_tiny

KEY = "sk-very-secret-0123456789"


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["canary", *map(str, arguments)])
    return done.exit_code, done.output


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("endpoint") / "tiny")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [{"id": f"p{one}\x1b[2J", "prompt": "return text " * (one + 1), "max_tokens": 4} for one in range(3)]
    path.write_text("\n".join(json.dumps(one) for one in lines))
    return path


def test_the_same_model_passes_and_a_changed_one_fails(tiny: Path, prompts: Path, run_folder: Path) -> None:
    (run_folder.parent.parent / "key.txt").write_text(f"{KEY}\n")
    common = ("--run", run_folder, "--reference", tiny, "--prompts", prompts, "--api-key-file", "key.txt")
    with serve(Service(folder=tiny)) as service:
        code, text = run("--endpoint", service.url, "--model", "tiny", *common)
    assert (code, "successful" in text) == (0, True), text
    changed = perturbed(tiny, run_folder.parent / "changed", by=40.0)
    with serve(Service(folder=changed)) as service:
        code, text = run("--endpoint", service.url, *common)
        assert code == 1
        record = (run_folder / "endpoint.json").read_text()
        found = decode(EndpointReport, record, where="endpoint.json", remake="day0 canary").record
        first = next(one for one in found.results if one.status == "fail")
        assert f"token {first.position}: {first.got!r} instead of {first.expected!r}" in " ".join(text.split())
        assert text.index("✗") < text.index("requests:")
        assert "\x1b" not in text
        assert KEY not in text + record + (run_folder / "endpoint.junit.xml").read_text()
        assert 'Authorization: Bearer $(cat key.txt)"' in first.reproduce
        again = subprocess.run(["bash", "-c", first.reproduce], capture_output=True, text=True, check=True)
        assert service.keys[-1] == f"Bearer {KEY}"
    choice = json.loads(again.stdout)["choices"][0]
    assert choice["text"] == first.text
    assert first.body == f"evidence/endpoint/{found.results.index(first):05d}.json"
    assert KEY not in (run_folder / first.body).read_text()


def test_json_is_the_record_alone(tiny: Path, prompts: Path, run_folder: Path) -> None:
    with serve(Service(folder=tiny)) as service:
        sides = ("--endpoint", service.url, "--against", service.url, "--run", str(run_folder))
        options = ("--json", "--prompts", str(prompts), "--gate", "first_token_p50<=0")
        done = CliRunner().invoke(app, ["canary", *sides, *options])
    document = json.loads(done.stdout)
    assert document["schema"] == "day0.endpoint/1"
    assert document["body"]["verdict"] == "failed"
    assert done.exit_code == 1
    assert "first_token_p50 is" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "there is nothing to compare the server with"),
        (("--reference", "nowhere"), "there is no folder 'nowhere'"),
        (("--reference", "x", "--against", "http://h"), "there is a folder and a server"),
        (("--against", "http://h", "--gate", "nonsense"), "'nonsense' is no gate"),
        (("--against", "http://h", "--gate", "latency<=1"), "a gate names 'latency'"),
        (("--against", "http://h", "--gate", "throughput<=inf"), "is no gate"),
        (("--against", "http://h", "--api", "responses"), "there is no 'responses'"),
        (("--against", "http://h", "--served-dtype", "fp8"), "there is no 'fp8'"),
        (("--against", "http://h", "--prompts", "nowhere.jsonl"), "neither a file nor a bundled set"),
        (("--against", "http://h", "--api-key-file", "nowhere"), "cannot be read"),
        (("--against", "http://h", "--api-key-env", "NO_SUCH_VARIABLE"), "there is no variable NO_SUCH_VARIABLE"),
        (("--against", "http://h", "--api-key-env", KEY), "this is no name of a variable"),
        (("--against", "http://h?x"), "goes on after its path"),
    ],
)
def test_a_mistake_is_said(arguments: tuple[str, ...], said: str, run_folder: Path) -> None:
    code, text = run("--endpoint", "http://127.0.0.1:9", "--run", run_folder, *arguments)
    assert code == 2
    assert said in " ".join(text.split())
    assert "Traceback" not in text
    assert KEY not in text


@pytest.mark.parametrize("content", ["", "abc", "two words", "with\x00zero", "käse-key", "x" * 70_000])
def test_a_file_that_holds_no_key_is_refused_and_not_shown(content: str, run_folder: Path) -> None:
    path = run_folder.parent.parent / "key.txt"
    path.write_text(content)
    code, text = run("--endpoint", "http://h", "--against", "http://h", "--api-key-file", path, "--run", run_folder)
    assert code == 2
    assert not content or f"{content!r}" not in text


def test_a_server_that_shows_the_key_does_not_make_it_seen(tiny: Path, prompts: Path, run_folder: Path) -> None:
    (run_folder.parent.parent / "key.txt").write_text(KEY)
    act = answer(json.dumps({"error": {"message": f"bad key {KEY}"}}), status="401 Unauthorized")
    with broken([act]) as seen:
        code, text = run("--endpoint", seen.url, "--reference", tiny, "--prompts", prompts, "--run", run_folder)
        assert code == 2
        code, text = run(
            *("--endpoint", seen.url, "--reference", tiny, "--prompts", prompts),
            *("--run", run_folder, "--api-key-file", "key.txt"),
        )
    assert code == 2
    assert KEY not in text
    assert "unauthorized: 401: bad key [key]" in text


def test_its_options_mean_nothing_without_it(run_folder: Path) -> None:
    code, text = run("--run", run_folder, "--prompts", "chat", "--gate", "requests_failed<=0")
    assert (code, "--prompts, --gate without --endpoint" in text) == (2, True), text
