"""`${name}` in a playbook: values of `vars`, nothing from the environment, no code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from day0.errors import Day0Error, near_names
from day0.yamlfile import KeyPath, YamlDocument

__all__ = ["Variables", "names_in", "refuse_bad_name", "substituted"]

MAX_TEXT = 1 << 16
MAX_VALUES = 100_000
MAX_CHAIN = 50
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_USE = re.compile(r"(\$?)\$\{([^{}]*)(\}?)")
"""Two dollars stand for one that means nothing."""


@dataclass(kw_only=True, slots=True)
class Variables:
    """Values by name, some of which use others; each is worked out when it is first asked for."""

    raw: Mapping[str, Any]
    document: YamlDocument
    _done: dict[str, Any] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)
    _values: int = 0
    _characters: int = 0

    def value(self, name: str, where: str) -> Any:
        """Return the value of `name`, or of a field in it: `model.source`. Raises Day0Error for one that is not there."""
        head = name if name in self.raw else name.partition(".")[0]
        found = self._whole(head, name, where)
        for part in name.removeprefix(head).split(".")[1:]:
            if not isinstance(found, dict) or part not in found:
                known = tuple(map(str, found)) if isinstance(found, dict) else ()
                what = f"the variable '{head}' has no field '{part}' (in ${{{name}}})"
                raise Day0Error(where, what, hint=near_names(part, known) or f"fields: {', '.join(known) or 'none'}")
            found = found[part]
        return found

    def _whole(self, name: str, asked: str, where: str) -> Any:
        if name not in self.raw:
            known = tuple(self.raw)
            hint = near_names(name, known) or f"variables are: {', '.join(known) or 'none; declare it under vars'}"
            raise Day0Error(where, f"there is no variable '{asked}'", hint=hint)
        if name in self._open:
            ring = " → ".join((*self._open[self._open.index(name) :], name))
            raise Day0Error(where, f"the variable '{name}' needs itself: {ring}", hint="give one of them a plain value")
        if len(self._open) > MAX_CHAIN:
            raise Day0Error(
                where, f"variables use each other over more than {MAX_CHAIN} steps", hint="write values out"
            )
        if name not in self._done:
            self._open.append(name)
            self._done[name] = self.fill(self.raw[name], ("vars", name))
            self._open.pop()
        return self._done[name]

    def fill(self, value: Any, key: KeyPath) -> Any:
        """Return a value with everything filled in. A text that is one `${name}` and nothing else keeps the type."""
        self._count(1, self.document.place_of(key))
        if isinstance(value, dict):
            return {self._plain_key(name, key): self.fill(one, (*key, name)) for name, one in value.items()}
        if isinstance(value, list):
            return [self.fill(one, (*key, number)) for number, one in enumerate(value)]
        return self._text(value, key) if isinstance(value, str) else value

    def _plain_key(self, name: Any, key: KeyPath) -> Any:
        if isinstance(name, str) and _USE.search(name):
            where = self.document.place_of((*key, name))
            raise Day0Error(
                where, f"a variable stands in the key '{name}'", hint="variables are filled into values only"
            )
        return name

    def _text(self, text: str, key: KeyPath) -> Any:
        where = self.document.place_of(key)
        one = _USE.fullmatch(text)
        if one and not one[1] and one[3]:
            found = self.value(_checked(one[2], where), where)
            self._count(_size(found), where)
            return found
        return _USE.sub(lambda use: self._inside(use, where), text)

    def _inside(self, use: re.Match[str], where: str) -> str:
        if use[1]:
            return use[0][1:]
        if not use[3]:
            raise Day0Error(where, f"'{use[0]}' is not closed", hint="write ${name}; for the text itself write $${")
        found = self.value(_checked(use[2], where), where)
        if isinstance(found, bool):
            return "true" if found else "false"
        if isinstance(found, (str, int, float)):
            self._characters += len(str(found))
            if self._characters > MAX_TEXT:
                what = f"variables make more than {MAX_TEXT:,} characters of this playbook"
                raise Day0Error(where, what, hint="write shorter values")
            return str(found)
        what = f"the variable '{use[2]}' is a {_kind(found)}, which cannot stand inside a text"
        raise Day0Error(where, what, hint="let it be the whole value")

    def _count(self, more: int, where: str) -> None:
        """Count what values bring: lists of lists of variables grow quickly."""
        self._values += more
        if self._values > MAX_VALUES:
            what = f"variables make more than {MAX_VALUES:,} values of this playbook"
            raise Day0Error(where, what, hint="write shorter values")


def _size(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_size, inside))


def substituted(document: YamlDocument, values: Mapping[str, Any], *, leave: tuple[str, ...] = ()) -> Any:
    """Return a document's data with its variables filled in; the fields named in `leave` are left out.

    Raises Day0Error with the place of a variable that is not there, that needs itself, or that is not closed.
    """
    assert isinstance(document.data, dict)  # noqa: S101 - a playbook is a mapping; looked at when it was read
    variables = Variables(raw=values, document=document)
    for name in values:
        variables.value(name, document.place_of(("vars", name)))  # one that nothing uses has to be right too
    return variables.fill({key: value for key, value in document.data.items() if key not in leave}, ())


def names_in(value: Any) -> frozenset[str]:
    """Return the names of all variables that a value uses, fields of variables by the name of the whole."""
    if isinstance(value, dict):
        return frozenset().union(*map(names_in, value.values()))
    if isinstance(value, list):
        return frozenset().union(*map(names_in, value))
    uses = _USE.findall(value) if isinstance(value, str) else []
    names = [name for dollar, name, _ in uses if not dollar]
    return frozenset(names) | {name.partition(".")[0] for name in names}


def refuse_bad_name(name: str, where: str) -> None:
    """Raise Day0Error for a name that `${name}` cannot hold."""
    if not _NAME.fullmatch(name):
        raise Day0Error(
            where, f"'{name}' is not a name for a variable", hint="letters, digits, - and _, not a digit first"
        )


def _checked(name: str, where: str) -> str:
    if not all(_NAME.fullmatch(part) for part in name.split(".")):
        what = f"'${{{name}}}' is not a variable"
        hint = "write ${name}: no expressions, nothing from the environment; for the text itself write $${"
        raise Day0Error(where, what, hint=hint)
    return name


def _kind(value: Any) -> str:
    return {"dict": "mapping", "NoneType": "null"}.get(type(value).__name__, type(value).__name__)
