"""One pass of the model on all three places: those of the CPU are read where they are kept, and the device is run.

Shape suffixes: B batch, S positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from day0.analyzers.canary.context import CanaryContext, model_error
from day0.analyzers.canary.gates import Figure
from day0.analyzers.canary.kept import Stored
from day0.analyzers.modules.choices import Choice, Choices, Place
from day0.analyzers.modules.logits import History, choose_history
from day0.analyzers.modules.measure import new_non_finite
from day0.analyzers.modules.passes import Pass, walk
from day0.analyzers.modules.places import CPU, Logits, in_float64, in_own_dtype, on_device

__all__ = ["Told", "error_figures", "history_of", "run_told", "told", "told_history"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """Logits [B, S, V] of a pass on the CPU in float64 and in the model's own dtype, and what was chosen in it."""

    golden_BSV: torch.Tensor
    same_BSV: torch.Tensor
    choices: Mapping[Place, Choice]
    noise: Mapping[Place, Choice]


def told(context: CanaryContext, name: str, calls: Pass, inputs: object) -> Told:
    """Return a pass of the golden and the yardstick; `inputs` name its inputs, for the place where it is kept."""
    found = context.kept.find(name, inputs) if context.kept is not None else None
    if found is not None and {"golden", "same"} <= found.tensors.keys():
        return _read(found)
    golden_model, same_model = context.golden(), context.reference()
    with in_float64(golden_model) as golden:
        golden_BSV = _logits(calls, golden_model, CPU)
    with in_own_dtype(same_model, golden.made) as same:
        same_BSV = _logits(calls, same_model, CPU)
    made = Told(golden_BSV=golden_BSV, same_BSV=same_BSV, choices=golden.made, noise=same.made)
    if context.kept is not None:
        context.kept.keep(name, inputs, _written(made))
    return made


def run_told(context: CanaryContext, calls: Pass, right: Told) -> tuple[Logits, Choices]:
    """Run a pass on the device, following the golden's choices where rounding explains a difference."""
    model = context.on_device()
    with on_device(model, right.choices, right.noise) as heard:
        got_BSV = _logits(calls, model, context.device)
    return Logits(golden=right.golden_BSV, same=right.same_BSV, device=got_BSV, lost=heard.lost), heard


def error_figures(logits: Logits, heard: Choices, prefix: str = "") -> dict[str, float | Figure]:
    """Return error, yardstick and their ratio, wrong choices, and elements that are NaN or infinite on the device alone."""
    found = model_error(logits.device, logits.same, logits.golden, followed=not heard.lost)
    wrong: float | Figure = float(sum(one.wrong for one in heard.moved))
    if heard.lost:
        wrong = Figure(None, why="experts or tokens were chosen by other operators than in the golden")
    return {
        **{f"{prefix}{name}": value for name, value in found.items()},
        f"{prefix}choices_wrong": wrong,
        f"{prefix}non_finite": float(new_non_finite([logits.device], [logits.golden])),
    }


def history_of(context: CanaryContext, prompt_BS: torch.Tensor, new_tokens: int) -> History:
    """Return how the golden goes on from a prompt, greedily and by draws."""
    inputs = [prompt_BS.tolist(), new_tokens, context.seed]
    found = context.kept.find("history", inputs) if context.kept is not None else None
    if found is not None and {"ids", "logits"} <= found.tensors.keys():
        return History(
            seed=context.seed,
            ids_BS=found.tensors["ids"],
            new_tokens=new_tokens,
            draws=tuple(found.facts["draws"]),
            logits_BSV=found.tensors["logits"],
            choices=_choices(found, "golden"),
        )
    made = choose_history(context.golden(), prompt_BS, new_tokens, context.seed)
    if context.kept is not None:
        rows, facts = _parts(made.choices, "golden")
        tensors = {"ids": made.ids_BS, "logits": made.logits_BSV, **rows}
        context.kept.keep(
            "history", inputs, Stored(tensors=tensors, facts={"draws": list(made.draws), "golden": facts})
        )
    return made


def told_history(context: CanaryContext, history: History, calls: Pass) -> Told:
    """Return the pass `calls` over a history [2, S]: the golden's is the history, the yardstick's is run with its choices."""
    inputs = [history.ids_BS.tolist(), history.new_tokens]
    found = context.kept.find("followed", inputs) if context.kept is not None else None
    if found is not None and "same" in found.tensors:
        same_BSV, noise = found.tensors["same"], _choices(found, "same")
    else:
        model = context.reference()
        with in_own_dtype(model, history.choices) as same:
            same_BSV = _logits(calls, model, CPU)
        noise = same.made
        if context.kept is not None:
            rows, facts = _parts(noise, "same")
            context.kept.keep("followed", inputs, Stored(tensors={"same": same_BSV, **rows}, facts={"same": facts}))
    return Told(golden_BSV=history.logits_BSV, same_BSV=same_BSV, choices=history.choices, noise=noise)


def _logits(calls: Pass, model: torch.nn.Module, device: torch.device) -> torch.Tensor:
    return torch.cat([result.logits_BSV.detach().cpu() for _, result in walk(calls, model, device)], dim=1)


def _written(made: Told) -> Stored:
    golden_rows, golden_facts = _parts(made.choices, "golden")
    same_rows, same_facts = _parts(made.noise, "same")
    tensors = {"golden": made.golden_BSV, "same": made.same_BSV, **golden_rows, **same_rows}
    return Stored(tensors=tensors, facts={"golden": golden_facts, "same": same_facts})


def _read(found: Stored) -> Told:
    return Told(
        golden_BSV=found.tensors["golden"],
        same_BSV=found.tensors["same"],
        choices=_choices(found, "golden"),
        noise=_choices(found, "same"),
    )


def _parts(made: Mapping[Place, Choice], name: str) -> tuple[dict[str, torch.Tensor], list[Any]]:
    tensors: dict[str, torch.Tensor] = {}
    facts: list[Any] = []
    for number, (place, choice) in enumerate(made.items()):
        tensors[f"{name}.{number}.scores"], tensors[f"{name}.{number}.chosen"] = choice.scores, choice.chosen
        facts.append([place[0], place[1], choice.op, list(choice.groups)])
    return tensors, facts


def _choices(found: Stored, name: str) -> dict[Place, Choice]:
    made: dict[Place, Choice] = {}
    for number, (path, count, op, groups) in enumerate(found.facts.get(name, ())):
        made[path, count] = Choice(
            op=op,
            scores=found.tensors[f"{name}.{number}.scores"],
            chosen=found.tensors[f"{name}.{number}.chosen"],
            groups=(groups[0], groups[1]),
        )
    return made
