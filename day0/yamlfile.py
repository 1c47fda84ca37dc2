"""Read a YAML file that may be hostile or half-written, and check it against a record with line numbers."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from day0.errors import Day0Error, near_names
from day0.textfile import read_text

__all__ = ["MAX_YAML_BYTES", "KeyPath", "YamlDocument", "read_yaml", "validate_yaml"]

MAX_YAML_BYTES = 1 << 20
MAX_YAML_NODES = 100_000

KeyPath = tuple[str | int, ...]
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, kw_only=True, slots=True)
class YamlDocument:
    """Plain data and, for every key and item in it, the line it stands on (from 1)."""

    path: Path
    data: object
    lines: dict[KeyPath, int]
    text: str
    files: dict[KeyPath, Path] = field(default_factory=dict)
    """Which file a key comes from, where that is another one than `path`: documents may be put together."""

    def line_of(self, key: KeyPath) -> int:
        """Return the line of a key, or of the nearest key around it."""
        return self.lines.get(self._known(key), 1)

    def place_of(self, key: KeyPath) -> str:
        """Return `file:line` of a key, or of the nearest key around it."""
        known = self._known(key)
        return f"{self.files.get(known, self.path)}:{self.lines.get(known, 1)}"

    def _known(self, key: KeyPath) -> KeyPath:
        while key and key not in self.lines:
            key = key[:-1]
        return key


def read_yaml(path: Path) -> YamlDocument:
    """Read one YAML document by the safe loader.

    Raises Day0Error: no such file, too large, not UTF-8, malformed (with the line), a key twice, aliases.
    """
    text = read_text(path, most=MAX_YAML_BYTES, kind="a YAML file", hint="save the file as plain UTF-8 text")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise Day0Error(
            f"{path}{line}", f"malformed YAML: {error.problem or error.context}", hint="correct that line and run again"
        ) from None
    except yaml.YAMLError as error:
        raise Day0Error(str(path), f"malformed YAML: {error}", hint="save the file as plain UTF-8 text") from None
    except RecursionError:
        raise Day0Error(str(path), "the document is nested too deep", hint="is it YAML at all?") from None
    if node is None:
        raise Day0Error(str(path), "the file is empty", hint="see playbooks/ and devices/profiles/ for examples")
    lines = dict(_lines(node, (), path, set()))
    data: object = _construct(node, path)
    return YamlDocument(path=path, data=data, lines=lines, text=text)


def validate_yaml(model: type[M], document: YamlDocument) -> M:
    """Check a document against a pydantic model.

    Raises Day0Error naming file, line, field, what was expected and the value found; all faults are listed.
    """
    try:
        return model.model_validate(document.data, strict=False)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        first = faults[0]
        where = _place(document, first["loc"])
        facts = tuple(f"{_place(document, fault['loc'])}: {_problem(fault)}" for fault in faults[1:6])
        unknown = tuple(
            str(one["loc"][-1]) for one in faults if one["type"] == "extra_forbidden" and _beside(one, first)
        )
        hint = _hint(model, first, unknown) or "correct the field and run again"
        raise Day0Error(where, _problem(first), facts=facts, hint=hint) from None


def _construct(node: yaml.Node, path: Path) -> object:
    try:
        data: object = yaml.SafeLoader("").construct_document(node)  # not safe_load: it would read the text again
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise Day0Error(f"{path}{line}", f"malformed YAML: {error.problem}", hint="use plain values, no tags") from None
    except (ValueError, AttributeError, TypeError) as error:  # an impossible date such as 2026-99-99, or `0x`
        raise Day0Error(str(path), f"malformed YAML: {error}", hint="put the value in quotes") from None
    return data


def _lines(node: yaml.Node, key: KeyPath, path: Path, seen: set[int]) -> Iterator[tuple[KeyPath, int]]:
    line = node.start_mark.line + 1
    if id(node) in seen:
        raise Day0Error(f"{path}:{line}", "an alias (*name) is used", hint="write the value out; aliases can explode")
    if len(seen) > MAX_YAML_NODES or len(key) > 50:
        raise Day0Error(f"{path}:{line}", "the document is too large or too deep", hint="split the file")
    seen.add(id(node))
    yield key, line
    if isinstance(node, yaml.MappingNode):
        yield from _mapping_lines(node, key, path, seen)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _lines(item, (*key, index), path, seen)


def _mapping_lines(node: yaml.MappingNode, key: KeyPath, path: Path, seen: set[int]) -> Iterator[tuple[KeyPath, int]]:
    names: set[Hashable] = set()
    for name_node, value in node.value:
        name = name_node.value
        line = name_node.start_mark.line + 1
        if not isinstance(name, str):
            raise Day0Error(f"{path}:{line}", "a key is not plain text", hint="write `key: value`")
        if name in names:
            raise Day0Error(f"{path}:{line}", f"the key '{name}' stands twice", hint="remove one of them")
        names.add(name)
        yield from _lines(value, (*key, name), path, seen)
        yield (*key, name), line  # of the key: its value may begin on the next line


def _place(document: YamlDocument, loc: tuple[int | str, ...]) -> str:
    dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
    return document.place_of(tuple(loc)) + (f": {dotted}" if dotted else "")


def _problem(fault: object) -> str:
    assert isinstance(fault, dict)  # noqa: S101 - pydantic's own type
    kind, message, value = fault["type"], fault["msg"], fault.get("input")
    if kind == "extra_forbidden":
        return f"there is no such field '{fault['loc'][-1]}'"
    if kind == "missing":
        return "this field is missing"
    message = message.removeprefix("Value error, ")
    if not fault["loc"]:
        return str(message)
    return f"{message[0].lower()}{message[1:]}, got {_short(value)}"


def _short(value: object) -> str:
    text = f"the {type(value).__name__} {value!r}"
    return text if len(text) < 80 else text[:77] + "..."


def _beside(one: object, other: object) -> bool:
    """Say whether two faults are about fields of the same thing."""
    assert isinstance(one, dict)  # noqa: S101 - pydantic's own type
    assert isinstance(other, dict)  # noqa: S101 - pydantic's own type
    return bool(one["loc"][:-1] == other["loc"][:-1])


def _hint(model: type[BaseModel], fault: object, unknown: tuple[str, ...]) -> str:
    """Say which fields there are; a field that is missing may stand there misspelt, among the `unknown`."""
    assert isinstance(fault, dict)  # noqa: S101 - pydantic's own type
    if fault["type"] not in ("extra_forbidden", "missing"):
        return ""
    owner = _model_at(model, tuple(fault["loc"][:-1]))
    if owner is None:
        return ""
    fields = tuple(field.alias or name for name, field in owner.model_fields.items())
    name = str(fault["loc"][-1])
    if fault["type"] == "missing":
        misspelt = next((one for one in unknown if near_names(name, (one,))), "")
        return f"'{misspelt}': did you mean {name}?" if misspelt else f"fields are: {', '.join(fields)}"
    near = near_names(name, fields)
    return near or f"fields are: {', '.join(fields)}"


def _model_at(model: type[BaseModel], loc: KeyPath) -> type[BaseModel] | None:
    """Return the model that a place in a document belongs to, or None where that is not plain from the types."""
    inside: type[BaseModel] = model
    parts = list(loc)
    while parts:
        fields = {field.alias or name: field.annotation for name, field in inside.model_fields.items()}
        annotation = fields.get(str(parts.pop(0)))
        item = _item_of(annotation)
        if item is None:
            return None
        if get_origin(annotation) in (dict, list, tuple) and parts:
            parts.pop(0)  # the key or the index of an item
        inside = item
    return inside


def _item_of(annotation: object) -> type[BaseModel] | None:
    """Return the one model in `M`, `M | None`, `dict[str, M]` or `tuple[M, ...]`; None where there is none, or more."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    models = {found for one in get_args(annotation) if (found := _item_of(one)) is not None}
    return models.pop() if len(models) == 1 else None
