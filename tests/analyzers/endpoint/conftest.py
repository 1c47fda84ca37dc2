"""One tiny model for all tests, and a way from a server to a record."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest
import torch

from day0.analyzers.endpoint.client import Retries, api_root
from day0.analyzers.endpoint.compare import Plan, Side, compare
from day0.analyzers.endpoint.local import open_reference
from day0.analyzers.endpoint.prompts import SETS, read_prompts
from day0.analyzers.endpoint.report import report_of
from day0.analyzers.endpoint.secret import Secret
from day0.analyzers.endpoint.transport import Limits
from day0.playbook import Gate
from day0.records import EndpointReport
from tests.analyzers.endpoint.tiny import perturbed, save_tiny

Report = Callable[..., EndpointReport]
LINES: tuple[dict[str, object], ...] = (
    {"id": "one", "prompt": "return text", "max_tokens": 5},
    {"id": "two", "prompt": "import Path from the folder and save the model", "max_tokens": 5},
    {"id": "three", "prompt": "def tokenizer_of(text", "max_tokens": 5},
)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference's folder."""
    return save_tiny(tmp_path_factory.mktemp("endpoint") / "tiny")


@pytest.fixture(scope="session")
def changed(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with one weight changed."""
    return perturbed(tiny, tmp_path_factory.mktemp("endpoint") / "changed")


@pytest.fixture(scope="session")
def prompts_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the prompts of `report` stand, with two images."""
    folder = tmp_path_factory.mktemp("prompts")
    for name in ("squares.png", "stripes.png"):
        shutil.copy(SETS / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def report(tiny: Path, prompts_folder: Path) -> Report:
    """Hold a server against a folder, or against another server, and return the record."""
    opened = lru_cache(open_reference)

    def run(
        url: str,
        *,
        reference: Path | None = None,
        against: str = "",
        lines: tuple[dict[str, object], ...] = LINES,
        api: str = "completions",
        retries: int = 0,
        key: str = "",
        gates: tuple[Gate, ...] = (),
        model: str = "",
        seconds: float = 20.0,
        dtype: torch.dtype = torch.float32,
    ) -> EndpointReport:
        path = prompts_folder / "prompts.jsonl"
        path.write_text("\n".join(json.dumps(one) for one in lines), encoding="utf-8")
        other = Side(root=api_root(against, "--against"), secret=Secret(), option="--against") if against else None
        plan = Plan(
            side=Side(root=api_root(url, "--endpoint"), model=model, secret=Secret(key), option="--model"),
            reference=other or opened(reference or tiny, ""),
            prompts=read_prompts(str(path)),
            api="chat" if api == "chat" else "completions",
            concurrency=4,
            limits=Limits(seconds=seconds),
            retries=Retries(most=retries, first_s=0.02),
            gates=gates,
            dtype=dtype,
        )
        found = compare(plan, lambda title, done, total: None)
        bodies = {str(one["id"]): (f"{number}.json", f"run/{number}.json") for number, one in enumerate(lines)}
        return report_of(found, plan, bodies)

    return run
