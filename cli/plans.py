"""From flags and playbook files to a plan."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import ValidationError

from day0.errors import Day0Error
from day0.playbook import CheckPlan, ModelPlan, PhasePlan, Playbook, RegisterPlan, WorkloadPlan

__all__ = ["override_check", "override_plan", "parse_phase", "parse_set", "refuse_other_model", "trace_plan"]


def trace_plan(
    *,
    model: str,
    sets: list[str],
    dtype: str,
    mode: str,
    batch: int,
    shrink: bool = False,
    phases: list[str],
    trust_remote_code: bool,
    name: str,
    world_size: int = 1,
    adapt: Sequence[str] = (),
    capture: bool = False,
) -> Playbook:
    """Make the plan of a run folder that begins with `day0 trace`; the device comes later."""
    modes = get_args(Playbook.model_fields["trace"].annotation)
    if mode not in modes:
        raise Day0Error("--mode", f"'{mode}' is not a mode", hint=f"use one of: {', '.join(modes)}")
    return Playbook.model_validate(
        {
            "schema": "day0.playbook/1",
            "name": _plain_name(name),
            "model": _model_plan(model, sets, dtype, trust_remote_code, shrink, tuple(adapt)),
            "workload": _workload(batch, world_size, phases),
            "trace": mode,
            "capture": capture,
            "device": "",
        }
    )


def _plain_name(name: str) -> str:
    """Name a plan after its folder: folders may be called what plans may not, such as `..` or `.hidden`."""
    readable = name.encode("utf-8", "replace").decode()
    return readable.replace("\\", "_").lstrip(".") or "run"


def _workload(batch: int, world_size: int, phases: list[str]) -> WorkloadPlan:
    named: dict[str, PhasePlan] = {}
    for text in phases:
        name, phase = parse_phase(text)
        if name in named:
            raise Day0Error(f"--phase {text}", f"'{name}' was named twice", hint="give each phase a name of its own")
        named[name] = phase
    try:
        return WorkloadPlan(batch=batch, world_size=world_size, phases=named)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
        flag = f"--{str(fault['loc'][0]).replace('_', '-')} {fault['input']}"
        raise Day0Error(flag, fault["msg"].lower(), hint="check the number of digits") from None


def _model_plan(
    model: str, sets: list[str], dtype: str, trust_remote_code: bool, shrink: bool, adapt: tuple[str, ...]
) -> ModelPlan:
    values = dict(parse_set(text) for text in sets)
    try:
        return ModelPlan(
            source=model, set=values, dtype=dtype, trust_remote_code=trust_remote_code, shrink=shrink, adapt=adapt
        )
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
        key = str(fault["loc"][1]) if len(fault["loc"]) > 1 else ""
        what = f"{values.get(key)!r} is no number, text, list or mapping"
        raise Day0Error(f"--set {key}", what, hint="put text in quotes") from None


def override_check(plan: Playbook, *, case_timeout: float | None, expect: Path | None) -> Playbook:
    """Return the plan with what flags say of the check. The entries of a list of known failures become part of it."""
    changes: dict[str, Any] = {}
    if case_timeout is not None:
        changes["case_timeout_s"] = case_timeout
    if expect is not None:
        from day0.analyzers.checking.expect import read_expected

        changes["expect"] = read_expected(expect)
    return plan.model_copy(update={"check": plan.check.model_copy(update=changes)}) if changes else plan


_EXPONENT = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]{1,4}")


def parse_set(text: str, *, flag: str = "--set", example: str = "num_hidden_layers=2") -> tuple[str, Any]:
    """Read `key=value`; the value is read like one in YAML, so that 2, true, null and [1, 2] mean themselves."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise Day0Error(f"{flag} {text}", "expected key=value", hint=f"for example {flag} {example}")
    try:
        read = yaml.safe_load(value)
        # YAML 1.1 takes 1e-5 for text: its exponents need a dot and a sign.
        return key, float(value) if isinstance(read, str) and _EXPONENT.fullmatch(value) else read
    except (yaml.YAMLError, ValueError, AttributeError):
        raise Day0Error(f"{flag} {text}", f"the value {value!r} cannot be read", hint="put text in quotes") from None


def parse_phase(text: str) -> tuple[str, PhasePlan]:
    """Read `NAME=TOKENS` or `NAME=TOKENS@CONTEXT`."""
    name, _, size = text.partition("=")
    tokens, _, context = size.partition("@")
    if not name.isprintable() or not name.strip():
        raise Day0Error(f"--phase {text}", "the phase has no name", hint="for example --phase decode=1@4096")
    try:
        return name, PhasePlan(tokens=int(tokens), context=int(context or 0))
    except (ValueError, ValidationError):
        raise Day0Error(
            f"--phase {text}", "expected NAME=TOKENS or NAME=TOKENS@CONTEXT", hint="for example --phase decode=1@4096"
        ) from None


def override_plan(
    plan: Playbook,
    *,
    device: str | None = None,
    load: Sequence[Path],
    namespace: str | None = None,
    fallback: str | None = None,
    replacements: bool | None = None,
    without: Sequence[str] = (),
    replace: Sequence[str] = (),
    strict: bool = False,
    thorough: bool = False,
    level: str | None = None,
    seed: int | None = None,
) -> Playbook:
    """Let flags override what the plan says; what no flag names stays."""
    changes: dict[str, Any] = {}
    if namespace is not None:
        changes["namespace"] = namespace
    if fallback is not None:
        allowed = get_args(RegisterPlan.model_fields["fallback"].annotation)
        if fallback not in allowed:
            raise Day0Error("--fallback", f"'{fallback}' is not known", hint=f"use one of: {', '.join(allowed)}")
        changes["fallback"] = fallback
    if replacements is not None:
        changes["replacements"] = replacements
    if without:
        changes["without"] = tuple(dict.fromkeys((*plan.register_.without, *without)))
    if strict:
        changes["strict"] = True
    if replace:
        changes["replace"] = tuple(dict.fromkeys((*plan.register_.replace, *replace)))
    if load:
        changes["load"] = (*plan.register_.load, *(str(path) for path in load if str(path) not in plan.register_.load))
    if thorough:
        plan = plan.model_copy(update={"check": plan.check.model_copy(update={"thorough": True})})
    register = plan.register_.model_copy(update=changes)
    plan = plan.model_copy(update={"register_": register, "check": _at_level(plan.check, level, seed)})
    return plan.model_copy(update={"device": device}) if device is not None else plan


def _at_level(check: CheckPlan, level: str | None, seed: int | None) -> CheckPlan:
    check = check if seed is None else check.model_copy(update={"seed": seed})
    if level is None:
        return check
    allowed = get_args(CheckPlan.model_fields["level"].annotation)
    if level not in allowed:
        raise Day0Error("--level", f"'{level}' is not known", hint=f"use one of: {', '.join(allowed)}")
    return check.model_copy(update={"level": level})


def refuse_other_model(where: Path, before: Playbook | None, asked: Playbook, *, force: bool) -> None:
    """Raise Day0Error if a run folder was made for another model, unless it is to be taken over."""
    if before is None or force or before.model == asked.model:
        return
    changed = [
        f"{key}: {old!r} here, {new!r} asked for"
        for key, old in before.model.model_dump().items()
        if old != (new := asked.model.model_dump()[key])
    ]
    raise Day0Error(
        str(where),
        f"this run folder belongs to another model, {before.model.source}",
        facts=tuple(changed),
        hint="name another folder with --run, or take this one over with --force",
    )
