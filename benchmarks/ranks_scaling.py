"""How a model scales over ranks on this machine, and what collectives take of it, in one run.

Each number of ranks is a start of its own with the same model, prompt and seed; a line that is wrong is no line.

`.venv/bin/python benchmarks/ranks_scaling.py [--model hf:llama] [--ranks 1,2] [--device cuda] [--full]`
"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from day0.analyzers.ranks.run import RanksRequest, run_ranks
from day0.cli.canary_ranks import parse_ranks
from day0.cli.plans import parse_set
from day0.devices.profile import load_profile
from day0.playbook import ModelPlan
from day0.records import RanksReport
from day0.reference_ops.torch_ops import register_operators


def main() -> None:
    """Print a table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="hf:llama")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--full", action="store_true", help="the sizes of the config, not a small version")
    parser.add_argument("--whole-experts", action="store_true")
    parser.add_argument("--repeat", type=int, default=9)
    options = parser.parse_args()
    register_operators()
    sets = dict(parse_set(one) for one in options.set)
    request = RanksRequest(
        model=ModelPlan(source=options.model, set=sets, dtype=options.dtype, shrink=not options.full),
        profile=load_profile(options.device),
        ranks=parse_ranks(options.ranks),
        whole_experts=options.whole_experts,
        repeats=options.repeat,
    )
    report = run_ranks(request)
    _show(report)
    wrong = sum(run.status == "fail" for run in report.runs)
    print(f"figure: runs_wrong {wrong}")
    for line in report.scaling:
        print(f"figure: decode_efficiency_{line.ranks} {line.decode_efficiency:.3f}")
        print(f"figure: prefill_efficiency_{line.ranks} {line.prefill_efficiency:.3f}")
        print(f"figure: decode_collective_share_{line.ranks} {line.collective_share:.3f}")


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
    Console().print(table)


if __name__ == "__main__":
    main()
