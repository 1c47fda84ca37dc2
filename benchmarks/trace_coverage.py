"""Trace every causal language model of transformers from its default config, each in a process of its own.

The sample that runs by default ends in about a minute; `--all` takes all of them, and `--write-docs` writes what it saw
to docs/trace_coverage.md. A model that hangs, crashes or fills the memory loses its own process only.

Example: .venv/bin/python benchmarks/trace_coverage.py --all --results runs/coverage.jsonl --write-docs
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers

from day0.analyzers.trace import trace_model
from day0.errors import Day0Error
from day0.models.hf import open_hf
from day0.models.workload import plan_phases
from day0.playbook import ModelPlan, WorkloadPlan
from day0.records import Trace

SAMPLE = ("bert", "blt", "deepseek_v2", "gpt2", "gpt_oss", "llama", "mamba", "nemotron", "xlm", "xlnet")
"""One of each kind: encoder-like, looks at its bytes' values, fails by its own default, plain, experts, state space,
cannot be built, reads a value, mixes dtypes."""

EXTRA = ("glm5_next", "kimi_k25")
"""Of no causal type, but traced as text generators: shown in the table, and not counted."""

DOCS = Path(__file__).parent.parent / "docs" / "trace_coverage.md"
MEMORY = 12 << 30


@dataclass(kw_only=True)
class Row:
    """What became of one model type."""

    name: str
    versions: str
    class_name: str = ""
    built: bool = False
    traced: bool = False
    mode: str = ""
    phases: dict[str, int] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    """Why a phase is not there."""
    assumed: dict[str, int] = field(default_factory=dict)
    parameters: int = 0
    where: str = ""
    cause: str = ""
    line: str = ""
    hint: str = ""
    seconds: float = 0.0


def main(words: Sequence[str] | None = None) -> None:
    """Trace, print a line for each model, and the figures."""
    asked = _arguments(words)
    names = _names(asked)
    done = {row.name: row for row in _read(asked.results) if row.versions == _versions()}
    left = [name for name in names if name not in done]
    for row in _rows(left, asked):
        done[row.name] = row
        print(_line(row), flush=True)
        if asked.results:
            with asked.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
    rows = [done[name] for name in names]
    if asked.write_docs:
        DOCS.write_text(page(rows), encoding="utf-8")
        print(f"wrote {DOCS}")
    print("\n".join(summary(rows)))


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--all", action="store_true", help="every type, not the sample")
    parser.add_argument("--only", nargs="+", default=[], metavar="TYPE", help="these types")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one model")
    parser.add_argument("--results", type=Path, help="JSON lines to go on from and to append to")
    parser.add_argument("--write-docs", action="store_true", help="write docs/trace_coverage.md (with --all)")
    asked = parser.parse_args(words)
    if asked.results:
        asked.results.parent.mkdir(parents=True, exist_ok=True)
    return asked


def causal_types() -> tuple[str, ...]:
    """Return every model type that transformers maps to a causal language model."""
    return tuple(sorted(transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))


def _names(asked: argparse.Namespace) -> tuple[str, ...]:
    if asked.only:
        return tuple(asked.only)
    return (*causal_types(), *EXTRA) if asked.all else SAMPLE


def _versions() -> str:
    return f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}"


def _read(path: Path | None) -> Iterator[Row]:
    if path is not None and path.is_file():
        for text in path.read_text(encoding="utf-8").splitlines():
            yield Row(**json.loads(text))


def _rows(names: list[str], asked: argparse.Namespace) -> Iterator[Row]:
    """Start a process for each name, `--jobs` at a time, and yield what they send."""
    context = multiprocessing.get_context("fork")
    waiting, running = list(reversed(names)), {}
    while waiting or running:
        while waiting and len(running) < asked.jobs:
            name = waiting.pop()
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(name, theirs))
            process.start()
            theirs.close()
            running[ours] = (name, process, time.monotonic() + asked.limit)
        soonest = min(end for _, _, end in running.values())
        ready = wait(list(running), timeout=max(0.0, soonest - time.monotonic()))
        for pipe in [*ready, *(p for p, (_, _, end) in running.items() if p not in ready and end < time.monotonic())]:
            name, process, _ = running.pop(pipe)  # type: ignore[index]
            yield _received(name, pipe, process, asked.limit, finished=pipe in ready)


def _received(name: str, pipe: Any, process: Any, limit: float, *, finished: bool) -> Row:
    try:
        row = (
            pipe.recv()
            if finished
            else Row(name=name, versions=_versions(), built=True, cause=f"no end in {limit:.0f} s")
        )
    except EOFError:
        process.join()
        row = Row(name=name, versions=_versions(), built=True, cause=f"the process died, exit code {process.exitcode}")
    process.kill()
    process.join()
    pipe.close()
    return row


def _child(name: str, pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    pipe.send(trace_one(name))


def trace_one(name: str) -> Row:
    """Build the model of a type from its default config and trace it; a failure is told, not raised."""
    row, began = Row(name=name, versions=_versions()), time.monotonic()
    try:
        spec = open_hf(ModelPlan(source=f"hf:{name}"))
        row.class_name = spec.class_name
        row.parameters = sum(value.numel() for value in spec.build("meta").parameters())
        row.built = True
        trace = trace_model(spec, plan_phases(spec, WorkloadPlan()))
        _tell(row, trace)
    except Day0Error as error:
        row.where, row.cause, row.hint = error.where, error.what, error.hint
        row.line = next((fact for fact in error.facts if fact.startswith("raised by")), "").removeprefix("raised by ")
    row.seconds = round(time.monotonic() - began, 1)
    return row


def _tell(row: Row, trace: Trace) -> None:
    row.traced, row.mode, row.assumed = True, trace.mode, trace.assumed
    if trace.shrunk:
        row.mode += ", shrunk"
    for phase in trace.phases:
        row.phases[phase.name] = phase.calls
        if not phase.calls:
            row.notes[phase.name] = phase.reason
    row.traced = row.phases.get("prefill", 0) > 0


def _line(row: Row) -> str:
    if not row.built:
        return f"{row.name}: cannot be built: {row.cause} ({row.line})"
    if not row.traced:
        return f"{row.name}: built, not traced: {row.where}: {row.cause} ({row.line})"
    phases = ", ".join(f"{name} {calls:,}" for name, calls in row.phases.items() if calls)
    notes = "".join(f"; {name} {text}" for name, text in row.notes.items())
    return f"{row.name}: built, {row.mode}: {phases}{notes} ({row.seconds:.0f} s)"


def summary(rows: Sequence[Row]) -> list[str]:
    """Return the last lines: how many, and the figures. Types that are no causal models are not counted."""
    counted = [row for row in rows if row.name not in EXTRA]
    built = [row for row in counted if row.built]
    traced = [row for row in built if row.traced]
    modes = Counter(row.mode for row in traced)
    return [
        f"{len(counted)} types; traced: {', '.join(f'{number} in {mode}' for mode, number in modes.most_common())}",
        f"figure: trace_success {len(traced) / max(1, len(built)):.4f}",
        f"figure: configs_built {len(built)}",
    ]


def page(rows: Sequence[Row]) -> str:
    """Return the page for the docs."""
    failed = [row for row in rows if row.built and not row.traced]
    unbuilt = [row for row in rows if not row.built]
    traced = [row for row in rows if row.traced]
    lines = [
        "# Which models of transformers can be traced",
        "",
        "Made by `benchmarks/trace_coverage.py --all --write-docs`; do not edit it by hand.",
        "",
        f"{_versions()}. Every type that transformers maps to a causal language model, with its default config, in",
        "bfloat16, from prefill to vision, as `day0 trace hf:TYPE` does it. The mode is the cheapest that works: `meta`",
        "needs no values, `fake` computes those that follow from the token ids and assumes the others, `real` draws weights.",
        "",
        *(f"- {line}" for line in summary(rows)),
        "",
        "## Built, but not traced",
        "",
        *_table(("type", "stops at", "cause", "line", "next step"), (_failure(row) for row in failed)),
        "",
        "## The default config cannot be built",
        "",
        "transformers itself builds no model from these; `--set` or a checkpoint's own config gives them what they lack.",
        "",
        *_table(("type", "cause", "line", "next step"), ((r.name, r.cause, r.line, r.hint) for r in unbuilt)),
        "",
        "## Traced",
        "",
        "Operator calls in each phase. A dash: the model has no such phase. Numbers refer to the notes below.",
        "",
        *_traced(traced),
    ]
    return "\n".join(lines) + "\n"


def _failure(row: Row) -> tuple[str, ...]:
    return row.name, row.where.removeprefix(f"hf:{row.name}, "), row.cause, row.line, row.hint


def _traced(rows: Sequence[Row]) -> Iterator[str]:
    phases = ("prefill", "decode", "prefill_long", "decode_long", "vision")
    notes: dict[str, int] = {}

    def cell(row: Row, phase: str) -> str:
        if row.phases.get(phase):
            return f"{row.phases[phase]:,}"
        if phase not in row.notes:
            return "—"
        text = row.notes[phase].replace(row.class_name, "the model").replace(f"hf:{row.name}", "the model")
        return f"[{notes.setdefault(text, len(notes) + 1)}]"

    body = [(row.name, row.class_name, row.mode, *(cell(row, phase) for phase in phases)) for row in rows]
    yield from _table(("type", "class", "mode", *phases), body)
    yield ""
    yield from (f"{number}. {text}" for text, number in notes.items())


def _table(head: Sequence[str], body: Any) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in body:
        yield f"| {' | '.join(str(cell).replace('|', chr(92) + '|') or '—' for cell in row)} |"


if __name__ == "__main__":
    main()
