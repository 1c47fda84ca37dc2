"""The reference's tokenizer: prompts to ids, and the tokens that a server shows as text back to ids."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from day0.analyzers.endpoint.prompts import Image, Prompt
from day0.analyzers.endpoint.protocol import Api, Token
from day0.errors import USER_ERRORS, Day0Error
from day0.hashing import hash_json

__all__ = ["BROKEN", "Encoded", "Vocabulary"]

BROKEN = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """A prompt as the model takes it."""

    ids: tuple[int, ...]
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments, such as `pixel_values`."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """A tokenizer of transformers, or a processor where there are images."""

    tokenizer: Any
    processor: Any = None
    where: str
    size: int
    """How many logits the model has."""
    ends: frozenset[int]
    """Ids that end a text."""

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all tokens and their ids."""
        return hash_json(sorted(self.tokenizer.get_vocab().items()))

    @cached_property
    def _by_text(self) -> dict[str, tuple[int, ...]]:
        """All ids by the texts under which a server may show them: decoded alone, or the piece itself."""
        found: defaultdict[str, set[int]] = defaultdict(set)
        count = min(len(self.tokenizer), self.size)
        texts = self.tokenizer.batch_decode([[one] for one in range(count)])
        pieces = self.tokenizer.convert_ids_to_tokens(list(range(count)))
        for number, (text, piece) in enumerate(zip(texts, pieces, strict=True)):
            found[text].add(number)
            if isinstance(piece, str):
                found[piece].add(number)
                found[piece.replace("\u2581", " ").replace("\u0120", " ")].add(number)
        return {text: tuple(sorted(ids)) for text, ids in found.items()}

    def encode(self, prompt: Prompt, api: Api) -> Encoded:
        """Return a prompt's ids, with the special tokens or the chat template that a server adds.

        Raises Day0Error: no chat template, images without a processor, what the template refuses.
        """
        if api == "completions":
            return Encoded(ids=tuple(self.tokenizer(prompt.text)["input_ids"]))
        if prompt.images and self.processor is None:
            what = f"prompt {prompt.name!r} has images, and this model has no processor for them"
            raise Day0Error(self.where, what, hint="take the reference from another server with --against")
        maker = self.processor if prompt.images else self.tokenizer
        try:
            found = maker.apply_chat_template(
                [_chat_message(one.role, one.parts, bare=not prompt.images) for one in prompt.chat()],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
            )
        # Templates are programs of the folder, run in a sandbox by transformers: they raise what they like.
        except (*USER_ERRORS, _template_error()) as error:
            what = f"its chat template cannot make prompt {prompt.name!r}: {_line(error)}"
            raise Day0Error(self.where, what, hint="ask with --api completions, or add a chat template") from None
        ids_BS = found.pop("input_ids")
        found.pop("attention_mask", None)
        return Encoded(ids=tuple(ids_BS[0].tolist()), inputs=dict(found) if prompt.images else {})

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of ids, as servers show it."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=not special))

    def lookup(self, text: str) -> tuple[int, ...]:
        """Return the ids that a server may show as this text; empty for one that is not in the vocabulary."""
        return self._by_text.get(text, ())

    def resolve(self, tokens: Sequence[Token]) -> tuple[int, ...] | None:
        """Return the ids of tokens that a server shows as texts; None where one is unknown, or may be several.

        A part of a character shows as a replacement, whichever part it is: such tokens are known by their bytes alone.
        """
        ids: list[int] = []
        text = ""
        for token in tokens:
            text += token.text
            fitting = self.lookup(token.text)
            if len(fitting) > 1 and token.data:
                fitting = tuple(one for one in fitting if self._bytes_of(one) == token.data) or fitting
            if len(fitting) > 1:
                fitting = tuple(one for one in fitting if self.decode([*ids, one], special=True) == text)
            if len(fitting) != 1:
                return None
            ids.append(fitting[0])
        return tuple(ids)

    def _bytes_of(self, number: int) -> bytes:
        """Return the bytes of a token of a byte-level vocabulary; empty for any other."""
        piece = self.tokenizer.convert_ids_to_tokens(number)
        if isinstance(piece, str) and len(piece) == 6 and piece.startswith("<0x"):
            return bytes.fromhex(piece[3:5])
        known = isinstance(piece, str) and all(char in _BYTES for char in piece)
        return bytes(_BYTES[char] for char in piece) if known else b""

    def beginnings(self, text: str) -> tuple[int, ...]:
        """Return the ids of all tokens with which a text can begin."""
        longest = max((len(one) for one in self._by_text), default=0)
        found = {number for size in range(1, min(longest, len(text)) + 1) for number in self.lookup(text[:size])}
        return tuple(sorted(found))


def _byte_letters() -> dict[str, int]:
    """Return the letters that byte-level vocabularies write for bytes: printable ones as they are, others shifted."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [one for one in range(256) if one not in plain]
    shifted = {chr(256 + at): one for at, one in enumerate(others)}
    return {chr(one): one for one in plain} | shifted


_BYTES = _byte_letters()


def _chat_message(role: str, parts: tuple[str | Image, ...], *, bare: bool) -> dict[str, object]:
    if bare:
        return {"role": role, "content": "".join(part for part in parts if isinstance(part, str))}
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "url": part.url()}
        for part in parts
    ]
    return {"role": role, "content": content}


def _template_error() -> type[Exception]:
    from jinja2 import TemplateError

    return TemplateError


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
