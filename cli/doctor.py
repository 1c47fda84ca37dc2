"""`day0 doctor`: what works here, what is missing and how to install it, what is broken and why."""

from __future__ import annotations

import json as jsonlib
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any, Literal

from rich.table import Table

from day0 import __version__
from day0.cli.doctor_ask import Answer, ask
from day0.cli.doctor_machine import machine
from day0.cli.doctor_words import EXTRAS, Finding, Status
from day0.cli.talk import Talk, safe
from day0.errors import Day0Error, ExitCode, near_names

__all__ = ["AREAS", "doctor"]

AREAS = ("core", "devices", "extras", "compiler", "plugins", "machine")
NEEDED = "numpy,safetensors,typer,rich,yaml,pydantic,packaging,jinja2,altair,vl_convert"
COMPILE_FACTOR = 3.0
"""A compiler may take so many times as long as anything else."""
_COLOURS: dict[Status, str] = {"works": "green", "missing": "yellow", "broken": "red"}

Probe = Callable[[], list[Finding]]


def doctor(*, only: Sequence[str], device: Sequence[str], timeout: float, json: bool) -> int:
    """Try everything and say what came of it. Exit code 2 where the core does not work."""
    areas = _areas(only)
    talk = Talk(as_json=json)
    with talk.busy("looking around"):
        findings = _look(areas, device, timeout, talk)
    works = not any(one.needed and one.status != "works" for one in findings)
    _show(talk, findings, works=works, whole=set(areas) >= {"core", "devices"})
    if json:
        found = {"schema": "day0.doctor/1", "day0": __version__, "works": works}
        print(jsonlib.dumps({**found, "findings": [asdict(one) for one in findings]}, indent=1))
    return int(ExitCode.OK if works else ExitCode.USER_CAN_REPAIR)


def _areas(only: Sequence[str]) -> tuple[str, ...]:
    for name in only:
        if name not in AREAS:
            hint = near_names(name, AREAS) or f"use {', '.join(AREAS)}"
            raise Day0Error(f"--only {name}", "there is no such area", hint=hint)
    return tuple(area for area in AREAS if not only or area in only)


def _look(areas: Sequence[str], devices: Sequence[str], timeout: float, talk: Talk) -> list[Finding]:
    """Ask everything, two processes at a time; the order of the answers is that of the questions."""
    probes: list[tuple[str, Probe]] = []
    if "core" in areas:
        probes += [("core", partial(_core, timeout)), ("core", partial(_needed, timeout))]
    if "devices" in areas:
        names = dict.fromkeys(("null", "cuda", "s5000", *devices))
        probes += [("devices", partial(_device, name, timeout, asked=name in devices)) for name in names]
    if "extras" in areas:
        probes += [("extras", partial(_extra, name, timeout)) for name in EXTRAS]
    if "compiler" in areas:
        probes.append(("compiler", partial(_compiler, timeout * COMPILE_FACTOR)))
    if "plugins" in areas:
        probes.append(("plugins", partial(_plugins, timeout)))
    if "machine" in areas:
        probes.append(("machine", machine))
    found: list[Finding] = []
    with ThreadPoolExecutor(max_workers=2) as pool:
        waiting = [(area, pool.submit(probe)) for area, probe in probes]
        for number, (area, one) in enumerate(waiting):
            talk.progress(f"looking at {area}", done=number, total=len(waiting))
            found += one.result()
    return found


def _core(timeout: float) -> list[Finding]:
    answer = ask("core", "", limit_s=timeout)
    says = "one operator and its backward pass on the CPU"
    torch = _finding("core", "torch", answer, says, hint="pip install 'torch>=2.11'", needed=True)
    if torch.status == "works" and not _at_least(torch.version, (2, 11)):
        hint = "pip install --upgrade 'torch>=2.11'"
        what = f"day0 needs torch 2.11 or newer, and this is {torch.version}"
        torch = Finding(
            area="core", name="torch", status="broken", version=torch.version, says=what, hint=hint, needed=True
        )
    found = [torch]
    accelerator = str((answer.data or {}).get("accelerator", ""))
    if accelerator and accelerator not in ("cuda", "sim"):
        asked = ask("device", f"torch:{accelerator}", limit_s=timeout)
        found.append(_finding("devices", accelerator, asked, "one operator and its backward pass"))
    return found


def _needed(timeout: float) -> list[Finding]:
    answer = ask("needed", NEEDED, limit_s=timeout)
    hint = "pip install --force-reinstall day0"
    return [_finding("core", "packages that day0 needs", answer, NEEDED.replace(",", ", "), hint=hint, needed=True)]


def _device(name: str, timeout: float, *, asked: bool) -> list[Finding]:
    """Try the device of a profile. The simulated one is part of the core; what the user names has to be there too."""
    answer = ask("device", name, limit_s=timeout)
    title = str((answer.data or {}).get("title", ""))
    sim = name == "null"
    says = "one operator and its backward pass" + (f" on {title}" if title and title != name and not sim else "")
    hint = "" if sim else f"install a build of torch for it, or the vendor's package; see `day0 device show {name}`"
    return [_finding("devices", "sim" if sim else name, answer, says, hint=hint, needed=sim or asked)]


def _extra(name: str, timeout: float) -> list[Finding]:
    extra = EXTRAS[name]
    answer = ask("extra", f"{name}:{extra.module}", limit_s=timeout)
    return [_finding("extras", name, answer, extra.gives, hint=extra.install)]


def _compiler(timeout: float) -> list[Finding]:
    with tempfile.TemporaryDirectory(prefix="day0-compile-") as cache:
        # An empty cache, so that something is really compiled; one process, so that nothing outlives it.
        fresh = {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        answer = ask("compiler", "", limit_s=timeout, environment=fresh)
    gives = "compiled conversion of weights, kernels in compiled models"
    lacks = not any(shutil.which(name) for name in ("c++", "g++", "clang++"))
    hint = (
        "apt-get install g++" if lacks else "try it alone: python -c 'import torch; torch.compile(abs)(torch.ones(2))'"
    )
    return [_finding("compiler", "torch.compile", answer, gives, hint=hint)]


def _plugins(timeout: float) -> list[Finding]:
    names = (ask("plugins", "", limit_s=timeout).data or {}).get("names", [])
    found = []
    for name in names:
        answer = ask("plugin", str(name), limit_s=timeout)
        count = (answer.data or {}).get("implementations", 0)
        hint = f"pip install --upgrade {name}, or go on without it: --without {name}"
        found.append(_finding("plugins", str(name), answer, f"{count} implementations", hint=hint))
    return found


def _finding(area: str, name: str, answer: Answer, says: str, *, hint: str = "", needed: bool = False) -> Finding:
    status: Literal["works", "missing", "broken"] = "works"
    data: dict[str, Any] = answer.data or {}
    if answer.data is None:
        status, says = "broken", answer.why
    elif "missing" in data:
        status, says = "missing", f"{data['missing']}; it gives {says}" if area == "extras" else str(data["missing"])
    elif "broken" in data:
        status, says = "broken", str(data["broken"])
    shown = "" if status == "works" else hint
    version = str(data.get("version", ""))
    return Finding(area=area, name=name, status=status, version=version, says=says, hint=shown, needed=needed)


def _at_least(version: str, wanted: tuple[int, int]) -> bool:
    parts = version.split(".")[:2]
    return all(part.isdecimal() for part in parts) and tuple(map(int, parts)) >= wanted


def _show(talk: Talk, findings: Sequence[Finding], *, works: bool, whole: bool) -> None:
    area = ""
    table = Table.grid(padding=(0, 2))
    for width in (8, 24, 0):
        table.add_column(min_width=width, overflow="fold")
    for one in findings:
        if one.area != area:
            area = one.area
            table.add_row(f"[bold]{area}[/bold]")
        colour = _COLOURS[one.status]
        says = safe(one.says) + (f"\n[dim]{safe(one.hint)}[/dim]" if one.hint else "")
        table.add_row(f"[{colour}]{one.status}[/{colour}]", safe(f"{one.name} {one.version}".strip()), says)
    talk.out.print(table)
    if not works:
        talk.say("\n[red]day0 cannot work here[/red]: see above")
    elif whole:
        talk.say("\n[green]day0 works here[/green]")
