"""The commands about devices: list, show, schema, probe, faults."""

from __future__ import annotations

import json as jsonlib
import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from rich.markup import escape

from day0.cli import show
from day0.cli.failures import clean
from day0.cli.rundir import write_atomically
from day0.cli.talk import Talk
from day0.errors import Day0Error, ExitCode

if TYPE_CHECKING:
    from day0.devices.probe import Probed
    from day0.devices.profile import DeviceProfile
    from day0.records import Signature

__all__ = ["device_faults", "device_list", "device_probe", "device_schema", "device_show"]

TOP = 40
"""Lines about what failed on the terminal; the profile holds all of them."""


def device_list(*, json: bool) -> int:
    """`day0 device list`."""
    from day0.devices.profile import list_profiles, load_profile

    talk = Talk(as_json=json)
    profiles = [load_profile(name) for name in list_profiles()]
    show.profiles(talk, profiles)
    if json:
        print(jsonlib.dumps([profile.model_dump(mode="json") for profile in profiles], indent=1))
    return int(ExitCode.OK)


def device_faults(*, json: bool) -> int:
    """`day0 device faults`."""
    from day0.devices.faults.load import load_faults

    talk = Talk(as_json=json)
    found = sorted(load_faults().values(), key=lambda one: (one.family, one.name))
    show.faults(talk, found)
    if json:
        rows = [
            {
                "name": one.name,
                "family": one.family,
                "operators": list(one.operators),
                "is_fault": one.is_fault,
                "does": one.does,
                "source": one.source.split(),
            }
            for one in found
        ]
        print(jsonlib.dumps(rows, indent=1))
    return int(ExitCode.OK)


def device_show(*, name: str, json: bool) -> int:
    """`day0 device show`."""
    from day0.devices.profile import load_profile

    profile = load_profile(name)
    value = profile.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    print(
        jsonlib.dumps(value, indent=1) if json else yaml.safe_dump(value, sort_keys=False, allow_unicode=True), end=""
    )
    return int(ExitCode.OK)


def device_schema() -> int:
    """`day0 device schema`: what an editor needs to complete and check a profile."""
    from day0.devices.schema import profile_schema

    print(profile_schema(), end="")
    return int(ExitCode.OK)


def device_probe(
    *,
    device: str,
    traces: list[Path],
    suite: bool,
    imports: list[str],
    timeout: float,
    max_mib: int,
    rates: bool,
    out: Path | None,
    json: bool,
) -> int:
    """`day0 device probe`: ask the device itself, and write what it answers as a profile."""
    from day0.devices.probe import ProbeOptions, probe
    from day0.devices.probe_profile import probed_profile, profile_yaml

    talk = Talk(as_json=json)
    base = _base(device, imports)
    path = out or Path(f"{base.name}.probed.yaml")
    _refuse_overwriting(path)
    options = ProbeOptions(
        imports=tuple(imports),
        timeout_s=timeout,
        max_bytes=max_mib << 20,
        rates=rates and base.torch_device != "sim",
    )
    with talk.busy("probe"):
        signatures = _signatures(talk, traces, suite=suite)
        found = probe(base, signatures, options, lambda text, done, total: talk.progress(text, done, total))
    made = probed_profile(base, found, date=datetime.now(UTC).date().isoformat())
    write_atomically(path, profile_yaml(made))
    _show(talk, made, found, path)
    if json:
        print(jsonlib.dumps(_record(made, found, path), indent=1))
    return int(ExitCode.OK)


def _base(device: str, imports: list[str]) -> DeviceProfile:
    """Return the profile of that name, or one made up for a device that torch knows and nobody has described."""
    from day0.devices.probe_profile import undescribed
    from day0.devices.profile import list_profiles, load_profile

    if device in list_profiles() or device.endswith((".yaml", ".yml")):
        return load_profile(device)
    return undescribed(device, tuple(imports)) or load_profile(device)


def _signatures(talk: Talk, traces: list[Path], *, suite: bool) -> list[Signature]:
    from day0.devices.probe_suite import suite as built_in
    from day0.reference_ops.signatures import signature_id
    from day0.reference_ops.torch_ops import register_operators

    register_operators()
    talk.progress("reading the calls to try")
    signatures = [one for trace in traces for one in _traced(trace)] or _toy(talk)
    signatures += built_in() if suite else ()
    return list({signature_id(one): one for one in signatures}.values())


def _traced(path: Path) -> list[Signature]:
    from day0.codec import decode
    from day0.records import Trace

    file = path / "trace.json" if path.is_dir() else path
    if not file.is_file():
        raise Day0Error(f"--trace {path}", "there is no such trace", hint="give a trace.json, or a run folder with one")
    text = file.read_text(encoding="utf-8", errors="replace")
    trace = decode(Trace, text, where=str(file), remake="day0 trace MODEL").record
    return [entry.signature for entry in trace.entries]


def _toy(talk: Talk) -> list[Signature]:
    """Trace the toy model with real weights, so that the ranges of integers are known."""
    from day0.analyzers.trace import trace_model
    from day0.models.source import open_model
    from day0.models.workload import plan_phases
    from day0.playbook import ModelPlan, WorkloadPlan

    spec = open_model(ModelPlan(source="toy"))
    trace = trace_model(spec, plan_phases(spec, WorkloadPlan()), mode="real", progress=talk.progress)
    return [entry.signature for entry in trace.entries]


def _refuse_overwriting(path: Path) -> None:
    """Refuse a file that a person wrote, before the work and not after it."""
    if path.is_dir():
        raise Day0Error(f"--out {path}", "this is a folder", hint="name a file, such as mine.yaml")
    if path.exists() and "\nprobed:" not in path.read_text(encoding="utf-8", errors="replace"):
        raise Day0Error(
            f"--out {path}", "this file is there and was not written by probe", hint="name another with --out"
        )
    if not path.absolute().parent.is_dir():
        raise Day0Error(f"--out {path}", f"there is no folder {path.absolute().parent}", hint="make it first")
    if not os.access(path.absolute().parent, os.W_OK):
        what = f"nothing can be written into {path.absolute().parent}"
        raise Day0Error(f"--out {path}", what, hint="name a file in a folder of yours")


def _show(talk: Talk, made: DeviceProfile, found: Probed, path: Path) -> None:
    facts = found.facts
    talk.say(f"{_safe(facts.name)}: torch {_safe(facts.torch)}, {_safe(facts.driver or 'no driver named')}")
    outcomes = Counter(one.result.status for one in found.calls)
    talk.say(f"{len(found.calls)} calls: " + ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items())))
    if found.restarts:
        talk.say(f"the worker was started again {found.restarts} times")
    for name, lack in list(made.lacks.items())[:TOP]:
        what = " ".join((*lack.dtypes, *(f"rank {rank}" for rank in lack.ranks))) or "all of it"
        talk.say(f"[red]✗[/red] {_safe(name)} {lack.effect}: {what}: {_safe(lack.reason)}")
    if len(made.lacks) > TOP:
        talk.say(f"and {len(made.lacks) - TOP} more in the profile")
    talk.out.print(f"profile: {_safe(path)}", soft_wrap=True)


def _record(made: DeviceProfile, found: Probed, path: Path) -> dict[str, object]:
    return {
        "profile": str(path),
        "facts": found.facts.model_dump(mode="json"),
        "measured": found.measured.model_dump(mode="json"),
        "dtypes": [one.model_dump(mode="json") for one in found.dtypes],
        "calls": [
            {"op": one.signature.op, **one.result.model_dump(mode="json")}
            for one in found.calls
            if one.result.status != "ran"
        ],
        "lacks": {name: lack.model_dump(mode="json") for name, lack in made.lacks.items()},
        "restarts": found.restarts,
    }


def _safe(text: object) -> str:
    return escape(clean(str(text)))
