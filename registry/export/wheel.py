"""Write the plugin as a wheel: pure Python, the same bytes for the same lock."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from day0 import __version__
from day0.errors import Day0Error
from day0.hashing import hash_bytes
from day0.registry.export import runtime
from day0.registry.export.plan import ExportPlan, Route
from day0.registry.export.runtime.manifest import MANIFEST, SCHEMA
from day0.registry.export.runtime.spec import signature_hash

__all__ = ["Payload", "Wheel", "write_wheel"]

LOCK = "ops.lock"
ENGINE = "engine"
RUNTIME = "day0.registry.export.runtime"
LONG_AGO = (1980, 1, 1, 0, 0, 0)
"""The earliest time a zip can hold: a wheel made today and one made tomorrow are the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Payload:
    """What goes into the wheel beside the plan."""

    lock_text: str
    """The record as it stands on disk."""
    lock_hash: str
    """Hash of its body, as receipts name it."""
    receipts: str
    """Where the plugin's processes write; `~` is the home of whoever runs them."""
    dispatch_key: str
    """Torch's key of the device, for aten operators: `CPU`, `CUDA`, `PrivateUse1`."""
    tested_shapes: Mapping[str, tuple[str, ...]]
    """By id of a signature: the shapes of its tensors, as receipts write them."""
    checked: str = ""
    """Release of the engine in which the targets were looked up; empty: those of the tested one are believed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheel:
    """What was written."""

    path: Path
    distribution: str
    version: str
    package: str
    sha256: str
    requires: tuple[str, ...]


def write_wheel(plan: ExportPlan, payload: Payload, folder: Path) -> Wheel:
    """Write `distribution-version-py3-none-any.whl` into a folder and return what it is.

    In its package stand the lock (`ops.lock`), `MANIFEST.json` with the hash of every other file, the run-time files,
    `engine.py` (the adapter) and the user's implementation files that the lock uses. It requires this version of day0,
    and the distributions that entries of the lock came from.
    Raises Day0Error if an implementation stands in a file that cannot be read, or the folder cannot be written.
    """
    names = _names(plan, payload)
    carried = _carried(plan.routes)
    files = {**_runtime_files(plan, payload, names["package"]), LOCK: payload.lock_text.encode()}
    files |= {name: path.read_bytes() for path, name in carried.items()}
    requires = _requires(plan)
    manifest = _manifest(plan, payload, names, carried, files, requires)
    files[MANIFEST] = (json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
    info = f"{names['package']}-{names['version']}.dist-info"
    members = {f"{names['package']}/{name}": data for name, data in files.items()}
    members |= {f"{info}/{name}": text.encode() for name, text in _metadata(plan, names, requires).items()}
    record = f"{info}/RECORD"
    members[record] = _record(members, record)
    data = _zip(members)
    path = folder / f"{names['package']}-{names['version']}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return Wheel(path=path, sha256=hash_bytes(data), requires=requires, **_without(names, "namespace"))


def _names(plan: ExportPlan, payload: Payload) -> dict[str, str]:
    engine, short = plan.found.adapter.engine, payload.lock_hash.removeprefix("sha256:")[:12]
    slug = re.sub(r"[^a-z0-9]+", "-", plan.lock.namespace.lower()).strip("-") or "base"
    distribution = f"day0-{engine}-{slug}"
    package = distribution.replace("-", "_")
    # A version of the lock in the name of the torch operators keeps compiled graphs of another lock apart.
    namespace = f"day0_{slug.replace('-', '_')}_{short}"
    release = re.match(r"[0-9]+(\.[0-9]+)*", __version__)
    number = f"{release.group() if release else '0'}+{short}"
    return {"distribution": distribution, "package": package, "namespace": namespace, "version": number}


def _without(names: dict[str, str], *left: str) -> dict[str, str]:
    return {key: value for key, value in names.items() if key not in left}


def _carried(routes: tuple[Route, ...]) -> dict[Path, str]:
    """Return the files of the user's own that hold implementations in use, with their names in the package."""
    paths = sorted({_file_of(route) for route in routes if _own_file(route)})
    for path in paths:
        if not path.is_file():
            raise Day0Error(str(path), "the file of an implementation is not there any more", hint="see --with")
    # Names of files need not be names of modules: they are loaded by path.
    return {path: f"with/{number}_{path.name}" for number, path in enumerate(paths)}


def _file_of(route: Route) -> Path:
    """Return the file of an implementation; its origin may end in the line."""
    return Path(re.sub(r":[0-9]+$", "", route.implementation.origin))


def _own_file(route: Route) -> bool:
    """Say whether an implementation came by --with: day0's own and packages' are installed beside the engine."""
    origin = route.implementation.origin
    return not route.entry.distribution and not origin.startswith(("kernels/", "reference_ops/"))


def _runtime_files(plan: ExportPlan, payload: Payload, package: str) -> dict[str, bytes]:
    folder = Path(str(runtime.__file__)).parent
    found = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}
    # Engines keep compiled graphs by the source of what was traced: another lock has to be another source.
    ending = f"\n# lock {payload.lock_hash}\n"
    found[f"{ENGINE}.py"] = plan.found.path.read_text(encoding="utf-8").rstrip() + "\n" + ending
    return {name: text.replace(RUNTIME, package).encode() for name, text in found.items()}


def _requires(plan: ExportPlan) -> tuple[str, ...]:
    brought = {route.entry.distribution for route in plan.routes if route.entry.distribution}
    return (f"day0=={__version__}", *sorted(brought))


def _manifest(
    plan: ExportPlan,
    payload: Payload,
    names: dict[str, str],
    carried: Mapping[Path, str],
    files: Mapping[str, bytes],
    requires: tuple[str, ...],
) -> dict[str, Any]:
    adapter = plan.found.adapter
    return {
        "schema": SCHEMA,
        **names,
        "engine": adapter.engine,
        "adapter": plan.found.name,
        "tested": adapter.tested,
        "targets_checked_in": payload.checked,
        "lock": payload.lock_hash,
        "receipts": payload.receipts,
        "dispatch_key": payload.dispatch_key,
        "models": sorted(plan.options.models),
        "requires": list(requires),
        "entries": [_entry(route, payload, carried) for route in plan.routes],
        "targets": [
            {"name": one.name, "path": one.path, "hook": one.hook, "signature_hash": signature_hash(one.signature)}
            for one in plan.targets
        ],
        "left_out": [{"identity": one.identity, "reason": one.reason} for one in plan.refusals],
        "files": {name: hash_bytes(data) for name, data in sorted(files.items())},
    }


def _entry(route: Route, payload: Payload, carried: Mapping[Path, str]) -> dict[str, Any]:
    entry = route.entry
    shapes = {shape for one in entry.signatures for shape in payload.tested_shapes.get(one, ())}
    return {
        "operator": entry.operator,
        "dtypes": list(entry.dtypes),
        "identity": str(entry.identity),
        "kind": entry.kind,
        "source_hash": entry.source_hash,
        "origin": Path(entry.origin).name if _own_file(route) else entry.origin,
        "file": carried.get(_file_of(route)),
        "targets": [target.name for target in route.targets] or ["aten"],
        "tested_shapes": sorted(shapes),
        "verified": entry.verified.report if entry.verified is not None else None,
    }


def _metadata(plan: ExportPlan, names: dict[str, str], requires: tuple[str, ...]) -> dict[str, str]:
    adapter = plan.found.adapter
    head = ["Metadata-Version: 2.1", f"Name: {names['distribution']}", f"Version: {names['version']}"]
    head += [f"Summary: Operators that day0 locked, for {adapter.engine} {adapter.tested}", "Requires-Python: >=3.11"]
    head += [f"Requires-Dist: {one}" for one in requires]
    points = "".join(
        f"[{group}]\n{names['package']} = {names['package']}.{ENGINE}:{function}\n\n"
        for group, function in adapter.entry_points
    )
    wheel = f"Wheel-Version: 1.0\nGenerator: day0 ({__version__})\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    return {"METADATA": "\n".join(head) + "\n", "WHEEL": wheel, "entry_points.txt": points}


def _record(members: Mapping[str, bytes], record: str) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for name, data in sorted(members.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.writerow((name, f"sha256={digest}", len(data)))
    rows.writerow((record, "", ""))
    return text.getvalue().encode()


def _zip(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in sorted(members.items()):
            member = zipfile.ZipInfo(name, date_time=LONG_AGO)
            member.external_attr = 0o644 << 16
            # Stored: another zlib packs the same bytes in another way.
            member.compress_type = zipfile.ZIP_STORED
            member.create_system = 3
            archive.writestr(member, data)
    return buffer.getvalue()
