"""Look targets up in an engine that is installed somewhere, in a process of its own: engines are heavy and opinionated."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from day0.errors import Day0Error, near_names
from day0.registry.export.adapters import Found
from day0.registry.export.runtime import spec
from day0.registry.export.runtime.spec import Target

__all__ = ["Engine", "check_targets", "look_at_engine"]

SECONDS = 300.0
"""An engine that takes longer to import is not going to."""

_PROBE = """
import contextlib, importlib, importlib.metadata, importlib.util, json, sys
asked = json.load(sys.stdin)
loaded = importlib.util.spec_from_file_location("day0_target_spec", asked["spec"])
spec = importlib.util.module_from_spec(loaded)
sys.modules["day0_target_spec"] = spec
loaded.loader.exec_module(spec)
answer = {"version": "", "missing": {}, "names": {}}
with contextlib.redirect_stdout(sys.stderr):
    for name in asked["distributions"]:
        try:
            answer["version"] = importlib.metadata.version(name)
            break
        except importlib.metadata.PackageNotFoundError:
            continue
    for one in asked["targets"]:
        try:
            spec.find_target(spec.Target(**{**one, "operators": ()}))
        except spec.TargetError as error:
            answer["missing"][one["name"]] = str(error)
            try:
                answer["names"][one["name"]] = sorted(dir(importlib.import_module(one["path"].partition(":")[0])))
            except Exception:
                answer["names"][one["name"]] = []
        except Exception as error:
            answer["missing"][one["name"]] = f"{one['path']}: it cannot be imported: {type(error).__name__}: {error}"
json.dump(answer, sys.stdout)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """What an interpreter has of an engine."""

    version: str
    missing: dict[str, str]
    """By target: what is not as the adapter says."""
    names: dict[str, tuple[str, ...]]
    """By missing target: what its module has instead."""


def look_at_engine(python: Path, found: Found, targets: tuple[Target, ...]) -> Engine:
    """Import the engine with its own interpreter and look every target up there.

    Raises Day0Error: the interpreter cannot be started, the engine is not installed, or it takes five minutes.
    """
    asked = {
        "spec": str(spec.__file__),
        "distributions": found.adapter.distributions,
        "targets": [
            {
                name: getattr(one, name)
                for name in ("name", "path", "hook", "method", "signature", "arguments", "optional")
            }
            for one in targets
        ],
    }
    try:
        done = subprocess.run(  # noqa: S603 - the interpreter that the user names
            [str(python), "-c", _PROBE],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except OSError as error:
        raise Day0Error(
            f"--python {python}", f"cannot be started: {error.strerror}", hint="name the engine's python"
        ) from None
    except subprocess.TimeoutExpired:
        raise Day0Error(
            f"--python {python}", f"no answer within {SECONDS:.0f} s", hint="does `import` of the engine end there?"
        ) from None
    return _answer(done, python, found)


def _answer(done: subprocess.CompletedProcess[str], python: Path, found: Found) -> Engine:
    try:
        answer = json.loads(done.stdout)
        engine = Engine(
            version=str(answer["version"]),
            missing={str(key): str(value) for key, value in answer["missing"].items()},
            names={str(key): tuple(value) for key, value in answer["names"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Day0Error(
            f"--python {python}",
            f"the engine could not be looked at; exit code {done.returncode}",
            facts=tuple(done.stderr.strip().splitlines()[-4:]),
            hint=f"does `{python} -c 'import {found.adapter.module}'` work?",
        ) from None
    if not engine.version:
        names = " or ".join(found.adapter.distributions)
        raise Day0Error(f"--python {python}", f"{names} is not installed there", hint="name the engine's python")
    return engine


def check_targets(engine: Engine, found: Found, targets: tuple[Target, ...]) -> None:
    """Raise Day0Error naming every target that the engine does not have as the adapter says, with near names."""
    optional = {target.name for target in targets if target.optional}
    bad = {name: reason for name, reason in engine.missing.items() if name not in optional}
    if bad:
        first = next(iter(bad))
        near = near_names(first, engine.names.get(first, ()))
        raise Day0Error(
            f"{found.adapter.engine} {engine.version}",
            f"{len(bad)} of {len(targets)} targets are not there as {found.name} describes them",
            facts=tuple(bad.values()),
            hint=near or "an adapter is needed that was made for this release",
        )
