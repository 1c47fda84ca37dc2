"""`day0 canary endpoint`: the signature; what it does stands in `canary_endpoint.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from day0.cli.options import DEFAULT_RUN, Json, Run, call

__all__ = ["add_endpoint"]


def add_endpoint(app: typer.Typer) -> None:
    """Add the command to `day0 canary`."""
    app.command("endpoint")(_endpoint)


def _endpoint(
    url: Annotated[str, typer.Argument(help="Root of an OpenAI-compatible server.", metavar="URL")],
    run: Run = DEFAULT_RUN,
    model: Annotated[str, typer.Option(help="The model's name on the server; else the only one it has.")] = "",
    reference: Annotated[
        Path | None, typer.Option(help="The model's own folder, to compare with on the CPU.", metavar="DIR")
    ] = None,
    against: Annotated[str | None, typer.Option(help="Another server to compare with.", metavar="URL")] = None,
    against_model: Annotated[str, typer.Option(help="The model's name there.")] = "",
    against_key_file: Annotated[
        Path | None, typer.Option("--against-api-key-file", help="File with the key of that server.", metavar="FILE")
    ] = None,
    prompts: Annotated[
        str, typer.Option(help="JSONL file with prompts, or text, chat or vision.", metavar="FILE")
    ] = "",
    api: Annotated[str | None, typer.Option(help="completions or chat; else as the prompts are.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=1024, help="Requests at one time.")] = 8,
    timeout: Annotated[float, typer.Option(min=0.1, max=86400, help="Seconds for one request.")] = 60.0,
    retries: Annotated[int, typer.Option(min=0, max=20, help="Further tries where they may help.")] = 2,
    api_key_file: Annotated[Path | None, typer.Option(help="File with the server's key.", metavar="FILE")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Name of the environment variable with the key.", metavar="NAME")
    ] = None,
    served_dtype: Annotated[str, typer.Option(help="What the server computes in; else as config.json says.")] = "",
    gate: Annotated[
        list[str] | None, typer.Option(help="Gate on a figure, such as first_token_p95<=0.5.", metavar="GATE")
    ] = None,
    json: Json = False,
) -> None:
    """Hold a running server against a model on the CPU, or against another server; see docs/endpoint.md.

    Example: day0 canary endpoint http://127.0.0.1:8000 --model v32 --reference path/to/folder

    Two servers: day0 canary endpoint http://127.0.0.1:8000 --against http://127.0.0.1:8001 --gate "first_token_p95<=0.5"
    """
    call(
        "canary_endpoint",
        file="canary_endpoint",
        run=run,
        endpoint=url,
        model=model,
        reference=reference,
        against=against,
        against_model=against_model,
        against_key_file=against_key_file,
        prompts=prompts,
        api=api,
        concurrency=concurrency,
        timeout=timeout,
        retries=retries,
        api_key_file=api_key_file,
        api_key_env=api_key_env,
        served_dtype=served_dtype,
        gates=gate or [],
        json=json,
    )
