"""Every Triton kernel on one GPU: right first, then how near to the device's ceiling, beside torch eager and compiled.

Each operator runs in a process of its own under a time limit. Correctness is `kernel_check` on the contract's samples
and on the sizes of five models. `--tune` walks the named tiles of each kernel and writes them for this device.

`python benchmarks/gpu/kernels.py [--only rms_norm ...] [--tune] [--out figures.json] [--figures LOG ...]`
`TRITON_INTERPRET=1 python benchmarks/gpu/kernels.py --device cpu --tiny` tries all of it without a GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from kernel_cases import CASES, TUNED, Case, Maker, Tuned, checks_of, kernel_of, module_of
from machine import driver, versions
from peers import PEERS, first, refuse_other
from timing import ceilings, timed

from day0.analyzers.kernel_check import Call, check_kernel
from day0.errors import Day0Error
from day0.kernels.load import load_implementations
from day0.kernels.triton._tiles import FOLDER, SCHEMA, sizes, trying
from day0.reference_ops._spec import Operator
from day0.reference_ops.load import load_operators
from day0.reference_ops.signatures import tensors_in

Found = dict[str, Any]
CANNOT = (
    Day0Error,
    RuntimeError,
    ValueError,
    TypeError,
    NotImplementedError,
    AssertionError,
    ImportError,
    AttributeError,
)
"""What a peer, or a kernel with other tiles, says of a call that it cannot do: memory, shared memory, an operator."""


def main() -> None:
    """Run what the command line asks for."""
    options = arguments()
    if options.device == "cpu":
        interpret()
    if options.one:
        options.result.write_text(json.dumps(one_operator(options.one, options)))
        return
    names = options.only or list(CASES)
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise SystemExit(f"error: --only: {', '.join(unknown)} is none of {', '.join(CASES)}")
    ceiling = ceilings(options.device)
    print(f"copy {ceiling['copy_gb_s']:.0f} GB/s, bfloat16 product {ceiling['bf16_tflops']:.0f} TFLOPS", flush=True)
    begin = time.monotonic()
    found: dict[str, Found] = {}
    for name in names:
        left = options.minutes * 60 - (time.monotonic() - begin)
        limit = min(options.seconds, left)
        run = here if options.in_process else child
        found[name] = run(name, options, ceiling, limit) if limit > 5 else {"status": "no time was left"}
        show(name, found[name])
        if options.out:
            record = report(found, ceiling, options)
            options.out.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    if options.tune:
        write_tuned(found, options.tuned)
    bad = [name for name, one in found.items() if one.get("status") != "pass"]
    if bad:
        raise SystemExit("error: " + "; ".join(f"{name}: {found[name].get('status')}" for name in bad))


def interpret() -> None:
    """Let the interpreter do what a GPU does, as the tests do."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.kernels.interpreter import put_right

    put_right()


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="small shapes")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--tuned", type=Path, default=FOLDER / "h200.yaml", help="where --tune writes")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figures", type=Path, nargs="*", default=[], help="output of other benchmarks to be taken up")
    parser.add_argument("--seconds", type=float, default=40.0, help="for one operator")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--in-process", action="store_true", help="quicker, and without a limit for one operator")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ceiling", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


def here(name: str, options: argparse.Namespace, ceiling: Mapping[str, float], limit: float) -> Found:
    """Run one operator in this process."""
    options.ceiling, options.result = ceiling, Path(f"{options.out or 'kernels'}.{name}.part")
    try:
        found = one_operator(name, options)
    except CANNOT as error:
        kept: Found = json.loads(options.result.read_text()) if options.result.is_file() else {}
        found = kept | {"status": f"{type(error).__name__}: {str(error)[:200]}"}
    options.result.unlink(missing_ok=True)
    if options.device == "cuda":
        torch.cuda.empty_cache()
    return found


def child(name: str, options: argparse.Namespace, ceiling: Mapping[str, float], limit: float) -> Found:
    """Run one operator in a process of its own; what it wrote last counts, also where its time ran out."""
    result = Path(f"{options.out or 'kernels'}.{name}.part")
    result.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--one", name, "--device", options.device, "--result", str(result)]
    command += ["--ceiling", json.dumps(ceiling), "--seconds", str(limit)]
    command += [
        f"--{flag.replace('_', '-')}" for flag in ("tiny", "tune", "no_check", "no_peers") if getattr(options, flag)
    ]
    try:
        done = subprocess.run(command, timeout=limit, capture_output=True, text=True, check=False)  # noqa: S603 - ourselves
        status = (
            "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it ended without a word"])[-1][:300]
        )
    except subprocess.TimeoutExpired:
        status = f"it took longer than {limit:.0f} s"
    found: Found = json.loads(result.read_text()) if result.is_file() else {}
    result.unlink(missing_ok=True)
    return found | {"status": status} if status else found


def one_operator(name: str, options: argparse.Namespace) -> Found:
    """Check, tune and time one operator; write each step, so that a time limit keeps the earlier ones."""
    found: Found = {"status": "pass", "cases": {}}
    end = time.monotonic() + options.seconds
    if not options.no_check:
        found["check"] = check(name, options.device)
        if found["check"]["failed"]:
            return found | {"status": f"wrong: {found['check']['failed'][0]}"}
        options.result.write_text(json.dumps(found | {"status": "checked, not timed"}))
    chosen: dict[str, dict[str, int]] = {}
    if options.tune:
        for one in TUNED.get(name, ()):
            chosen[one.kernel] = tune(name, one, options, end)
        if not options.no_check:
            with trying(chosen):
                found["tuned_check"] = check(name, options.device)
            if found["tuned_check"]["failed"]:
                return found | {"status": f"wrong as tuned: {found['tuned_check']['failed'][0]}"}
        found["tiles"] = chosen
    with trying(chosen):
        for case in CASES[name]:
            keep = partial(keep_case, found, case.name, options.result)
            measure(name, case, options, keep)
    return found


def check(name: str, device: str) -> Found:
    """Judge a kernel on the contract's samples and on the sizes of models; interpreted, on those only that end soon."""
    one = kernel_of(name)
    one = one if device == "cuda" else replace(one, devices=("cpu",))
    # Interpreted, the sizes of models take minutes.
    lists = (
        [None, checks_of(name)]
        if device == "cuda"
        else [[case.make(Maker(device="cpu", tiny=True)) for case in CASES[name]]]
    )
    done = [found for calls in lists if calls is None or calls for found in check_kernel(one, device, calls=calls)]
    failed = [f"{found.shapes}: {found.reason}" for found in done if found.status not in ("pass", "skipped")]
    return {"passed": sum(found.status == "pass" for found in done), "failed": failed[:3]}


def keep_case(found: Found, case: str, result: Path, one: Found) -> None:
    """Write what is known of a case: a peer that takes all the time that is left takes nothing else with it."""
    found["cases"][case] = one
    result.write_text(json.dumps(found))


def measure(name: str, case: Case, options: argparse.Namespace, keep: Callable[[Found], None]) -> None:
    """Time the kernel and its peers on one case."""
    one, contract = kernel_of(name), load_operators()[f"day0::{name}"]
    calls = [case.make(Maker(device=options.device, tiny=options.tiny, seed=seed)) for seed in range(2)]
    actions = [action(one.run, call) for call in calls]
    results = actions[0]()
    ms = timed(actions, device=options.device)
    found: Found = {"ms": ms, **floor(contract, calls[0], results, ms, options.ceiling)}
    keep(found)
    if options.no_peers:
        return
    for peer, run in ways_of(contract, case, options.device).items():
        took = beside(run, calls, results, ms, options.device)
        found.setdefault("peers", {})[peer] = took
        keep(found)
    if case.eager and case.uncompiled:
        found.setdefault("peers", {})["torch_compile"] = {"not_run": case.uncompiled}
        keep(found)


def action(run: Callable[..., Any], call: Call) -> Callable[[], Any]:
    """Return a call with its arguments."""
    return lambda: run(*call[0], **call[1])


def floor(contract: Operator, call: Call, results: Any, ms: float, ceiling: Mapping[str, float]) -> Found:
    """Return bytes, operations, and the share of the nearer ceiling that was reached."""
    args, kwargs = call
    tensors = [*tensors_in(call), *tensors_in(results)]
    nbytes = (
        contract.bytes(*args, **kwargs) if contract.bytes else sum(one.numel() * one.element_size() for one in tensors)
    )
    flops = contract.flops(*args, **kwargs) if contract.flops else 0
    memory, arithmetic = nbytes / ceiling["copy_gb_s"] / 1e6, flops / ceiling["bf16_tflops"] / 1e9
    bound = "copy" if memory >= arithmetic else "product"
    return {
        "bytes": nbytes,
        "flops": flops,
        "gb_s": nbytes / ms / 1e6,
        "tflops": flops / ms / 1e9,
        "bound": bound,
        "fraction": max(memory, arithmetic) / ms,
    }


def beside(run: Callable[..., Any], calls: list[Call], right: Any, ms: float, device: str) -> Found:
    """Time what a user would run otherwise, if it computes the same; or say why it has no time."""
    try:
        refuse_other(first(run(*calls[0][0], **calls[0][1])), first(right))
        took = timed([action(run, call) for call in calls], repeat=5, device=device)
    except CANNOT as error:
        if device == "cuda":
            torch.cuda.empty_cache()
        return {"not_run": f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"}
    return {"ms": took, "ratio": took / ms}


def ways_of(contract: Operator, case: Case, device: str) -> dict[str, Callable[..., Any]]:
    """Return the peers by name."""
    ways: dict[str, Callable[..., Any]] = dict(PEERS.get(contract.name.removeprefix("day0::"), {}))
    for one in load_implementations():
        if one.operator == contract.name and one.origin.startswith("kernels/torch/"):
            ways[f"day0_torch_{one.id}"] = one.run
    if case.eager:
        ways["torch_eager"] = contract.reference
        if device == "cuda" and not case.uncompiled:
            # Last: a compiler may take all the time that is left.
            ways["torch_compile"] = torch.compile(contract.reference, dynamic=False)
    return ways


def tune(name: str, one: Tuned, options: argparse.Namespace, end: float) -> dict[str, int]:
    """Walk the named sizes one after the other, twice, and keep what is quickest by more than 2 %."""
    module = module_of(name)
    case = next(case for case in CASES[name] if case.name == one.case)
    calls = [case.make(Maker(device=options.device, tiny=options.tiny, seed=seed)) for seed in range(2)]
    run = kernel_of(name).run
    best = sizes(one.kernel, getattr(module, one.defaults), next(iter(tensors_in(calls[0]))).device)
    least = _time_with(one.kernel, best, run, calls, options.device)
    # What belongs together first: a walk along one size at a time would not come there.
    for start in getattr(module, one.starts, ()):
        ms = _time_with(one.kernel, {**best, **start}, run, calls, options.device)
        print(f"{one.kernel} {start}: {ms:.4f} ms", file=sys.stderr)
        if ms < 0.98 * least:
            best, least = {**best, **start}, ms
    for _ in range(2):
        before = dict(best)
        for size, choices in getattr(module, one.choices).items():
            for choice in choices[:2] if options.tiny else choices:
                # A fifth of the time belongs to the figures.
                if choice == best[size] or time.monotonic() > end - 0.2 * options.seconds:
                    continue
                ms = _time_with(one.kernel, {**best, size: choice}, run, calls, options.device)
                if ms < 0.98 * least:
                    best, least = {**best, size: choice}, ms
        if best == before:
            break
    return best


def _time_with(kernel: str, tiles: Mapping[str, int], run: Callable[..., Any], calls: list[Call], device: str) -> float:
    try:
        with trying({kernel: tiles}):
            return timed([action(run, call) for call in calls], repeat=8, device=device)
    except Exception as error:  # noqa: BLE001 - Triton raises classes of its own for what does not fit a device
        print(f"{kernel} {dict(tiles)}: {type(error).__name__}", file=sys.stderr)
        return float("inf")


def show(name: str, found: Found) -> None:
    """Print a line for each case, and its figure."""
    print(f"{name}: {found.get('status')}; {found.get('check', {}).get('passed', 0)} calls right", flush=True)
    for case, one in found.get("cases", {}).items():
        beside = ", ".join(
            f"{peer} {took['ratio']:.2f} x" if "ratio" in took else f"{peer} not run ({took['not_run'][:60]})"
            for peer, took in one.get("peers", {}).items()
        )
        print(f"  {case:24} {one['ms']:9.4f} ms  {one['gb_s']:6.0f} GB/s {one['tflops']:6.1f} TFLOPS  {beside}")
        print(f"figure: {name}_{case}_fraction_of_{one['bound']} {one['fraction']:.3f}", flush=True)


def report(found: Mapping[str, Found], ceiling: Mapping[str, float], options: argparse.Namespace) -> Found:
    """Return the record: what was measured, on what, and figures by name."""
    figures = {
        f"{name}_{case}_fraction_of_{one['bound']}": round(one["fraction"], 4)
        for name, operator in found.items()
        for case, one in operator.get("cases", {}).items()
    }
    for log in options.figures:
        lines = (line.split() for line in log.read_text(errors="replace").splitlines() if line.startswith("figure: "))
        figures |= {line[1]: float(line[2]) for line in lines if len(line) == 3}
    return {
        "schema": "day0.figures/1",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu, interpreted",
        "driver": driver(options.device),
        "versions": versions(),
        "ceilings": dict(ceiling),
        "operators": dict(found),
        "figures": figures,
    }


def write_tuned(found: Mapping[str, Found], path: Path) -> None:
    """Write what was found quickest, beside what the file has of other kernels."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    old = yaml.safe_load(path.read_text()) if path.is_file() else {}
    kernels = dict(old.get("kernels", {})) if old.get("device") == device else {}
    for operator in found.values():
        if operator.get("status") == "pass":
            kernels |= operator.get("tiles", {})
    text = yaml.safe_dump({"schema": SCHEMA, "device": device, "kernels": kernels}, sort_keys=True)
    made = (
        f"# Written by benchmarks/gpu/kernels.py --tune on {datetime.now(UTC):%Y-%m-%d}, torch {torch.__version__}.\n"
    )
    path.parent.mkdir(exist_ok=True)
    path.write_text(made + text)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
