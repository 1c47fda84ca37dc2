"""What a conversion will do, decided before a byte is written: which weight becomes what, in which file, how exactly."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from day0.converters.architectures._architecture import Architecture
from day0.converters.architectures.load import pick_architecture
from day0.converters.find import Found, find_weights
from day0.converters.folder import Folder
from day0.converters.header import Stored
from day0.converters.layout import arranged, biases
from day0.converters.scan import scan
from day0.converters.targets._target import Target
from day0.converters.targets.load import load_targets, pick_target
from day0.converters.verdict import REPAIR, Verdict, acceptable
from day0.converters.weight import Weight
from day0.converters.writer import Output
from day0.errors import Day0Error
from day0.records.convert import ConversionParameters

__all__ = ["Item", "Plan", "make_plan", "refuse_inexact"]

Progress = Callable[[str, int, int], None]
MOST_FACTS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One thing to write: a weight in its new format, or a tensor as it is (no target)."""

    weight: Weight | None
    kept: Stored | None
    target: Target | None
    """None: the bytes are copied, under the names of the outputs."""
    outputs: Mapping[str, Output]
    transposed: bool
    verdict: Verdict

    @property
    def source_bytes(self) -> int:
        """To be read, about."""
        if self.kept is not None:
            return self.kept.nbytes
        weight = self.weight
        if weight is None:
            return 0
        stored = weight.stored_rows * max(1, _stack(weight))
        return weight.nbytes * weight.rows * len(weight.experts) // max(1, stored)


def _stack(weight: Weight) -> int:
    payload = weight.parts["payload"]
    total = 1
    for size in payload.shape[:-1]:
        total *= size
    # gpt-oss blocks have one dimension more.
    if len(payload.shape) == 4:
        total //= payload.shape[2]
    return total // max(1, weight.stored_rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All of it."""

    folder: Folder
    parameters: ConversionParameters
    architecture: Architecture
    target: Target
    shards: Mapping[str, tuple[Item, ...]]
    dropped: tuple[str, ...]
    notes: tuple[str, ...]

    def items(self) -> tuple[Item, ...]:
        """Of all shards."""
        return tuple(item for items in self.shards.values() for item in items)


def make_plan(
    folder: Folder, parameters: ConversionParameters, *, jobs: int = 1, progress: Progress = lambda *_: None
) -> Plan:
    """Decide everything; reads scales, and codes only where the scales leave a verdict open.

    Raises Day0Error for what cannot be converted at all. What is merely not exact is in the verdicts: see
    `refuse_inexact`.
    """
    target = pick_target(parameters.to)
    parameters = parameters.model_copy(update={"to": target.name})
    _check(parameters, target)
    architecture = pick_architecture(parameters.architecture, folder.config, keep_unknown=parameters.keep_unknown)
    found = find_weights(folder, architecture, parameters)
    shapes = {name: one.shape for name, one in folder.tensors.items()}
    notes = architecture.check(shapes, folder.config) if architecture.check is not None else ()
    notes += _meanings(found, architecture, folder)
    chosen, kept = _chosen(found, target, parameters, architecture)
    items = _layout(chosen, kept, target, architecture, parameters)
    _refuse_same_names(items)
    judged = _judge(items, parameters, jobs, progress)
    return Plan(
        folder=folder,
        parameters=parameters,
        architecture=architecture,
        target=target,
        shards=_by_shard(judged, folder),
        dropped=found.dropped,
        notes=notes,
    )


def _meanings(found: Found, architecture: Architecture, folder: Folder) -> tuple[str, ...]:
    """Say what names mean that mean different things in different layers."""
    if architecture.meaning is None:
        return ()
    names = [one.name for one in found.weights] + [one.name for one in found.kept]
    counts = Counter(one for name in names if (one := architecture.meaning(name, folder.config)))
    return tuple(f"{count} tensors called g_proj: {meaning}" for meaning, count in sorted(counts.items()))


def _check(parameters: ConversionParameters, target: Target) -> None:
    if parameters.transpose and not target.transposes:
        what = f"{target.name} has scales along the rows, which a transposed matrix would cut across"
        raise Day0Error("--transpose", what, hint="leave it out, or convert to fp8-128x128, fp8-tensor or bf16")
    for flag, text in (("--only", parameters.only), ("--skip", parameters.skip)):
        try:
            re.compile(text)
        except re.error as error:
            raise Day0Error(
                f"{flag} {text}", f"no regular expression: {error}", hint="quote it for the shell"
            ) from None


def _chosen(
    found: Found, target: Target, parameters: ConversionParameters, architecture: Architecture
) -> tuple[list[Weight], list[Stored]]:
    """Return what is converted; the rest is kept."""
    chosen: list[Weight] = []
    kept = list(found.kept)
    # Beside quantised weights, what is plain was left so on purpose; only --only asks for it.
    spare = any(one.format.name != "plain" for one in found.weights) and not parameters.only
    spare = spare or target.quantisation is None or target.mx_only
    for weight in found.weights:
        plain = weight.format.name == "plain"
        wanted = (not parameters.only or re.search(parameters.only, weight.name)) and not (
            parameters.skip and re.search(parameters.skip, weight.name)
        )
        # Floats to floats never: the rest of the model has the dtype that it should have.
        if wanted and not (plain and spare):
            chosen.append(weight)
        else:
            kept += weight.parts.values()
    if target.mx_only:
        for weight in chosen:
            if weight.format.mx is None:
                what = f"{weight.name} is {weight.format.name}, and {target.name} only takes four-bit MX codes"
                raise Day0Error(f"--to {target.name}", what, hint="leave it out with --skip, or use a quantiser")
    if not chosen:
        what = "there is nothing to convert: no weight of the checkpoint is in another format"
        raise Day0Error(
            f"--to {target.name}", what, hint="see `day0 convert formats`; --only and --skip narrow the choice"
        )
    return chosen, kept


def _layout(
    chosen: list[Weight],
    kept: list[Stored],
    target: Target,
    architecture: Architecture,
    parameters: ConversionParameters,
) -> list[Item]:
    left = {one.name: one for one in kept}
    items: list[Item] = []
    for weight in chosen:
        parts = list(arranged(weight, architecture, parameters))
        items += [_item(one, target, architecture, parameters) for one in parts]
        bias = left.get(weight.name + "_bias")
        if bias is not None and parts != [weight]:
            del left[bias.name]
            items += [_raw(one, bias) for one in biases(bias, weight, parts)]
    items += [_kept(one) for one in left.values()]
    return items


def _item(weight: Weight, target: Target, architecture: Architecture, parameters: ConversionParameters) -> Item:
    transposed = weight.stacked and target.transposes
    if parameters.transpose is None:
        # Plain experts of this family have rows and columns the other way round than its four-bit ones.
        transposed = transposed and architecture.transposed and weight.format.mx is not None
    else:
        transposed = transposed and parameters.transpose
    outputs = target.outputs(weight, parameters)
    if transposed:
        outputs = {role: _turned(one) for role, one in outputs.items()}
    return Item(weight=weight, kept=None, target=target, outputs=outputs, transposed=transposed, verdict=Verdict())


def _turned(output: Output) -> Output:
    return replace(output, shape=(*output.shape[:-2], output.shape[-1], output.shape[-2]))


def _raw(weight: Weight, stored: Stored) -> Item:
    shape = (len(weight.experts), weight.rows) if weight.stacked else (weight.rows,)
    output = Output(name=weight.name, dtype=stored.dtype, shape=shape)
    return Item(weight=weight, kept=None, target=None, outputs={"payload": output}, transposed=False, verdict=Verdict())


def _kept(stored: Stored) -> Item:
    output = Output(name=stored.name, dtype=stored.dtype, shape=stored.shape)
    return Item(weight=None, kept=stored, target=None, outputs={"payload": output}, transposed=False, verdict=Verdict())


def _refuse_same_names(items: list[Item]) -> None:
    seen: set[str] = set()
    for item in items:
        for output in item.outputs.values():
            if output.name in seen:
                what = f"two tensors would be called {output.name}"
                raise Day0Error(output.name, what, hint="keep one of them out of the checkpoint, or use --skip")
            seen.add(output.name)


def _judge(items: list[Item], parameters: ConversionParameters, jobs: int, progress: Progress) -> list[Item]:
    total = sum(1 for one in items if one.target is not None)
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        judged = []
        for number, item in enumerate(pool.map(lambda one: _finest(one, parameters), items)):
            judged.append(item)
            if item.target is not None:
                progress("reading scales", min(number + 1, total), total)
    return judged


def _finest(item: Item, parameters: ConversionParameters) -> Item:
    """Return the item with its verdict, in the first target of those allowed that keeps it exact."""
    if item.target is None or item.weight is None:
        return item
    first = replace(item, verdict=scan(item.weight, item.target, parameters))
    strict = parameters.model_copy(update={"allow_bounded": False})
    if not parameters.finer or acceptable(first.verdict, strict) or first.verdict.refusal:
        return first
    for name in item.target.finer:
        target = load_targets()[name]
        verdict = scan(item.weight, target, parameters)
        if acceptable(verdict, strict):
            outputs = target.outputs(item.weight, parameters)
            if item.transposed and not target.transposes:
                break
            if item.transposed:
                outputs = {role: _turned(one) for role, one in outputs.items()}
            return replace(item, target=target, outputs=outputs, verdict=verdict)
    return first


def _by_shard(items: list[Item], folder: Folder) -> dict[str, tuple[Item, ...]]:
    shards: dict[str, list[Item]] = {name: [] for name in folder.shards}
    for item in items:
        stored = item.kept or (item.weight.parts["payload"] if item.weight else None)
        if stored is not None:
            shards[Path(stored.file).name].append(item)
    return {name: tuple(found) for name, found in shards.items() if found}


def refuse_inexact(plan: Plan) -> None:
    """Raise Day0Error where a verdict is worse than the parameters allow, with the weights by name."""
    bad = [one for one in plan.items() if one.target is not None and not acceptable(one.verdict, plan.parameters)]
    if not bad:
        return
    refused = [one for one in bad if one.verdict.refusal]
    shown = refused or bad
    facts = [_fact(one) for one in shown[:MOST_FACTS]]
    if len(shown) > MOST_FACTS:
        facts.append(f"and {len(shown) - MOST_FACTS} more")
    what = f"{len(shown)} of {sum(1 for one in plan.items() if one.target)} weights cannot be converted exactly"
    hint = REPAIR
    if not refused:
        finer = " --finer (smaller blocks where needed) or" if plan.target.finer else ""
        hint = f"add{finer} --allow-bounded; --dry-run shows every weight"
    raise Day0Error(str(plan.folder.path), what, facts=tuple(facts), hint=hint)


def _fact(item: Item) -> str:
    weight, verdict = item.weight, item.verdict
    if weight is None:
        return ""
    if verdict.refusal:
        return f"{weight.name}: {verdict.refusal}"
    if verdict.exactness == "exact_with_subnormals":
        count = "some" if verdict.subnormal is None else f"{verdict.subnormal:,}"
        return f"{weight.name}: {count} of {weight.values:,} values would be subnormal"
    count = "values" if verdict.changed is None else f"{verdict.changed:,} of {weight.values:,} values"
    return f"{weight.name}: {count} would change by up to {verdict.bound}"
