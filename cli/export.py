"""`day0 ops export` and `day0 ops receipts`: a lock into an engine, and what came back."""

from __future__ import annotations

import json as jsonlib
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from day0.cli.failures import clean
from day0.cli.talk import Talk
from day0.errors import Day0Error, ExitCode

if TYPE_CHECKING:
    from day0.codec import Envelope
    from day0.records import Lock, Trace
    from day0.registry.export.gate import Coverage, Expected, Process, Reading
    from day0.registry.export.plan import ExportPlan
    from day0.registry.export.wheel import Wheel

__all__ = ["ops_export", "ops_receipts"]

MAX_LOCK_BYTES = 1 << 28
EVERY = "*"
"""What --model takes for every model in the process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What LOCK names: the lock, and what stands around it."""

    text: str
    envelope: Envelope[Lock]
    trace: Trace | None
    manifest: dict[str, Any]
    """Of a wheel; else empty."""


def open_source(path: Path) -> Source:
    """Read a run folder, an `ops.lock` or a wheel that was made from one. Raises Day0Error for anything else."""
    from day0.cli.rundir import RunFolder
    from day0.codec import decode
    from day0.records import Lock, Trace

    remake = "day0 register"
    if path.suffix == ".whl":
        text, manifest = _from_wheel(path)
        return Source(
            text=text, envelope=decode(Lock, text, where=str(path), remake=remake), trace=None, manifest=manifest
        )
    folder = RunFolder(path if path.is_dir() else path.parent)
    lock = path / "ops.lock" if path.is_dir() else path
    found = RunFolder(lock.parent).read_text(lock.name)
    if found is None:
        raise Day0Error(
            str(lock), "there is no such lock", hint="name a run folder or an ops.lock; `day0 register` makes one"
        )
    trace = folder.read(Trace)
    return Source(
        text=found,
        envelope=decode(Lock, found, where=str(lock), remake=remake),
        trace=trace.record if trace else None,
        manifest={},
    )


def _from_wheel(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = {Path(name).name: name for name in archive.namelist() if name.count("/") == 1}
            parts = []
            for name in ("ops.lock", "MANIFEST.json"):
                if archive.getinfo(names[name]).file_size > MAX_LOCK_BYTES:
                    raise Day0Error(str(path), f"its {name} is too large to be ours", hint="export again")
                parts.append(archive.read(names[name]).decode("utf-8"))
        manifest = jsonlib.loads(parts[1])
        if not _is_manifest(manifest):
            raise ValueError("its MANIFEST.json is none of ours")
        return parts[0], manifest
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise Day0Error(
            str(path),
            f"this is no plugin of ours: {type(error).__name__}: {error}",
            hint="make it with `day0 ops export`",
        ) from None


def _is_manifest(manifest: Any) -> bool:
    if not isinstance(manifest, dict) or manifest.get("schema") != "day0.export/1":
        return False
    entries = manifest.get("entries")
    return isinstance(entries, list) and all(
        isinstance(one, dict)
        and isinstance(one.get("identity"), str)
        and isinstance(one.get("tested_shapes"), list)
        and all(isinstance(shape, str) for shape in one["tested_shapes"])
        for one in entries
    )


def ops_export(
    *,
    to: str,
    lock: Path,
    folder: Path,
    load: list[Path],
    without: list[str],
    skip: list[str],
    models: list[str],
    receipts: str | None,
    python: Path | None,
    allow_unverified: bool,
    allow_reference: bool,
    json: bool,
) -> int:
    """`day0 ops export`."""
    from day0.registry.collect import collect
    from day0.registry.export.adapters import choose_adapter
    from day0.registry.export.inspect_engine import check_targets, look_at_engine
    from day0.registry.export.plan import Options, make_plan
    from day0.registry.export.wheel import write_wheel

    talk = Talk(as_json=json)
    source = open_source(lock)
    found = choose_adapter(to)
    options = Options(
        skip=tuple(skip),
        allow_unverified=allow_unverified,
        allow_reference=allow_reference,
        models=_models(models, source),
    )
    plan = make_plan(source.envelope.record, collect(tuple(load), without=tuple(without)), found, options)
    plan.raise_refusals()
    checked = ""
    if python is not None:
        with talk.busy(f"looking at {to}"):
            engine = look_at_engine(python, found, plan.targets)
        choose_adapter(to, engine.version)
        check_targets(engine, found, plan.targets)
        checked = engine.version
    wheel = write_wheel(plan, _payload(source, plan, receipts, checked), folder)
    _tell(talk, plan, wheel, checked)
    if json:
        print(jsonlib.dumps(_facts(plan, wheel, checked), indent=1))
    return int(ExitCode.OK)


def _models(asked: list[str], source: Source) -> tuple[str, ...]:
    """Return the models to serve: those named, else the architecture that was traced, else (`*`) every one."""
    if asked:
        return () if EVERY in asked else tuple(asked)
    traced = source.trace.model if source.trace else None
    return (traced.class_name,) if traced is not None and traced.source.startswith("hf:") else ()


def _payload(source: Source, plan: ExportPlan, receipts: str | None, checked: str) -> Any:
    from day0.registry.export.wheel import Payload

    digest = source.envelope.digest
    short = digest.removeprefix("sha256:")[:12]
    default = f"~/.cache/day0/receipts/{plan.found.adapter.engine}-{short}"
    # An absolute path: engines change the folder that they work in.
    where = str(Path(receipts).expanduser().absolute()) if receipts else default
    return Payload(
        lock_text=source.text,
        lock_hash=digest,
        receipts=where,
        dispatch_key=_dispatch_key(plan),
        tested_shapes=_tested_shapes(source.trace),
        checked=checked,
    )


def _dispatch_key(plan: ExportPlan) -> str:
    """Return torch's key of the lock's device, which aten operators are overridden at."""
    from day0.devices.profile import load_profile

    if not any(route.is_aten for route in plan.routes):
        return ""
    profile = load_profile(plan.lock.device)
    if profile.torch_device == "sim":
        names = sorted({route.entry.operator for route in plan.routes if route.is_aten})
        raise Day0Error(
            f"export to {plan.found.adapter.engine}",
            f"{', '.join(names)} was locked for {profile.name}, the simulated device, which no engine runs on",
            hint="lock it for the engine's device, or leave it to the engine with --skip",
        )
    return profile.kernels


def _tested_shapes(trace: Trace | None) -> dict[str, tuple[str, ...]]:
    from day0.reference_ops.signatures import tensor_values

    if trace is None:
        return {}
    return {
        entry.id: (" ".join(str(list(value.shape)) for value in tensor_values(entry.signature)),)
        for entry in trace.entries
    }


def _facts(plan: ExportPlan, wheel: Wheel, checked: str) -> dict[str, Any]:
    return {
        "wheel": str(wheel.path),
        "sha256": wheel.sha256,
        "distribution": wheel.distribution,
        "version": wheel.version,
        "requires": list(wheel.requires),
        "engine": plan.found.adapter.engine,
        "adapter": plan.found.name,
        "tested": plan.found.adapter.tested,
        "checked_in": checked or None,
        "models": list(plan.options.models),
        "routes": [
            {"identity": str(one.entry.identity), "targets": [target.name for target in one.targets] or ["aten"]}
            for one in plan.routes
        ],
        "left_out": [{"identity": one.identity, "reason": one.reason} for one in plan.refusals],
    }


def _say(text: object) -> str:
    return escape(clean(str(text)))


def _tell(talk: Talk, plan: ExportPlan, wheel: Wheel, checked: str) -> None:
    adapter = plan.found.adapter
    for one in plan.routes:
        where = ", ".join(target.name for target in one.targets) or "torch's dispatcher, for every model in the process"
        talk.say(
            f"[bold]{_say(one.entry.identity)}[/bold] ({_say(', '.join(one.entry.dtypes))})\n  through {_say(where)}"
        )
    for refusal in plan.refusals:
        talk.say(f"[yellow]{_say(refusal.identity)}[/yellow]\n  {_say(refusal.reason)}")
    looked = f"looked up in {adapter.engine} {checked}" if checked else "believed; --python looks them up"
    talk.say(f"\nengine   {_say(adapter.engine)} {_say(adapter.tested)}, targets {looked}")
    talk.say(f"models   {_say(', '.join(plan.options.models) or 'every model in the process')}")
    # Paths and commands are copied: they may not be broken.
    for text in (
        f"wheel    {wheel.path}",
        f"         {wheel.sha256}",
        f"install  PYTHON -m pip install --no-deps {wheel.path}",
    ):
        talk.out.print(_say(text), soft_wrap=True)


def ops_receipts(
    *, lock: Path, folder: Path | None, skip: list[str], all_runs: bool, allow_partly: bool, json: bool
) -> int:
    """`day0 ops receipts`: exit code 1 where a locked implementation did not run, or not everywhere."""
    from day0.registry.export.gate import Reading, judge, newest_run, read_receipts

    talk = Talk(as_json=json)
    source = open_source(lock)
    where = _receipts_folder(source, folder)
    if folder is None and not where.exists():
        # Nobody has written there yet, and that is the verdict; a folder that somebody names has to be there.
        reading = Reading(processes=(), of_other_locks=0, unreadable=())
    else:
        reading = read_receipts(where, source.envelope.digest)
    processes = reading.processes if all_runs else newest_run(reading.processes)
    covered = judge(_expected(source, skip, reading), processes)
    failed = [one for one in covered if one.status == "inert" or (one.status == "partly" and not allow_partly)]
    _tell_coverage(talk, covered, processes, reading)
    if json:
        print(jsonlib.dumps(_coverage_facts(covered, processes, reading, bool(failed)), indent=1))
    return int(ExitCode.GATE_FAILED if failed or not covered else ExitCode.OK)


def _receipts_folder(source: Source, folder: Path | None) -> Path:
    if folder is not None:
        return folder
    baked = source.manifest.get("receipts")
    if not isinstance(baked, str):
        raise Day0Error(
            "DIR", "a lock does not say where receipts are written", hint="name the folder, or the wheel as LOCK"
        )
    return Path(baked).expanduser()


def _expected(source: Source, skip: list[str], reading: Reading) -> tuple[Expected, ...]:
    from day0.registry.export.adapters import adapters
    from day0.registry.export.gate import Expected

    engines = {one.engine for one in reading.processes} or {str(source.manifest.get("engine", ""))}
    targets: dict[str, set[str]] = {}
    for found in adapters():
        for target in found.adapter.targets if found.adapter.engine in engines or engines == {""} else ():
            for operator in target.operators:
                targets.setdefault(operator, set()).add(target.name)
    shapes = _tested_shapes(source.trace)
    rows = {one["identity"]: one for one in source.manifest.get("entries", ())}
    return tuple(
        Expected(
            entry=entry,
            targets=frozenset(targets.get(entry.operator, {"aten"})),
            tested_shapes=frozenset(
                rows[str(entry.identity)]["tested_shapes"]
                if rows
                else (shape for one in entry.signatures for shape in shapes.get(one, ()))
            ),
        )
        for entry in source.envelope.record.entries
        if entry.operator not in skip and (not rows or str(entry.identity) in rows)
    )


COLOURS = {"called": "green", "partly": "yellow", "inert": "red"}


def _tell_coverage(talk: Talk, covered: tuple[Coverage, ...], processes: tuple[Process, ...], reading: Reading) -> None:
    for one in covered:
        talk.say(
            f"[{COLOURS[one.status]}]{one.status:<7}[/{COLOURS[one.status]}] {_say(one.identity)} "
            f"({_say(', '.join(one.dtypes))})"
        )
        if one.calls:
            captured = f", {one.captured} of them while a graph was captured" if one.captured else ""
            places = "1 place" if len(one.sites) == 1 else f"{len(one.sites)} places"
            talk.say(f"        {one.calls} calls or more in {places}{captured}")
        if one.reason:
            talk.say(f"        {_say(one.reason)}")
        if one.outside:
            talk.say(f"        shapes outside the tested set: {_say('; '.join(one.outside[:4]))}{_more(one.outside)}")
    roles = ", ".join(f"{one.role} ({one.pid})" for one in processes) or "none"
    talk.say(f"\nprocesses  {_say(roles)}")
    older = len(reading.processes) - len(processes)
    if older:
        talk.note(f"{older} receipts are of earlier runs and take no part; --all-runs counts them")
    if reading.of_other_locks:
        talk.note(f"{reading.of_other_locks} receipts are of other locks")
    for text in reading.unreadable:
        talk.note(f"left out: {text}")
    bad = sum(one.status != "called" for one in covered)
    if bad:
        talk.say(f"[red]{bad} of {len(covered)} locked implementations did not run everywhere that they should[/red]")


def _more(texts: tuple[str, ...]) -> str:
    return f" and {len(texts) - 4} more" if len(texts) > 4 else ""


def _coverage_facts(
    covered: tuple[Coverage, ...], processes: tuple[Process, ...], reading: Reading, failed: bool
) -> dict[str, Any]:
    return {
        "passed": bool(covered) and not failed,
        "entries": [asdict(one) for one in covered],
        "processes": [
            {"pid": one.pid, "role": one.role, "engine": one.engine, "version": one.engine_version} for one in processes
        ],
        "earlier_runs": len(reading.processes) - len(processes),
        "of_other_locks": reading.of_other_locks,
        "unreadable": list(reading.unreadable),
    }
