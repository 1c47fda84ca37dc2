"""How a model scales over ranks on this machine, what collectives take of it, and what a rank needs of memory.

Each number of ranks is a start of its own with the same model, prompt and seed; a line that is wrong is no line.
`--case` takes models of real width, of which a golden in float64 would take too long: times, memory and collectives are
measured, and numbers are compared between ranks alone. `--record FILE` keeps the figures. `--write-docs` makes the table
of docs/ranks.md from docs/figures/ranks.json, and measures nothing.

`.venv/bin/python benchmarks/ranks_scaling.py [--model hf:llama | --case toy,deepseek_v32] [--ranks 1,2] [--device cuda]`
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from day0.analyzers.ranks.run import RanksRequest, run_ranks
from day0.cli.canary_ranks import parse_ranks
from day0.cli.plans import parse_set
from day0.cli.session import environment
from day0.devices.open import device_title, open_torch_device
from day0.devices.profile import load_profile
from day0.playbook import ModelPlan
from day0.records import RanksReport, RanksRun
from day0.reference_ops.torch_ops import register_operators

DOCS = Path(__file__).parent.parent / "docs"
FIGURES = DOCS / "figures" / "ranks.json"
PAGE = DOCS / "ranks.md"
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"
NOT_MEASURED = "Not measured yet: that needs a machine with several GPUs.\n"
GIB = 1 << 30
COLUMNS = (
    *("model", "ranks", "prefill ms", "efficiency", "decode ms a token", "efficiency", "collectives, of decode"),
    *("weights GiB", "in use GiB", "predicted GiB", "measured over predicted", "verdict"),
)

TOY: dict[str, Any] = {
    "vision": False,
    "vocab_size": 32768,
    "hidden_size": 2048,
    "num_hidden_layers": 8,
    "mla_layers": [4, 8],
    "kda_heads": 16,
    "kda_key_dim": 64,
    "kda_value_dim": 64,
    "kda_gate_rank": 64,
    "mla_heads": 16,
    "q_lora_rank": 512,
    "kv_lora_rank": 256,
    "nope_head_dim": 64,
    "shared_head_dim": 32,
    "v_head_dim": 64,
    "index_heads": 32,
    "index_head_dim": 64,
    "index_topk": 128,
    "intermediate_size": 8192,
    "n_experts": 64,
    "experts_per_token": 8,
    "latent_size": 1024,
    "moe_intermediate_size": 512,
    "shared_intermediate_size": 1024,
    "block_size": 64,
}
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "toy": ("toy", TOY, 256),
    "deepseek_v32": (
        "hf:deepseek_v32",
        {"num_hidden_layers": 4, "first_k_dense_replace": 1, "n_routed_experts": 64},
        2304,
    ),
}
"""Models of real width with few layers or few experts, and a prompt longer than their sparse top-k."""


def main() -> None:
    """Print a table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="hf:llama")
    parser.add_argument("--case", default="", help=f"in place of --model, some of {','.join(CASES)}")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--full", action="store_true", help="the sizes of the config, not a small version")
    parser.add_argument("--time-only", action="store_true", help="no golden: for sizes of which one takes too long")
    parser.add_argument("--whole-experts", action="store_true")
    parser.add_argument("--prompt", type=int, default=0, help="tokens; else those of the case, or a few")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--write-docs", action="store_true", help="make the table of docs/ranks.md, measure nothing")
    options = parser.parse_args()
    if options.write_docs:
        _write_docs()
        return
    register_operators()
    document = _facts(options.device)
    for name in options.case.split(",") if options.case else [""]:
        report = run_ranks(_request(options, name))
        _show(report)
        _print_figures(report, name)
        document["cases"].append(_case(report, name or options.model))
        if options.record is not None:  # after each, so that a time limit costs one case
            options.record.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _request(options: argparse.Namespace, name: str) -> RanksRequest:
    source, sets, prompt = CASES[name] if name else (options.model, {}, 0)
    small = not options.full and not name and source.startswith("hf:")
    asked = {**sets, **dict(parse_set(one) for one in options.set)}
    return RanksRequest(
        model=ModelPlan(source=source, set=asked, dtype=options.dtype, shrink=small),
        profile=load_profile(options.device),
        ranks=parse_ranks(options.ranks),
        whole_experts=options.whole_experts,
        prompt_tokens=options.prompt or prompt,
        time_only=bool(name) or options.time_only,
        new_tokens=4 if name else 8,
        repeats=options.repeat,
    )


# --------------------------------------------------------------------------------------------- the record


def _facts(device: str) -> dict[str, Any]:
    """Return where and with what it was measured."""
    opened = open_torch_device(load_profile(device))
    versions = {name: text for name, text in environment().items() if name != "platform"}
    if opened.type == "cuda":
        versions |= {"cuda": str(torch.version.cuda), "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
        versions |= {"driver": _driver()}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "device": device_title(opened),
        "devices": torch.cuda.device_count() if opened.type == "cuda" else 1,
        "versions": versions,
        "variables": {name: text for name, text in sorted(os.environ.items()) if name.startswith("NCCL_")},
        "cases": [],
    }


def _driver() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown"
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - found above
    return (done.stdout.split() or ["unknown"])[0]


def _case(report: RanksReport, name: str) -> dict[str, Any]:
    efficiency = {one.ranks: (one.prefill_efficiency, one.decode_efficiency) for one in report.scaling}
    return {
        "name": name,
        "class": report.class_name,
        "set": report.overrides,
        "dtype": report.dtype,
        "backend": report.backend,
        "prompt_tokens": report.prompt_tokens,
        "notes": list(report.notes),
        "runs": [_run(run, efficiency.get(run.ranks, (0.0, 0.0))) for run in report.runs],
    }


def _run(run: RanksRun, efficiency: tuple[float, float]) -> dict[str, Any]:
    return {
        "ranks": run.ranks,
        "status": run.status,
        "reasons": list(run.reasons),
        "prefill_efficiency": efficiency[0],
        "decode_efficiency": efficiency[1],
        "metrics": run.metrics,
    }


# ---------------------------------------------------------------------------------------------- the screen


def _print_figures(report: RanksReport, name: str) -> None:
    after = f"_{name}" if name else ""
    print(f"figure: runs_wrong{after} {sum(run.status == 'fail' for run in report.runs)}")
    for run in report.runs:
        if "memory_over_plan" in run.metrics:
            print(f"figure: memory_over_plan{after}_{run.ranks} {run.metrics['memory_over_plan']:.3f}")
    for line in report.scaling:
        print(f"figure: decode_efficiency{after}_{line.ranks} {line.decode_efficiency:.3f}")
        print(f"figure: prefill_efficiency{after}_{line.ranks} {line.prefill_efficiency:.3f}")
        print(f"figure: decode_collective_share{after}_{line.ranks} {line.collective_share:.3f}")


def _show(report: RanksReport) -> None:
    names = ("ranks", "prefill ms", "decode ms", "efficiency", "in decode", "collectives", "MiB a rank", "verdict")
    table = Table(*names, title=f"{report.model} on {report.device} over {report.backend}")
    verdicts = {run.ranks: run.status for run in report.runs}
    for line in report.scaling:
        table.add_row(
            str(line.ranks),
            f"{line.prefill_s * 1e3:.2f}",
            f"{line.decode_s * 1e3:.2f}",
            f"{line.prefill_efficiency:.0%}",
            f"{line.decode_efficiency:.0%}",
            f"{line.collective_share:.0%}",
            f"{line.weight_bytes / 2**20:.2f}",
            verdicts[line.ranks],
        )
    console = Console()
    console.print(table)
    for run in report.runs:
        for text in (*run.reasons, *(line for one in run.results for line in one.log_tail)):
            console.print(f"{run.ranks} ranks: {text}", markup=False)


# ------------------------------------------------------------------------------------------------ the page


def docs_table(document: dict[str, Any]) -> str:
    """Return the part of docs/ranks.md that is made from a record."""
    facts = {**document["versions"], **document["variables"]}
    said = ", ".join(f"{name} {text}" for name, text in facts.items())
    lines = [f"{document['date']}, {document['devices']} x {document['device']}; {said}.", ""]
    lines += ["| " + " | ".join(COLUMNS) + " |", "| --- " * len(COLUMNS) + "|"]
    lines += [_line(case, run) for case in document["cases"] for run in case["runs"]]
    lines += [""]
    lines += [f"- {_described(case)}" for case in document["cases"]]
    return "\n".join(lines) + "\n"


def docs_part() -> str:
    """Return what stands between the marks of docs/ranks.md."""
    if not FIGURES.exists():
        return NOT_MEASURED
    return docs_table(json.loads(FIGURES.read_text(encoding="utf-8")))


def _line(case: dict[str, Any], run: dict[str, Any]) -> str:
    found = run["metrics"]
    least, most = found.get("decode_collective_share_least"), found.get("decode_collective_share")
    cells = [
        case["name"],
        str(run["ranks"]),
        _number(found.get("prefill_s"), 1e3, 2),
        f"{run['prefill_efficiency']:.0%}",
        _number(found.get("decode_s"), 1e3, 2),
        f"{run['decode_efficiency']:.0%}",
        f"{least:.0%} to {most:.0%}" if run["ranks"] > 1 and least is not None else "none",
        _number(found.get("weight_bytes"), 1 / GIB, 3),
        _number(found.get("peak_bytes"), 1 / GIB, 3),
        _number(found.get("predicted_bytes"), 1 / GIB, 3),
        _number(found.get("memory_over_plan"), 1.0, 3),
        run["status"],
    ]
    return "| " + " | ".join(cells) + " |"


def _number(value: float | None, times: float, digits: int) -> str:
    return "not known" if value is None else f"{value * times:.{digits}f}"


def _described(case: dict[str, Any]) -> str:
    sets = ", ".join(f"{name} {text}" for name, text in sorted(case["set"].items()))
    notes = "".join(f" {note[0].upper()}{note[1:]}." for note in case["notes"])
    what = f"**{case['name']}**: {case['class']} in {case['dtype']} over {case['backend']}"
    return f"{what}, a prompt of {case['prompt_tokens']} tokens; {sets or 'as its config says'}.{notes}"


def _write_docs() -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{docs_part()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
