"""The model as a whole, on the CPU in float64 and in its own dtype: run once, by rank 0, and read by every rank."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from day0.analyzers.modules.choices import Choice, Place
from day0.analyzers.modules.passes import Pass
from day0.analyzers.modules.places import CPU, in_float64, in_own_dtype
from day0.analyzers.modules.record import Key, Recording, record_pass
from day0.models.driver import greedy
from day0.models.spec import ModelSpec
from day0.registry.dispatch import suspended

__all__ = ["Reference", "make_reference", "read_reference", "write_reference"]

Results = dict[Key, list[torch.Tensor]]
_FILE = "reference.safetensors"
_INDEX = "reference.json"
_BETWEEN = "|"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """Results of every module, in the order in which calls ended, and what was chosen."""

    golden: Results
    same: Results
    golden_choices: dict[Place, Choice]
    same_choices: dict[Place, Choice]
    classes: dict[Key, str] = field(default_factory=dict)
    tokens_BN: torch.Tensor
    """Greedy tokens of the model in its own dtype."""
    token_logits_BNV: torch.Tensor


def make_reference(spec: ModelSpec, calls: Pass, prompt_BS: torch.Tensor, new_tokens: int) -> Reference:
    """Build the model twice on the CPU and run one pass and a greedy generation."""
    with suspended():
        wide = spec.build_own("cpu").double().eval()
    with in_float64(wide) as heard:
        golden = record_pass(calls, wide, CPU)
    del wide
    with suspended():
        narrow: nn.Module = spec.build_own("cpu").eval()
    with in_own_dtype(narrow, heard.made) as same_heard:
        same = record_pass(calls, narrow, CPU)
    with suspended():
        tokens_BN, logits_BNV = greedy(narrow, prompt_BS, new_tokens)
    return Reference(
        golden=_results(golden),
        same=_results(same),
        golden_choices=dict(heard.made),
        same_choices=dict(same_heard.made),
        classes={key: call.class_name for key, call in golden.calls.items()},
        tokens_BN=tokens_BN,
        token_logits_BNV=logits_BNV,
    )


def _results(recording: Recording) -> Results:
    return {key: call.results for key, call in recording.calls.items()}


# ------------------------------------------------------------------------------------- between processes


def write_reference(reference: Reference, folder: Path) -> None:
    """Write the reference for the other ranks; the index comes last, and says that all is there."""
    tensors = {"tokens": reference.tokens_BN, "token_logits": reference.token_logits_BNV}
    for side, results in (("g", reference.golden), ("s", reference.same)):
        for key, found in results.items():
            tensors |= {_BETWEEN.join((side, *map(str, key), str(n))): one for n, one in enumerate(found)}
    choices: dict[str, Any] = {}
    for side, made in (("gc", reference.golden_choices), ("sc", reference.same_choices)):
        for place, choice in made.items():
            name = _BETWEEN.join((side, place[0], str(place[1])))
            choices[name] = {"op": choice.op, "groups": choice.groups}
            tensors |= {f"{name}{_BETWEEN}scores": choice.scores, f"{name}{_BETWEEN}chosen": choice.chosen}
    save_file({name: one.detach().clone().contiguous() for name, one in tensors.items()}, folder / _FILE)
    keys = [[*key, len(found), len(reference.same.get(key, ()))] for key, found in reference.golden.items()]
    index = {"keys": keys, "classes": list(reference.classes.values()), "choices": choices}
    whole = folder / f"{_INDEX}.part"
    whole.write_text(json.dumps(index), encoding="utf-8")
    whole.replace(folder / _INDEX)


def read_reference(folder: Path) -> Reference:
    """Wait until rank 0 has written the reference, and read it. Whoever watches the ranks ends a wait without end."""
    while not (folder / _INDEX).exists():
        time.sleep(0.02)
    index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
    with safe_open(folder / _FILE, framework="pt") as file:
        golden, same = _read_results(file, index, "g", 3), _read_results(file, index, "s", 4)
        return Reference(
            golden=golden,
            same=same,
            golden_choices=_read_choices(file, index, "gc"),
            same_choices=_read_choices(file, index, "sc"),
            classes={_key(row): name for row, name in zip(index["keys"], index["classes"], strict=True)},
            tokens_BN=file.get_tensor("tokens"),
            token_logits_BNV=file.get_tensor("token_logits"),
        )


def _key(row: list[Any]) -> Key:
    return (row[0], row[1], row[2])


def _read_results(file: Any, index: Mapping[str, Any], side: str, count: int) -> Results:
    found: Results = {}
    for row in index["keys"]:
        key = _key(row)
        names = (_BETWEEN.join((side, *map(str, key), str(number))) for number in range(row[count]))
        found[key] = [file.get_tensor(name) for name in names]
    return found


def _read_choices(file: Any, index: Mapping[str, Any], side: str) -> dict[Place, Choice]:
    found: dict[Place, Choice] = {}
    for name, facts in index["choices"].items():
        kind, path, number = name.split(_BETWEEN)
        if kind == side:
            found[path, int(number)] = Choice(
                op=facts["op"],
                scores=file.get_tensor(f"{name}{_BETWEEN}scores"),
                chosen=file.get_tensor(f"{name}{_BETWEEN}chosen"),
                groups=(facts["groups"][0], facts["groups"][1]),
            )
    return found
