"""Module by module: one pass on three places, each module alone, and who was the first to go wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from day0.analyzers.modules.fresh import Skipped, fresh
from day0.analyzers.modules.measure import Measure, measure, new_non_finite
from day0.analyzers.modules.passes import Pass
from day0.analyzers.modules.places import Models, Three, run_three
from day0.analyzers.modules.record import ModuleCall
from day0.models.spec import decoder_layers
from day0.records.modules import ModuleError, ModuleResult, NonFinite

__all__ = ["Compared", "compare_modules", "contained"]

INPUT_BYTES = 1 << 30
"""Golden inputs that are kept in memory for modules to be called alone with."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """One pass, module by module."""

    modules: tuple[ModuleResult, ...]
    first_divergent: str
    reason: str
    non_finite: NonFinite | None
    choices: int
    moved: int
    wrong: int
    lost: bool


def compare_modules(models: Models, calls: Pass, dtype: torch.dtype, progress: Progress = lambda *_: None) -> Compared:
    """Run a pass on the golden, the yardstick and the device, then every module alone.

    `dtype` is the model's. Modules that hold several decoder layers are judged by what has built up only: alone they
    are the pass itself.
    """
    three = run_three(models, calls, keep_inputs=INPUT_BYTES)
    whole = _whole(models.golden)
    results = []
    for number, (key, right) in enumerate(three.golden.calls.items()):
        progress(f"module {key[1] or 'model'}", number, len(three.golden.calls))
        cumulative = _cumulative(three, right)
        same = three.same.calls.get(key)
        alone: Measure | Skipped
        if key[1] in whole:
            alone = Skipped("it holds several layers: see what has built up")
        else:
            alone = fresh(models, right, same.dtypes if same is not None else [], dtype)
        right.inputs = None  # not needed again, and the largest thing here
        results.append(_result(right, alone, cumulative))
    return _summed_up(three, contained(results, whole))


def contained(results: Sequence[ModuleResult], whole: frozenset[str]) -> tuple[ModuleResult, ...]:
    """Leave aside what has built up inside of a module whose own results are right.

    Experts sort their tokens, and a sort may order the tokens of one expert as it likes: rows inside then stand in
    another order, and the module puts them back. Modules of `whole`, which hold several layers, excuse nothing: their
    limits are wider than those of one layer. Results stand in the order in which calls ended, the outer ones later.
    """
    found: list[ModuleResult] = []
    right: dict[tuple[str, str], bool] = {}
    for one in reversed(results):
        outer = next((path for path in _above(one.module) if (one.phase, path) in right and path not in whole), None)
        is_right = one.cumulative.status == "pass"
        if outer is not None and one.cumulative.status == "fail" and right[one.phase, outer]:
            is_right = True
            reason = f"the results of {outer or 'the model'} are right: inside, rows may stand in another order"
            aside = one.cumulative.model_copy(update={"status": "not_comparable", "reason": reason})
            one = one.model_copy(update={"cumulative": aside})
        right[one.phase, one.module] = is_right
        found.append(one)
    return tuple(reversed(found))


def _above(path: str) -> list[str]:
    """Return the paths of the modules that a module lies in, the nearest first."""
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(len(parts) - 1, -1, -1)] if path else []


def _cumulative(three: Three, right: ModuleCall) -> Measure:
    same, got = three.same.calls.get(right.key), three.device.calls.get(right.key)
    if same is None:
        return Measure(status="not_comparable", rule="path", reason="in its own dtype the CPU does not call it")
    if got is None:
        return Measure(status="not_comparable", rule="path", reason="the device does not call it")
    return measure(got.results, same.results, right.results, lost=three.choices.lost)


def _whole(model: nn.Module) -> frozenset[str]:
    """Return the paths of modules that hold several decoder layers."""
    layers = list(decoder_layers(model))
    if len(layers) < 2:
        return frozenset({""})
    parts = layers[0].split(".")[:-1]
    return frozenset(".".join(parts[:count]) for count in range(len(parts) + 1))


def _result(call: ModuleCall, alone: Measure | Skipped, cumulative: Measure) -> ModuleResult:
    phase, path, number = call.key
    own = ModuleError(status="skipped", reason=str(alone)) if isinstance(alone, Skipped) else _error(alone)
    return ModuleResult(
        phase=phase, module=path, class_name=call.class_name, call=number, fresh=own, cumulative=_error(cumulative)
    )


def _error(found: Measure) -> ModuleError:
    return ModuleError(
        status=found.status,
        rule=found.rule,
        reason=found.reason,
        error=found.error,
        yardstick=found.yardstick,
        limit=found.limit,
    )


def _summed_up(three: Three, modules: tuple[ModuleResult, ...]) -> Compared:
    first = next((one for one in modules if one.fresh.status == "fail"), None)
    grown = next((one for one in modules if one.cumulative.status == "fail"), None)
    wrong = sum(one.wrong for one in three.choices.moved)
    name = reason = ""
    if first is not None:
        name, reason = _name(first), first.fresh.reason
    elif grown is not None:
        name, reason = _name(grown), f"no module alone is wrong, but what has built up: {grown.cumulative.reason}"
    elif wrong and not three.choices.lost:
        reason = f"{wrong} rows of experts or tokens were chosen otherwise than rounding explains"
    return Compared(
        modules=modules,
        first_divergent=name,
        reason=reason,
        non_finite=_first_non_finite(three),
        choices=sum(one.chosen[..., 0].numel() for one in three.choices.made.values()),
        moved=sum(one.explained for one in three.choices.moved),
        wrong=wrong,
        lost=three.choices.lost,
    )


def _name(one: ModuleResult) -> str:
    again = f", call {one.call + 1}" if one.call else ""
    return f"{one.module or '(model)'} ({one.class_name}) in {one.phase}{again}"


def _first_non_finite(three: Three) -> NonFinite | None:
    """Return the first module on the device whose inputs are as finite as the golden's, and whose results are not."""
    for key, got in three.device.calls.items():
        right = three.golden.calls.get(key)
        if right is None or any(_more_holes(got.input_holes, right.input_holes)):
            continue
        count = new_non_finite(got.results, right.results)
        if count:
            also = key in three.same.calls and bool(new_non_finite(three.same.calls[key].results, right.results))
            return NonFinite(phase=key[0], module=key[1], class_name=got.class_name, elements=count, also_on_cpu=also)
    return None


def _more_holes(got: Iterable[int], golden: Iterable[int]) -> list[bool]:
    return [mine > theirs for mine, theirs in zip(got, golden, strict=False)]
