"""Count, for every causal language model of transformers, how many modules each adapter makes call our operators.

From shrunken default configs on meta, in about a minute. `--compare` also builds each small model with random weights in
float64 and holds its logits with adapters against those with its own code, prompt and decode: what differs there is
another model. `--write-docs` writes what it saw into docs/adapters.md.

Example: .venv/bin/python benchmarks/adapter_coverage.py --compare --write-docs
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers
from torch import nn

from day0.errors import USER_ERRORS, Day0Error
from day0.models.adapters.adapt import ALL, adapt, restore
from day0.models.adapters.load import load_adapters
from day0.models.driver import step
from day0.models.hf import open_hf
from day0.playbook import ModelPlan
from day0.reference_ops.agreement._widened import Widened

DOCS = Path(__file__).parent.parent / "docs" / "adapters.md"
BEGIN, END = "<!-- from benchmarks/adapter_coverage.py -->", "<!-- end -->"
CLOSE = 1e-9
TOKENS = 24
MAX_PARAMETERS = 30_000_000
EXTRA = ("glm5_next", "kimi_k25")
"""Of no causal type, but traced as text generators: in the table, and not counted."""


@dataclass(kw_only=True)
class Row:
    """What became of one model type."""

    name: str
    class_name: str = ""
    trouble: str = ""
    """Why it could not be built small."""
    fits: dict[str, int] = field(default_factory=dict)
    """Modules by adapter."""
    refused: dict[str, dict[str, str]] = field(default_factory=dict)
    """Why modules of a class keep their own code, by adapter."""
    error: float | None = None
    """Relative error of the adapted logits in float64, the worse of prompt and decode."""
    uncompared: str = ""
    """Why there is none."""


def main(words: Sequence[str] | None = None) -> None:
    """Go through the types, print a line for each, and the figures."""
    asked = _arguments(words)
    rows, done = [], dict(_read(asked.results))
    for name in asked.only or (*causal_types(), *EXTRA):
        known = done.get(name)
        row = known or look(name, compare=asked.compare)
        rows.append(row)
        print(_line(row), flush=True)
        if asked.results and known is None:
            with asked.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
    if asked.write_docs:
        write_docs(rows)
        print(f"wrote {DOCS}")
    print("\n".join(figures(rows)))


def _read(path: Path | None) -> Iterator[tuple[str, Row]]:
    if path is not None and path.is_file():
        for text in path.read_text(encoding="utf-8").splitlines():
            row = Row(**json.loads(text))
            yield row.name, row


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="+", default=[], metavar="TYPE", help="these types")
    parser.add_argument("--compare", action="store_true", help="hold the logits of small models against each other")
    parser.add_argument("--results", type=Path, help="JSON lines to go on from and to append to")
    parser.add_argument("--write-docs", action="store_true", help="write the tables of docs/adapters.md")
    return parser.parse_args(words)


def causal_types() -> tuple[str, ...]:
    """Return every model type that transformers maps to a causal language model."""
    return tuple(sorted(transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))


def look(name: str, *, compare: bool) -> Row:
    """Build the small model of a type, adapt it, and compare; a failure is told, not raised."""
    row = Row(name=name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            spec = open_hf(ModelPlan(source=f"hf:{name}", shrink=True))
            row.class_name = spec.class_name
            model = spec.build("meta")
        except Day0Error as error:
            row.trouble = error.what
            return row
        try:
            done = adapt(model, (ALL,))
        except Day0Error:
            return row
        row.fits = {key: sum(found.values()) for key, found in done.classes.items()}
        row.refused = done.refused
        parameters = sum(one.numel() for one in model.parameters())
        if compare and parameters > MAX_PARAMETERS:
            row.uncompared = f"{parameters:,} parameters are no small model"
        elif compare:
            _compare(row, spec.build("cpu").double(), spec.vocab_size)
    return row


def _compare(row: Row, model: nn.Module, vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(3)
    ids_BS = torch.randint(1, vocab_size, (2, TOKENS + 1), generator=generator)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the others have no float64
    try:
        with torch.no_grad(), Widened():
            own = _logits(model, ids_BS)
            adapt(model, (ALL,))
            ours = _logits(model, ids_BS)
        row.error = max(_error(*pair) for pair in zip(ours, own, strict=True))
    except USER_ERRORS as error:
        row.uncompared = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:100] if str(error) else ''}"
    finally:
        restore(model)


def _logits(model: nn.Module, ids_BS: torch.Tensor) -> list[torch.Tensor]:
    prompt = step(model, ids_BS[:, :-1])
    if prompt.cache is None:
        return [prompt.logits_BSV]
    return [prompt.logits_BSV, step(model, ids_BS[:, -1:], prompt.cache, earlier=prompt).logits_BSV]


def _error(ours: torch.Tensor, own: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(ours - own)) / (float(torch.linalg.vector_norm(own)) or 1.0)


def _line(row: Row) -> str:
    if row.trouble:
        return f"{row.name}: not built: {row.trouble[:120]}"
    fits = ", ".join(f"{name} {count}" for name, count in sorted(row.fits.items())) or "no adapter fits"
    error = f"; float64 error {row.error:.1e}" if row.error is not None else ""
    return f"{row.name}: {fits}{error}{f'; not compared: {row.uncompared}' if row.uncompared else ''}"


def figures(rows: Sequence[Row]) -> list[str]:
    """Return the last lines: one figure for each adapter, and those of the comparison."""
    built = [row for row in rows if not row.trouble and row.name not in EXTRA]
    lines = [f"figure: types_built {len(built)}", f"figure: types_adapted {sum(1 for row in built if row.fits)}"]
    for name in load_adapters():
        lines.append(f"figure: types_{name} {sum(1 for row in built if name in row.fits)}")
    compared = [row.error for row in rows if row.error is not None]
    if compared:
        lines.append(f"figure: types_compared {len(compared)}")
        lines.append(f"figure: types_differing {sum(1 for error in compared if not error <= CLOSE)}")
    return lines


def write_docs(rows: Sequence[Row]) -> None:
    """Put the tables between their marks in the page."""
    text = DOCS.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCS.write_text(f"{before}{BEGIN}\n\n" + "\n".join(_page(rows)) + f"\n\n{END}{after}", encoding="utf-8")


def _page(rows: Sequence[Row]) -> Iterator[str]:
    built = [row for row in rows if not row.trouble and row.name not in EXTRA]
    adapters = load_adapters()
    yield f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}: {len(built)} causal"
    yield f"types can be built small, {sum(1 for row in built if row.fits)} of them have modules that an adapter fits."
    compared = [row.error for row in rows if row.error is not None]
    if compared:
        wrong = sum(1 for error in compared if not error <= CLOSE)
        yield f"{len(compared)} small models were run in float64 with adapters and without; {wrong} differ by more than {CLOSE:g}"
        yield f"(relative L2 of the logits, prompt and decode; the worst is {max(compared):.1e})."
    yield ""
    yield "| adapter | operators | types | what it stands for |"
    yield "| --- | --- | --- | --- |"
    for name, adapter in adapters.items():
        count = sum(1 for row in built if name in row.fits)
        yield f"| {name} | {', '.join(adapter.operators)} | {count} | {adapter.title} |"
    yield ""
    yield "Modules of each type's small model that call our operators:"
    yield ""
    yield f"| type | {' | '.join(adapters)} |"
    yield f"| --- |{' --- |' * len(adapters)}"
    for row in rows:
        if row.fits:
            yield f"| {row.name} | {' | '.join(str(row.fits.get(name, '—')) for name in adapters)} |"
    yield ""
    yield "Why modules keep their own code, with the number of types in which that is so:"
    yield ""
    yield "| adapter | reason | types | for example |"
    yield "| --- | --- | --- | --- |"
    yield from _reasons(built)


def _reasons(rows: Sequence[Row]) -> Iterator[str]:
    counts: Counter[tuple[str, str]] = Counter()
    example: dict[tuple[str, str], str] = {}
    for row in rows:
        for adapter, kinds in row.refused.items():
            for kind, reason in kinds.items():
                if reason.startswith(("it has no", "its forward calls neither")):
                    continue  # a class of another kind
                key = (adapter, reason.replace("|", "/"))
                counts[key] += 1
                example.setdefault(key, kind)
    for (adapter, reason), count in sorted(counts.items(), key=lambda one: (one[0][0], -one[1], one[0][1])):
        yield f"| {adapter} | {reason} | {count} | {example[adapter, reason]} |"


if __name__ == "__main__":
    main()
