"""Name the config field that a model misses where it stopped.

Default configs leave fields empty that the model's code needs; the error then speaks of NoneType and not of the field.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["missing_field_hint"]

AROUND = 3
"""Lines around the raising one that may belong to the same statement."""


def missing_field_hint(error: BaseException) -> str:
    """Return the next step where the model's own lines read config fields that are empty, or say which to set.

    An empty string where nothing of that kind is found.
    """
    if isinstance(error, ImportError):
        return "install the library that it names"
    for frame, line in list(_model_frames(error))[-1:]:
        for around in (0, AROUND):
            found = _empty_fields(frame, line, around)
            if found:
                return f"the config leaves {', '.join(found)} empty: give it with --set {found[0]}=…"
    asked = re.search(r"make sure that `?(\w+)=(True|False)", str(error))
    return f"say --set {asked[1]}={asked[2].lower()}" if asked else ""


def _model_frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    traceback = error.__traceback__
    while traceback is not None:
        if "/transformers/models/" in traceback.tb_frame.f_code.co_filename:
            yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def _empty_fields(frame: FrameType, line: int, around: int) -> list[str]:
    name, code = frame.f_code.co_filename, frame.f_code
    owner = frame.f_locals.get("self")
    config = frame.f_locals.get("config", getattr(owner, "config", None))
    text = "".join(linecache.getline(name, number) for number in range(max(1, line - around), line + around + 1))
    fields = re.findall(r"config\.(\w+)\b(?!\()", text)
    whole = "".join(linecache.getlines(name))
    for attribute in dict.fromkeys(re.findall(r"self\.(\w+)", text)):
        if getattr(owner, attribute, 0) is None:
            fields += re.findall(rf"self\.{attribute}\s*=\s*(?:getattr\()?config(?:\.|, \")(\w+)", whole)
    empty = [field for field in dict.fromkeys(fields) if not field.endswith("token_id") and _is_empty(config, field)]
    body = "".join(linecache.getline(name, number) for number in range(code.co_firstlineno, line))
    for local in dict.fromkeys(re.findall(r"\b[a-z_]+\b", text)):
        if frame.f_locals.get(local, 0) is None:
            empty += re.findall(rf"\b{local}\s*=.*config\.(\w+(?:\[\"\w+\"\])?)", body)
    return list(dict.fromkeys(empty))


def _is_empty(config: Any, field: str) -> bool:
    # Without a config at hand the field stands here because the attribute made from it is empty.
    return config is None or getattr(config, field, None) is None
