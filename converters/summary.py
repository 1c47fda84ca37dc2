"""What a plan will do, or did, as a record."""

from __future__ import annotations

from day0.converters.config import finer_targets, left_quantised
from day0.converters.plan import Item, Plan
from day0.converters.shard import METADATA
from day0.converters.writer import planned_size
from day0.records.convert import ConvertedFile, ConvertedWeight, ConvertReport

__all__ = ["LINKED_FROM", "report_of", "size_of"]

LINKED_FROM = 16 << 20
"""Smaller files are copied: who edits a tokenizer of the result does not mean the source's."""


def size_of(items: tuple[Item, ...]) -> int:
    """Return the bytes of the file that holds these items."""
    return planned_size([output for item in items for output in item.outputs.values()], METADATA)


def report_of(plan: Plan, *, done: bool) -> ConvertReport:
    """Return what a plan will do, or did."""
    files = [ConvertedFile(name=name, bytes=size_of(items), kind="weights") for name, items in plan.shards.items()]
    for name in plan.folder.others:
        size = (plan.folder.path / name).stat().st_size
        files.append(ConvertedFile(name=name, bytes=size, kind="linked" if size >= LINKED_FROM else "copied"))
    items = plan.items()
    notes = [*plan.notes, *_ragged(items)]
    notes += [
        f"{count} weights became {name}, because --finer is exact there"
        for name, count in sorted(finer_targets(plan).items())
    ]
    if plan.target.quantisation is not None and (count := left_quantised(plan)):
        notes.append(f"{count} tensors stay in the narrow format they had, which config.json no longer describes")
    return ConvertReport(
        source=plan.folder.fingerprint(),
        parameters=plan.parameters,
        architecture=plan.architecture.name,
        done=done,
        weights=tuple(_row(item) for item in items if item.target is not None and item.weight is not None),
        kept=tuple(sorted(item.kept.name for item in items if item.kept is not None)),
        dropped=plan.dropped,
        left=plan.folder.left,
        files=tuple(files),
        source_bytes=sum(one.size for one in plan.folder.shards.values()),
        bytes=sum(one.bytes for one in files if one.kind == "weights"),
        notes=tuple(notes),
    )


def _ragged(items: tuple[Item, ...]) -> list[str]:
    """Say where a loader that takes the block from the ratio of the shapes would take a wrong one."""
    found = [
        item.weight.name
        for item in items
        if item.weight is not None and item.target is not None and item.target.name in ("fp8-128x128", "fp8-1x128")
        if item.weight.columns % 128 or (item.target.name == "fp8-128x128" and item.weight.rows % 128)
    ]
    if not found:
        return []
    note = (
        f"{len(found)} weights have sizes that 128 does not divide, such as {found[0]}: the last block is smaller, as "
        "in DeepSeek's checkpoints; transformers 5.24 takes the block from the ratio of the shapes and reads them wrongly"
    )
    return [note]


def _row(item: Item) -> ConvertedWeight:
    weight, verdict = item.weight, item.verdict
    if weight is None or item.target is None:
        raise TypeError("not a weight")
    return ConvertedWeight(
        name=weight.name,
        shape=item.outputs["weight"].shape if item.transposed else weight.shape,
        source=weight.format.name,
        target=item.target.name,
        exactness=verdict.exactness,
        changed=verdict.changed,
        bound=verdict.bound,
        subnormal=verdict.subnormal,
        nan=verdict.nan,
        why=verdict.refusal,
        source_bytes=item.source_bytes,
        bytes=sum(one.nbytes for one in item.outputs.values()),
    )
