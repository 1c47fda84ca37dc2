"""Run every front door of this folder on one device and say of each: right, wrong, or why it cannot run here.

python playbooks/examples/front_doors/check_all.py --device cuda

Twice for each: the implementation alone on the sample calls of its operator, then by way of torch's dispatcher, with a
lock that names it, where the count proves that it ran. Exit code 1 if one is wrong or did not run where it should.
On a machine without CUDA, Triton's kernel is run by Triton's interpreter (`--interpret`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from day0.analyzers.kernel_check import Call, CallCheck, calls_of, check_kernel
from day0.devices.open import open_torch_device, synchronize
from day0.devices.profile import load_profile
from day0.errors import USER_ERRORS, Day0Error
from day0.implementation import Implementation
from day0.kernels.load import load_implementation_file
from day0.records import Decision, Lock, LockEntry
from day0.reference_ops.signatures import describe, dtype_name, signature_id
from day0.registry.dispatch import activate
from day0.registry.resolve import judge

OPERATOR = "day0::rms_norm"
ERRORS: tuple[type[BaseException], ...] = (*USER_ERRORS, Day0Error)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What became of one front door."""

    name: str
    verdict: str
    """`right`, `wrong`, or `refused`."""
    facts: tuple[str, ...]


def more_calls() -> Iterator[Call]:
    """Yield calls as models make them, beside the contract's samples: widths, both orders, both kinds of weight."""
    generator = torch.Generator().manual_seed(7)
    for shape in ((5, 256), (2, 3, 1024), (1, 7168), (33, 4096)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for weight_dtype in dict.fromkeys((dtype, torch.float32)):
                x = torch.randn(shape, generator=generator).to(dtype)
                weight = (1.0 + 0.2 * torch.randn(shape[-1], generator=generator)).to(weight_dtype)
                yield (x, weight, 1e-6), {}
                yield (x, weight, 1e-5, False), {}


def examine(path: Path, device: str, interpret: bool) -> Found:
    """Load one file and try what it brings."""
    name = path.stem.removesuffix("_rms_norm")
    try:
        (one,) = load_implementation_file(path)
        if interpret and name == "triton":
            one = replace(one, devices=(*one.devices, "cpu"))
        began = time.perf_counter()
        checks = check_kernel(one, device, calls=[*calls_of(OPERATOR), *more_calls()])
        seconds = time.perf_counter() - began
    except ERRORS as error:
        facts = getattr(error, "facts", ()) or (str(error),)
        return Found(name=name, verdict="refused", facts=tuple(facts))
    return _judged(name, one, device, checks, seconds)


def _judged(name: str, one: Implementation, device: str, checks: tuple[CallCheck, ...], seconds: float) -> Found:
    wrong = [check for check in checks if check.status in ("fail", "crashed")]
    passed = [check for check in checks if check.status == "pass"]
    skipped = sorted({check.reason for check in checks if check.status == "skipped"})
    worst = max((check for check in passed), key=lambda check: check.error or 0.0, default=None)
    facts = [f"alone: {len(passed)} calls right, {len(wrong)} wrong, in {seconds:.1f} s with compiling"]
    if worst is not None:
        facts.append(f"worst error {worst.error:.3g}, allowed {worst.limit:.3g} ({worst.shapes})")
    facts += [f"does not take: {reason}" for reason in skipped[:3]]
    facts += [f"{check.status}: {check.shapes}: {check.reason}" for check in wrong[:3]]
    if wrong:
        return Found(name=name, verdict="wrong", facts=tuple(facts))
    calls, ran, error = through_torch(one, device)
    facts.append(
        f"by way of torch.ops.{OPERATOR.replace('::', '.')}: {calls} calls, ran {ran} times, error {error:.3g}"
    )
    return Found(name=name, verdict="right" if calls == ran > 0 else "wrong", facts=tuple(facts))


def through_torch(one: Implementation, device: str) -> tuple[int, int, float]:
    """Call torch's operator with a lock that names the implementation; return calls, runs, largest relative error."""
    profile = load_profile(device)
    place = open_torch_device(profile)
    pairs = [(describe(OPERATOR, args, kwargs), args) for args, kwargs in more_calls()]
    taken = [(signature, args) for signature, args in pairs if judge(one, signature, profile).accepted]
    entries: dict[tuple[str, ...], list[str]] = {}
    for signature, args in taken:
        dtypes = tuple(dtype_name(value.dtype) for value in args if isinstance(value, torch.Tensor))
        entries.setdefault(dtypes, []).append(signature_id(signature))
    lock = Lock(
        device=profile.name,
        namespace=one.namespace,
        model="none",
        entries=tuple(_entry(one, dtypes, tuple(sorted(ids))) for dtypes, ids in sorted(entries.items())),
    )
    error = 0.0
    with activate(lock, place, (one,)) as active:
        for _, args in taken:
            got = torch.ops.day0.rms_norm(*(v.to(place) if isinstance(v, torch.Tensor) else v for v in args))
            synchronize(place)
            error = max(error, _error(got.cpu(), args))
        ran = sum(active.counts.values())
    return len(taken), ran, error


def _error(got: torch.Tensor, args: tuple[object, ...]) -> float:
    from day0.reference_ops.rms_norm import reference

    wide = [value.double() if isinstance(value, torch.Tensor) else value for value in args]
    golden = reference(*wide)  # type: ignore[arg-type]  # the arguments of a sample call
    return float(torch.linalg.vector_norm(got.double() - golden) / torch.linalg.vector_norm(golden))


def _entry(one: Implementation, dtypes: tuple[str, ...], signatures: tuple[str, ...]) -> LockEntry:
    return LockEntry(
        operator=OPERATOR,
        dtypes=dtypes,
        signatures=signatures,
        identity=one.identity,
        kind=one.kind,
        source_hash=one.source_hash,
        origin=one.origin,
        decisions=(Decision(candidate=str(one.identity), accepted=True, reason=one.why),),
    )


def _again_interpreted() -> int:
    """Start over with the variable set that Triton reads when it is imported, which torch may have done by now."""
    command = [sys.executable, str(Path(__file__)), *sys.argv[1:]]
    return subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, check=False).returncode  # noqa: S603 - ourselves


def main(arguments: list[str] | None = None) -> int:
    """Try all of them, or those that are named, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="device profile")
    parser.add_argument("--interpret", action="store_true", help="run Triton's kernel by its interpreter on the CPU")
    parser.add_argument("--expect", nargs="*", default=[], help="front doors that must be right, not refused")
    given = parser.parse_args(arguments)
    if given.interpret and os.environ.get("TRITON_INTERPRET") != "1":
        return _again_interpreted()
    folder = Path(__file__).parent
    found = [examine(path, given.device, given.interpret) for path in sorted(folder.glob("*_rms_norm.py"))]
    for one in found:
        print(f"{one.name}: {one.verdict} on {given.device}")
        for fact in one.facts:
            print(f"  {fact}")
    missing = {one.name for one in found if one.verdict != "right"} & set(given.expect)
    if missing:
        print(f"expected to be right: {', '.join(sorted(missing))}", file=sys.stderr)
    return int(bool(missing) or any(one.verdict == "wrong" for one in found))


if __name__ == "__main__":
    sys.exit(main())
