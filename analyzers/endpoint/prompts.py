"""Prompts as data: a file with one JSON object a line, read with care.

A line holds `prompt` (a text) or `messages` (a chat), and may hold `id`, `max_tokens` and `answer`. An image is a part of
a message, by its path within the folder of the file.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from day0.errors import Day0Error, near_names
from day0.hashing import hash_bytes, hash_json
from day0.textfile import numbered_lines, read_text

__all__ = ["Image", "Message", "Prompt", "PromptSet", "bundled_sets", "read_prompts"]

MAX_BYTES = 16 << 20
MAX_PROMPTS = 10_000
MAX_IMAGE_BYTES = 20 << 20
MAX_IMAGES_BYTES = 256 << 20
MAX_CHARACTERS = 1 << 20
NEW_TOKENS = 32
SETS = Path(__file__).parent / "sets"
_HINT = 'write one object a line, such as {"id": "sky", "prompt": "The sky is", "max_tokens": 16}'
_KINDS = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}

Text = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """An image, read and known to be one by its first bytes."""

    path: Path
    media_type: str
    data: bytes

    def url(self) -> str:
        """Return the image as a data URL."""
        return f"data:{self.media_type};base64,{base64.b64encode(self.data).decode('ascii')}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A message: texts and images in their order."""

    role: str
    parts: tuple[str | Image, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """What is asked, and how much of an answer is wanted."""

    name: str
    text: str = ""
    """Of a prompt that is no chat."""
    messages: tuple[Message, ...] = ()
    max_tokens: int = NEW_TOKENS
    answers: tuple[str, ...] = ()
    """Texts one of which a right answer holds; empty where nobody knows."""

    @property
    def images(self) -> tuple[Image, ...]:
        """All images, in their order."""
        return tuple(part for one in self.messages for part in one.parts if isinstance(part, Image))

    def chat(self) -> tuple[Message, ...]:
        """Return the prompt as a chat: a text is what a user says."""
        return self.messages or (Message(role="user", parts=(self.text,)),)

    def wire_messages(self) -> list[dict[str, object]]:
        """Return the messages as the chat API takes them: text alone as a string, images as data URLs."""
        return [{"role": one.role, "content": _wire_parts(one.parts)} for one in self.chat()]


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptSet:
    """Prompts with the name and the hash of where they come from."""

    source: str
    sha256: str
    prompts: tuple[Prompt, ...]


def _wire_parts(parts: tuple[str | Image, ...]) -> object:
    if len(parts) == 1 and isinstance(parts[0], str):
        return parts[0]
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": part.url()}}
        for part in parts
    ]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _TextPart(_Line):
    text: Text


class _ImagePart(_Line):
    image: Annotated[str, Field(min_length=1, max_length=1024)]


class _MessageLine(_Line):
    role: Literal["system", "user", "assistant"]
    content: Text | Annotated[list[_TextPart | _ImagePart], Field(min_length=1, max_length=64)]


class _PromptLine(_Line):
    id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    prompt: Text | None = None
    messages: Annotated[list[_MessageLine], Field(min_length=1, max_length=256)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=4096)] = NEW_TOKENS
    answer: Text | Annotated[list[Text], Field(min_length=1, max_length=64)] | None = None


def bundled_sets() -> tuple[str, ...]:
    """Return the names of the sets that ship with day0."""
    return tuple(sorted(path.stem for path in SETS.glob("*.jsonl")))


def read_prompts(source: str) -> PromptSet:
    """Read a bundled set by its name, or a file.

    Raises Day0Error: no such set or file, not UTF-8, a line that is no prompt (with its number), an id twice, an image
    that is outside of the folder, missing, too large or no image.
    """
    path = SETS / f"{source}.jsonl" if source in bundled_sets() else Path(source)
    if not path.is_file():
        hint = near_names(source, bundled_sets()) or f"name a file, or one of {', '.join(bundled_sets())}"
        raise Day0Error("--prompts", f"'{source[:200]}' is neither a file nor a bundled set", hint=hint)
    prompts: list[Prompt] = []
    seen: set[str] = set()
    total = 0
    for number, line in _lines(path):
        prompt = _prompt(path, number, line)
        total += sum(len(image.data) for image in prompt.images)
        if total > MAX_IMAGES_BYTES:
            raise Day0Error(f"{path}:{number}", "the images have over 256 MiB together", hint="ask fewer at one time")
        if prompt.name in seen:
            raise Day0Error(f"{path}:{number}", f"id {prompt.name!r} stands there twice", hint="give each its own id")
        seen.add(prompt.name)
        prompts.append(prompt)
    if not prompts:
        raise Day0Error(str(path), "it has no prompts", hint=_HINT)
    files = {str(image.path): hash_bytes(image.data) for one in prompts for image in one.images}
    digest = hash_json([hash_bytes(path.read_bytes()), sorted(files.values())])
    return PromptSet(source=source, sha256=digest, prompts=tuple(prompts))


def _lines(path: Path) -> list[tuple[int, str]]:
    lines = numbered_lines(read_text(path, most=MAX_BYTES, kind="a set of prompts", hint=_HINT))
    if len(lines) > MAX_PROMPTS:
        raise Day0Error(str(path), f"it has {len(lines):,} prompts, and {MAX_PROMPTS:,} is the most", hint="take fewer")
    return lines


def _prompt(path: Path, number: int, line: str) -> Prompt:
    where = f"{path}:{number}"
    try:
        document = json.loads(line)
        json.dumps(document, ensure_ascii=False).encode("utf-8")
        found = _PromptLine.model_validate(document)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = ".".join(
            str(part) for part in fault["loc"] if not str(part).startswith(("constrained", "list[", "function"))
        )
        raise Day0Error(where, f"{name or 'the line'}: {fault['msg'].lower()}", hint=_HINT) from None
    except UnicodeEncodeError:
        raise Day0Error(where, "it holds half of a character, which is not Unicode", hint=_HINT) from None
    except (ValueError, RecursionError) as error:
        raise Day0Error(where, f"it is not JSON: {str(error)[:100]}", hint=_HINT) from None
    if (found.prompt is None) == (found.messages is None):
        raise Day0Error(where, "a prompt has either 'prompt' or 'messages'", hint=_HINT)
    prompt = Prompt(
        name=found.id or f"line-{number}",
        text=found.prompt or "",
        max_tokens=found.max_tokens,
        answers=tuple([found.answer] if isinstance(found.answer, str) else found.answer or ()),
    )
    messages = (Message(role=one.role, parts=_parts(where, path, one)) for one in found.messages or ())
    return replace(prompt, messages=tuple(messages))


def _parts(where: str, path: Path, message: _MessageLine) -> tuple[str | Image, ...]:
    if isinstance(message.content, str):
        return (message.content,)
    parts = tuple(
        part.text if isinstance(part, _TextPart) else _image(where, path, part.image) for part in message.content
    )
    if len(parts) > 1 and all(isinstance(part, str) for part in parts):
        # Servers join such parts in different ways, so that the same prompt is several.
        raise Day0Error(
            where, "a message without an image is one text", hint='write "content": "..." in place of parts'
        )
    return parts


def _image(where: str, path: Path, name: str) -> Image:
    folder = path.parent.resolve()
    try:
        file = (folder / name).resolve()
        inside = file.is_relative_to(folder) and not Path(name).is_absolute()
    except (OSError, ValueError):
        inside = False
    if not inside:
        what = f"image {name[:200]!r} is not within the folder of the file"
        raise Day0Error(where, what, hint="put images beside the file, and name them by their relative paths")
    try:
        if file.stat().st_size > MAX_IMAGE_BYTES:
            raise Day0Error(where, f"image {name[:200]!r} is over 20 MiB", hint="take a smaller one")
        data = file.read_bytes()
    except OSError as error:
        raise Day0Error(where, f"image {name[:200]!r} cannot be read: {error.strerror}", hint="check it") from None
    kind = next((kind for begin, kind in _KINDS.items() if data.startswith(begin)), "")
    if not kind or (kind == "image/webp" and data[8:12] != b"WEBP"):
        raise Day0Error(where, f"{name[:200]!r} is no PNG, JPEG, GIF or WebP", hint="save it as one of these")
    return Image(path=file, media_type=kind, data=data)
