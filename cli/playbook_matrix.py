"""From playbooks to the runs they ask for: variables, the matrix, and a name for each run."""

from __future__ import annotations

import fnmatch
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from day0.cli.playbook_include import put_together
from day0.cli.playbook_vars import Variables, names_in, refuse_bad_name, substituted
from day0.errors import Day0Error, near_names
from day0.playbook import Playbook, PlaybookHead
from day0.yamlfile import KeyPath, YamlDocument, validate_yaml

__all__ = ["PlannedRun", "pick", "read_playbook"]

MAX_RUNS = 256
_HEAD = ("include", "vars", "matrix")
_NEVER = ("schema", "name", "exclude")
_FIELDS = tuple(field.alias or name for name, field in Playbook.model_fields.items())


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """One run that a playbook asks for."""

    plan: Playbook
    playbook: Path
    chosen: Mapping[str, Any]
    """What this run has of each axis of the matrix; empty without one."""

    @property
    def name(self) -> str:
        """The name of the run, and of its folder."""
        return self.plan.name


def read_playbook(path: Path, variables: Mapping[str, Any] | None = None) -> tuple[PlannedRun, ...]:
    """Read a playbook and return its runs: one, or one for each combination of its matrix, the first axis slowest.

    `variables` are given from outside and go before those in the file; one that is an axis takes the axis' place.
    Raises Day0Error with file and line for everything that is wrong with it.
    """
    document = put_together(path)
    head = _head(document)
    values = {**head.vars, **_known(variables or {}, head)}
    for name in head.vars:
        refuse_bad_name(name, document.place_of(("vars", name)))
    axes = _axes(document, head, variables or {})
    chosen = _combinations(document, head, axes, values)
    runs = tuple(_planned(document, one, values, head) for one in chosen)
    return _with_names(document, runs, axes)


def pick(runs: Sequence[PlannedRun], only: Sequence[str]) -> tuple[PlannedRun, ...]:
    """Return the runs that `--only` names, exactly or by a pattern such as `*-sim`. Raises Day0Error if one names none."""
    names = tuple(run.name for run in runs)
    for asked in only:
        if not any(fnmatch.fnmatchcase(name, asked) for name in names):
            hint = near_names(asked, names) or f"runs are: {', '.join(names[:20])}"
            raise Day0Error(f"--only {asked}", "there is no run of this name", hint=hint)
    return tuple(run for run in runs if not only or any(fnmatch.fnmatchcase(run.name, asked) for asked in only))


def _head(document: YamlDocument) -> PlaybookHead:
    assert isinstance(document.data, dict)  # noqa: S101 - looked at when it was read
    data = {key: document.data[key] for key in _HEAD if key in document.data}
    return validate_yaml(PlaybookHead, replace(document, data=data))


def _known(variables: Mapping[str, Any], head: PlaybookHead) -> Mapping[str, Any]:
    known = tuple(dict.fromkeys((*head.vars, *(axis for axis in head.matrix if axis != "exclude"))))
    for name in variables:
        if name not in known:
            hint = near_names(name, known) or f"variables are: {', '.join(known) or 'none'}"
            raise Day0Error(f"--var {name}", "the playbook has no such variable", hint=hint)
    return variables


def _axes(document: YamlDocument, head: PlaybookHead, given: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the axes with their values. Raises Day0Error for one that nothing would come of."""
    axes = {name: values for name, values in head.matrix.items() if name != "exclude"}
    rest = {key: value for key, value in _mapping(document).items() if key != "matrix"}
    used = names_in(rest) | names_in([list(values) for values in axes.values()])
    for name, values in axes.items():
        place = document.place_of(("matrix", name))
        if not values:
            raise Day0Error(place, f"the axis '{name}' has no values", hint="give it some, or remove it")
        if name in _NEVER:
            raise Day0Error(place, f"'{name}' cannot be an axis", hint="name: toy-${device} names the runs")
        if name not in head.vars and name.partition(".")[0] not in _FIELDS and name not in used:
            known = (*_FIELDS, *head.vars)
            what = f"the axis '{name}' is neither a field nor a variable that is used"
            raise Day0Error(place, what, hint=near_names(name, known) or f"use it: ${{{name}}}")
    if math.prod(map(len, axes.values())) > MAX_RUNS:
        raise Day0Error(document.place_of(("matrix",)), f"the matrix has more than {MAX_RUNS} runs", hint="split it")
    return {name: (given[name],) if name in given else values for name, values in axes.items()}


def _combinations(
    document: YamlDocument, head: PlaybookHead, axes: Mapping[str, tuple[Any, ...]], values: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return what each run has of each axis, without what is excluded."""
    variables = Variables(raw={name: one for name, one in values.items() if name not in axes}, document=document)
    filled = [
        [variables.fill(one, ("matrix", name, number)) for number, one in enumerate(axis)]
        for name, axis in axes.items()
    ]
    found = [dict(zip(axes, one, strict=True)) for one in itertools.product(*filled)]
    for number, rule in enumerate(head.matrix.get("exclude", ())):
        place = document.place_of(("matrix", "exclude", number))
        if not isinstance(rule, dict) or not rule:
            raise Day0Error(place, f"an entry of exclude is a mapping of axes, got {rule!r}", hint="- {device: cuda}")
        for name in rule:
            if name not in axes:
                raise Day0Error(
                    place, f"'{name}' is not an axis", hint=near_names(name, tuple(axes)) or ", ".join(axes)
                )
        wanted = variables.fill(rule, ("matrix", "exclude", number))
        left = [one for one in found if any(one[name] != value for name, value in wanted.items())]
        if len(left) == len(found):
            raise Day0Error(place, f"no run is excluded by {wanted!r}", hint="values have to be as under matrix")
        found = left
    if not found:
        raise Day0Error(document.place_of(("matrix", "exclude")), "every run is excluded", hint="exclude fewer")
    return found


def _planned(
    document: YamlDocument, chosen: dict[str, Any], values: Mapping[str, Any], head: PlaybookHead
) -> PlannedRun:
    data = substituted(document, {**values, **chosen}, leave=_HEAD)
    lines, files = dict(document.lines), dict(document.files)
    for axis, value in chosen.items():
        if axis not in head.vars and axis.partition(".")[0] in _FIELDS:
            key = _set(data, axis, value, document.place_of(("matrix", axis)))
            origin: KeyPath = ("matrix", axis)
            lines[key], files[key] = document.lines[origin], document.files.get(origin, document.path)
    plan = validate_yaml(Playbook, replace(document, data=data, lines=lines, files=files))
    return PlannedRun(plan=plan, playbook=document.path, chosen=chosen)


def _set(data: dict[str, Any], axis: str, value: Any, where: str) -> KeyPath:
    """Set a field by its dotted name and return its key."""
    key = tuple(axis.split("."))
    inside = data
    for part in key[:-1]:
        inside = inside.setdefault(part, {})
        if not isinstance(inside, dict):
            raise Day0Error(where, f"'{axis}' is not a field: '{part}' holds a value", hint="write that field out")
    inside[key[-1]] = value
    return key


def _with_names(
    document: YamlDocument, runs: tuple[PlannedRun, ...], axes: Mapping[str, tuple[Any, ...]]
) -> tuple[PlannedRun, ...]:
    """Name runs as the playbook says where its name has an axis in it, else by what they have of each axis."""
    if not axes:
        return runs
    if not names_in(_mapping(document).get("name")) & set(axes):
        runs = tuple(_renamed(run, axes) for run in runs)
    seen: dict[str, PlannedRun] = {}
    for run in runs:
        if run.name in seen:
            facts = (f"one has {dict(seen[run.name].chosen)}", f"the other has {dict(run.chosen)}")
            hint = "give the playbook a name with the axes in it: name: toy-${device}"
            raise Day0Error(document.place_of(("name",)), f"two runs are called '{run.name}'", facts=facts, hint=hint)
        seen[run.name] = run
    return runs


def _renamed(run: PlannedRun, axes: Mapping[str, tuple[Any, ...]]) -> PlannedRun:
    parts = [run.plan.name, *(_word(run.chosen[axis], number) for number, axis in enumerate(axes))]
    return replace(run, plan=run.plan.model_copy(update={"name": "-".join(parts)}))


def _word(value: Any, number: int) -> str:
    """Return a word for a value of an axis that can stand in the name of a folder."""
    if isinstance(value, dict):
        value = value.get("name", next(iter(value.values()), number))
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return re.sub(r"[^A-Za-z0-9._]+", "_", text.removesuffix(".yaml"))[-60:].strip("._") or f"v{number}"


def _mapping(document: YamlDocument) -> dict[str, Any]:
    assert isinstance(document.data, dict)  # noqa: S101 - looked at when it was read
    return document.data
