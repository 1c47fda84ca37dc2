"""Whole models on one GPU: decode and prefill, sparse against dense, expert cache on and off, bytes of the cache.

Each part runs in a process of its own under a time limit and compares results before it takes a time:

- `paths`: the toy at Kimi K3.1's widths under an active lock, against the same model in plain torch.
- `contexts`: a step of decode at many context lengths, sparse against dense, for K3.1 and for DeepSeek-V3.2's widths.
- `experts`: four-bit experts converted while the model decodes, with and without the expert cache.
- `transformers`: deepseek_v32 and kimi_linear of transformers with real layers, their own code against day0's operators.

`python benchmarks/gpu/model.py [--only paths ...] [--scale 1.0] [--out model.json]`
`python benchmarks/gpu/model.py --device cpu --tiny` runs all of it without a GPU; its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import model_contexts
import model_experts
import model_paths
import model_transformers
import torch
from machine import driver, versions
from model_rows import Rows
from timing import ceilings

PARTS: dict[str, Callable[[argparse.Namespace, Rows], None]] = {
    "paths": model_paths.run,
    "contexts": model_contexts.run,
    "experts": model_experts.run,
    "transformers": model_transformers.run,
}


def main() -> None:
    """Run what the command line asks for."""
    options = arguments()
    if options.one:
        with torch.inference_mode():
            PARTS[options.one](options, Rows(options.result, options.seconds))
        return
    begin, ceiling = time.monotonic(), ceilings(options.device)
    if options.device == "cuda":
        torch.cuda.empty_cache()
    found: dict[str, Any] = {}
    for name in options.only or PARTS:
        left = options.minutes * 60 - (time.monotonic() - begin)
        found[name] = child(name, options, min(options.seconds, left)) if left > 5 else {"status": "no time was left"}
        show(name, found[name])
        if options.out:
            record = report(found, ceiling, options)
            options.out.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    bad = [f"{name}: {one['status']}" for name, one in found.items() if one["status"] != "done"]
    if bad:
        raise SystemExit("error: " + "; ".join(bad))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="small shapes")
    parser.add_argument("--only", nargs="+", choices=PARTS)
    parser.add_argument("--scale", type=float, default=1.0, help="widths of the toy, as a share of Kimi K3.1's")
    parser.add_argument("--experts", type=int, default=64, help="experts of a layer, of 896")
    parser.add_argument("--share", type=float, default=0.6, help="slots of the expert cache, as a share of all experts")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=75.0, help="for one part")
    parser.add_argument("--minutes", type=float, default=4.0, help="for all")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def child(name: str, options: argparse.Namespace, limit: float) -> dict[str, Any]:
    """Run one part in a process of its own; what it wrote last counts, also where its time ran out."""
    result = Path(f"{options.out or 'model'}.{name}.part")
    result.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--one", name, "--device", options.device, "--result", str(result)]
    command += ["--scale", str(options.scale), "--experts", str(options.experts), "--share", str(options.share)]
    command += ["--seconds", str(limit), *(["--tiny"] if options.tiny else [])]
    try:
        done = subprocess.run(command, timeout=limit, capture_output=True, text=True, check=False)  # noqa: S603 - ourselves
        said = done.stderr.strip().splitlines() or ["it ended without a word"]
        status = "done" if done.returncode == 0 else said[-1][:300]
        if done.returncode:
            print("\n".join(said[-12:]))
    except subprocess.TimeoutExpired:
        status = f"it took longer than {limit:.0f} s"
    found: dict[str, Any] = json.loads(result.read_text()) if result.is_file() else {"rows": [], "figures": {}}
    result.unlink(missing_ok=True)
    return found | {"status": status}


def show(name: str, found: dict[str, Any]) -> None:
    """Print a line for each time, and the figures."""
    print(f"{name}: {found['status']}", flush=True)
    for row in found.get("rows", ()):
        print(f"  {row['case']:34} {row['way']:26} {row['ms']:10.3f} ms  {row['how']}")
    for figure, value in found.get("figures", {}).items():
        print(f"figure: {figure} {value:g}", flush=True)


def report(found: dict[str, Any], ceiling: dict[str, float], options: argparse.Namespace) -> dict[str, Any]:
    """Return the record: what was measured, on what, and figures by name."""
    cuda = options.device == "cuda"
    return {
        "schema": "day0.figures/1",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "driver": driver(options.device),
        "versions": versions(),
        "ceilings": ceiling,
        "operators": {},
        "model": found,
        "figures": {name: value for one in found.values() for name, value in one.get("figures", {}).items()},
    }


if __name__ == "__main__":
    main()
