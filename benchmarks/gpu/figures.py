"""The record of figures of one device, `docs/figures/<device>.json`: read, checked, and merged from several runs.

Parts are what `kernels.py --out` and `model.py --out` write, `sparse_decode.py --sweep --out`, and what the other
benchmarks print (`figure: NAME VALUE`). A later part replaces what an earlier one said of the same thing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from day0.errors import Day0Error

__all__ = ["SCHEMA", "merge", "read_figures", "read_part"]

SCHEMA, SWEEPS = "day0.figures/1", "day0.sweeps/1"
LARGEST = 16 << 20
FACTS = {"date": str, "device": str, "driver": str, "versions": dict, "ceilings": dict}
PARTS = {"operators": dict, "sweeps": list, "model": dict, "figures": dict}
CEILINGS = ("copy_gb_s", "bf16_tflops")
AGAIN = "make it anew with benchmarks/gpu/table.py --merge"
Record = dict[str, Any]


def read_figures(path: Path) -> Record:
    """Return a whole record. Raises Day0Error for a file that is none, is cut off, or lacks a fact."""
    data = _json(path, _text(path))
    for name, kind in (FACTS | PARTS).items():
        if not isinstance(data.get(name), kind):
            raise Day0Error(str(path), f"`{name}` is missing, or no {kind.__name__}", hint=AGAIN)
    for name in CEILINGS:
        if not _number(data["ceilings"].get(name)) or data["ceilings"][name] <= 0:
            raise Day0Error(str(path), f"ceilings.{name} is no positive number", hint=AGAIN)
    for name, value in data["figures"].items():
        if not _number(value):
            raise Day0Error(str(path), f"figures.{name} is {value!r}, no number", hint=AGAIN)
    return data


def read_part(path: Path) -> Record:
    """Return what one run left: its JSON, or the figures that stand in its output. Raises Day0Error for neither."""
    text = _text(path)
    if path.suffix == ".json":
        return _json(path, text)
    figures: dict[str, float] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "figure:":
            figures[words[1]] = _float(path, words[1], words[2])
    if not figures:
        raise Day0Error(str(path), "no line of it says `figure: NAME VALUE`", hint="give the output of a benchmark")
    return {"schema": SCHEMA, "figures": figures}


def merge(old: Record | None, parts: Iterable[tuple[str, Record]]) -> Record:
    """Return the record with all parts in it.

    Raises Day0Error for parts of two devices. Facts are those of the last part that has them; of ceilings the highest,
    since what was reached once can be reached.
    """
    merged: Record = dict(old) if old else {"schema": SCHEMA, **{name: kind() for name, kind in PARTS.items()}}
    for name, part in parts:
        if part["schema"] == SWEEPS:
            merged["sweeps"] = _rows(merged["sweeps"], part["rows"])
            continue
        _refuse_other_device(name, merged.get("device"), part.get("device"))
        highest = _highest(merged.get("ceilings", {}), part.get("ceilings", {}))
        installed = {one: said for one, said in part.get("versions", {}).items() if said != "none"}
        versions = {**part.get("versions", {}), **merged.get("versions", {}), **installed}
        for fact in FACTS:
            if part.get(fact):
                merged[fact] = part[fact]
        merged["versions"] = versions
        merged["ceilings"] = highest
        merged["operators"] = {**merged["operators"], **_measured(part.get("operators", {}), merged["operators"])}
        merged["model"] = {
            **merged["model"],
            **{key: one for key, one in part.get("model", {}).items() if one.get("rows")},
        }
        merged["figures"] = {**merged["figures"], **part.get("figures", {})}
    found = fractions(merged["operators"], merged["ceilings"])
    # What bounds a case may be another now, and with it the name of its figure.
    cases = {name.rpartition("_fraction_of_")[0] for name in found}
    kept = {name: one for name, one in merged["figures"].items() if name.rpartition("_fraction_of_")[0] not in cases}
    merged["figures"] = {**kept, **found}
    return merged


def fractions(operators: Mapping[str, Any], ceilings: Mapping[str, float]) -> dict[str, float]:
    """Return how near each case comes to the nearer ceiling, by the name of its figure."""
    found = {}
    for name, operator in operators.items():
        for case, one in operator.get("cases", {}).items():
            memory = one["bytes"] / ceilings["copy_gb_s"] / 1e6
            arithmetic = one["flops"] / ceilings["bf16_tflops"] / 1e9
            one["bound"] = "copy" if memory >= arithmetic else "product"
            one["fraction"] = max(memory, arithmetic) / one["ms"]
            found[f"{name}_{case}_fraction_of_{one['bound']}"] = round(one["fraction"], 4)
    return found


def _measured(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operators that a part timed; what it could not time does not replace a time."""
    found: dict[str, Any] = {}
    for name, one in new.items():
        before = old.get(name, {})
        if one.get("cases"):
            cases = {
                case: _with_peers(took, before.get("cases", {}).get(case, {})) for case, took in one["cases"].items()
            }
            found[name] = {**before, **one, "cases": {**before.get("cases", {}), **cases}}
        elif not before.get("cases"):
            found[name] = dict(one)
        elif one.get("check"):
            found[name] = {**before, "check": one["check"]}
    return found


def _with_peers(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case, with the peers of an earlier run where this one had none; their ratio is to the new time."""
    kept = {
        name: {"ms": peer["ms"], "ratio": peer["ms"] / new["ms"]} if "ms" in peer else peer
        for name, peer in old.get("peers", {}).items()
    }
    return {**new, "peers": new["peers"] if new.get("peers") else kept}


def _rows(old: list[Any], new: list[Any]) -> list[Any]:
    def key(row: Mapping[str, Any]) -> tuple[int, int, int]:
        return row["context"], row["batch"], row["topk"]

    found = {key(row): row for row in old}
    found |= {key(row): row for row in new if "ms" in row or key(row) not in found}
    return [found[one] for one in sorted(found)]


def _highest(old: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float]:
    return {name: max(old.get(name, 0.0), new.get(name, 0.0)) for name in {*old, *new}}


def _refuse_other_device(name: str, old: Any, new: Any) -> None:
    if old and new and old != new:
        what = f"it was measured on {new}, and the record is of {old}"
        raise Day0Error(name, what, hint="keep a record for each device")


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()[: LARGEST + 1]
    except OSError as error:
        raise Day0Error(str(path), f"it cannot be read: {error.strerror}", hint="give a file of figures") from None
    if len(data) > LARGEST:
        raise Day0Error(str(path), f"it is larger than {LARGEST >> 20} MiB", hint="give a file of figures")
    return data.decode("utf-8", errors="replace")


def _json(path: Path, text: str) -> Record:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Day0Error(str(path), f"it is no JSON: {str(error)[:120]}", hint="it may be cut off; " + AGAIN) from None
    if not isinstance(data, dict) or data.get("schema") not in (SCHEMA, SWEEPS):
        said = data.get("schema") if isinstance(data, dict) else None
        raise Day0Error(str(path), f"its schema is {said!r:.60}, not {SCHEMA} or {SWEEPS}", hint=AGAIN)
    if data["schema"] == SWEEPS and not isinstance(data.get("rows"), list):
        raise Day0Error(str(path), "`rows` is missing, or no list", hint=AGAIN)
    return data


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _float(path: Path, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Day0Error(str(path), f"figure {name} is {text!r:.40}, no number", hint="run the benchmark again")
    return value
