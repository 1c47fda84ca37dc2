"""What lies beside the weights of a result: config, manifest, index, and the files that come along."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from day0.codec import encode
from day0.converters.config import new_config
from day0.converters.folder import MANIFEST
from day0.converters.plan import Plan
from day0.converters.summary import LINKED_FROM
from day0.converters.writer import PART
from day0.records.convert import ConvertReport

__all__ = ["index_names", "write_companions"]

INDEX = "model.safetensors.index.json"


def write_companions(plan: Plan, target: Path, report: ConvertReport, environment: dict[str, str]) -> None:
    """Write all that a checkpoint has beside its weights: the index comes last, so that what has one is complete."""
    for name in plan.folder.others:
        _bring(plan.folder.path / name, target / name)
    _write_text(target / "config.json", _pretty(new_config(plan)))
    text = encode(report, inputs={"source": report.source}, environment=environment)
    _write_text(target / MANIFEST, text)
    for name in index_names(plan):
        _write_text(target / name, _pretty(_index(plan)))


def index_names(plan: Plan) -> tuple[str, ...]:
    """Return the name of the index; none for a single file that had none."""
    return (plan.folder.index or INDEX,) if plan.folder.index is not None or len(plan.shards) > 1 else ()


def _bring(source: Path, target: Path) -> None:
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    source = source.resolve()
    if source.stat().st_size >= LINKED_FROM:
        try:
            os.link(source, target)
            return
        except OSError:
            pass  # another file system, or one without links
    part = target.with_name(target.name + PART)
    shutil.copyfile(source, part)
    part.rename(target)


def _index(plan: Plan) -> dict[str, Any]:
    places = {
        output.name: name for name, items in plan.shards.items() for item in items for output in item.outputs.values()
    }
    total = sum(output.nbytes for item in plan.items() for output in item.outputs.values())
    metadata = {**plan.folder.index_metadata, "total_size": total}
    metadata.pop("total_parameters", None)
    return {"metadata": metadata, "weight_map": dict(sorted(places.items()))}


def _pretty(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _write_text(path: Path, text: str) -> None:
    part = path.with_name(path.name + PART)
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
