"""`day0 canary --endpoint`: a server held against a reference model or against another server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from day0.cli.rundir import RunFolder, write_atomically
from day0.cli.talk import Talk
from day0.errors import Day0Error, ExitCode

if TYPE_CHECKING:
    import torch

    from day0.analyzers.endpoint.client import Server
    from day0.analyzers.endpoint.compare import Plan, Side
    from day0.analyzers.endpoint.local import LocalReference
    from day0.analyzers.endpoint.prompts import PromptSet
    from day0.analyzers.endpoint.protocol import Api
    from day0.playbook import Gate

__all__ = ["canary_endpoint", "refuse_alone"]

RECORD = "endpoint.json"
JUNIT = "endpoint.junit.xml"
BODIES = "evidence/endpoint"
_GATE = re.compile(r"\s*([a-z_0-9]+)\s*(<=|>=|==)\s*([-+0-9.eE]+)\s*")


def canary_endpoint(
    *,
    run: Path,
    endpoint: str,
    model: str,
    reference: Path | None,
    against: str | None,
    against_model: str,
    against_key_file: Path | None,
    prompts: str,
    api: str | None,
    concurrency: int,
    timeout: float,
    retries: int,
    api_key_file: Path | None,
    api_key_env: str | None,
    served_dtype: str,
    gates: list[str],
    json: bool,
) -> int:
    """Ask, compare, write the record and say what was found. Exit code 1 unless every gate lets it pass."""
    from day0.analyzers.endpoint.client import Retries, api_root
    from day0.analyzers.endpoint.compare import Plan, Side
    from day0.analyzers.endpoint.prompts import read_prompts
    from day0.analyzers.endpoint.secret import read_secret
    from day0.analyzers.endpoint.transport import Limits

    talk, folder = Talk(as_json=json), RunFolder(run)
    found = read_prompts(prompts or ("chat" if api == "chat" else "text"))
    secret = read_secret(api_key_file, api_key_env)
    side = Side(root=api_root(endpoint, "--endpoint"), model=model, secret=secret, option="--model")
    plan = Plan(
        side=side,
        gates=_gates(gates),
        prompts=found,
        api=_api(api, found),
        dtype=_served(served_dtype),
        reference=_reference(folder, reference, _other(against, against_model, against_key_file), served_dtype),
        concurrency=concurrency,
        limits=Limits(seconds=timeout),
        retries=Retries(most=retries),
    )
    return _perform(plan, folder, talk, json=json)


def _other(against: str | None, model: str, key_file: Path | None) -> Side | None:
    """Return the server to compare with, which has a key of its own."""
    from day0.analyzers.endpoint.client import api_root
    from day0.analyzers.endpoint.compare import Side
    from day0.analyzers.endpoint.secret import read_secret

    if against is None:
        return None
    secret = read_secret(key_file, None, option="--against-api-key-file")
    return Side(root=api_root(against, "--against"), model=model, secret=secret, option="--against-model")


def _perform(plan: Plan, folder: RunFolder, talk: Talk, *, json: bool) -> int:
    from day0.analyzers.endpoint.compare import compare
    from day0.analyzers.endpoint.report import report_of
    from day0.cli import show_endpoint
    from day0.cli.session import environment
    from day0.codec import encode
    from day0.reports.endpoint import render_endpoint_junit

    with folder.held():
        with talk.busy("asking the server"):
            found = compare(plan, talk.progress)
        bodies = _write_bodies(plan, found.server, folder, logprobs=found.can.logprobs)
        report = report_of(found, plan, bodies)
        text = encode(report, inputs={"prompts": plan.prompts.sha256}, environment=environment())
        write_atomically(folder.file(RECORD), text)
        write_atomically(folder.file(JUNIT), render_endpoint_junit(report))
    show_endpoint.report(talk, report, folder.file(RECORD))
    if json:
        print(text, end="")
    return int(ExitCode.OK if all(one.passed for one in report.gates) else ExitCode.GATE_FAILED)


def _write_bodies(plan: Plan, server: Server, folder: RunFolder, *, logprobs: bool) -> dict[str, tuple[str, str]]:
    """Write every prompt's request, so that each can be sent again. Names of files come from numbers alone."""
    from day0.analyzers.endpoint.asking import BEST
    from day0.analyzers.endpoint.reproduce import request_body

    written = {}
    for number, prompt in enumerate(plan.prompts.prompts):
        name = f"{BODIES}/{number:05d}.json"
        write_atomically(folder.file(name), request_body(server, prompt, BEST if logprobs else 0))
        written[prompt.name] = name, str(folder.file(name))
    return written


def _served(name: str) -> torch.dtype:
    """Return a dtype that servers compute in: bfloat16 unless another is named."""
    from day0.reference_ops.signatures import dtype_of

    known = ("bfloat16", "float16", "float32")
    if name and name not in known:
        raise Day0Error("--served-dtype", f"there is no '{name[:40]}'", hint=f"write {', '.join(known)}")
    return dtype_of(name or known[0])


def _api(asked: str | None, prompts: PromptSet) -> Api:
    names: dict[str | None, Literal["completions", "chat"]] = {"completions": "completions", "chat": "chat"}
    if asked is None:
        return "chat" if any(one.messages for one in prompts.prompts) else "completions"
    if asked not in names:
        raise Day0Error("--api", f"there is no '{asked[:40]}'", hint="write completions or chat")
    return names[asked]


def _reference(
    folder: RunFolder, reference: Path | None, other: Side | None, served_dtype: str
) -> LocalReference | Side:
    """Return what the server is held against; without a word the folder that the run folder's trace came from."""
    from day0.analyzers.endpoint.local import open_reference

    if reference is not None and other is not None:
        raise Day0Error("--reference", "there is a folder and a server to compare with", hint="give one of the two")
    if other is not None:
        return other
    plan = folder.read_plan() if reference is None else None
    if plan is not None and plan.model.source.startswith("hf:"):
        reference = Path(plan.model.source.removeprefix("hf:"))
    if reference is None:
        hint = "give --reference DIR (a transformers folder) or --against URL (another server)"
        raise Day0Error("--endpoint", "there is nothing to compare the server with", hint=hint)
    return open_reference(reference, served_dtype)


def _gates(texts: list[str]) -> tuple[Gate, ...]:
    from day0.analyzers.canary.gates import refuse_unknown_metrics
    from day0.analyzers.endpoint.figures import METRICS
    from day0.playbook import Gate

    gates = []
    for text in texts:
        parts = _GATE.fullmatch(text)
        try:
            limit = float(parts[3]) if parts else float("nan")
            gate = Gate.model_validate(
                {
                    "metric": parts[1] if parts else "",
                    "rule": parts[2] if parts else "",
                    "limit": limit,
                    "inconclusive": "fail",
                }
            )
        except ValueError:
            hint = "write a figure, a rule and a number, such as --gate 'first_token_p95<=0.5'"
            raise Day0Error("--gate", f"{text[:80]!r} is no gate", hint=hint) from None
        gates.append(gate)
    refuse_unknown_metrics(gates, METRICS, "--gate")
    return tuple(gates)


def refuse_alone(*, names: list[str]) -> int:
    """Raise Day0Error: options that mean something with `--endpoint` only."""
    raise Day0Error(
        "day0 canary", f"{', '.join(names)} without --endpoint", hint="add --endpoint URL, or leave them out"
    )
