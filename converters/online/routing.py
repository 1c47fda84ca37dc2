"""Recorded routing: which experts every token of every call chose, in a safetensors file.

Two tensors: `calls` I32 [calls, 3] holds step, layer and number of tokens; `chosen` I32 [tokens, K] holds the experts of
one call after the other, -1 for a choice that was dropped. Metadata say how many layers and experts there are.

Shape suffixes: T tokens of all calls, K experts of a token.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from day0.converters.header import Header, read_header
from day0.converters.reading import Reader
from day0.errors import Day0Error

__all__ = ["FORMAT", "Call", "Routing", "read_routing", "routing_of", "write_routing"]

FORMAT = "day0.routing/1"
MOST_BYTES = 1 << 30
MOST_LAYERS = 1 << 12
MOST_EXPERTS = 1 << 16
MOST_PLACES = 1 << 20
"""Of all layers together; the largest models have some twenty thousand."""
_AGAIN = "record it again with `day0 convert record-routing`"


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """What one layer chose in one step."""

    step: int
    layer: int
    chosen_NK: tuple[tuple[int, ...], ...]

    @property
    def needed(self) -> tuple[int, ...]:
        """Return the experts that the step needs, each once, in order."""
        return tuple(sorted({expert for row in self.chosen_NK for expert in row if expert >= 0}))


@dataclass(frozen=True, kw_only=True, slots=True)
class Routing:
    """A run as an expert cache sees it."""

    layers: int
    experts: int
    calls: tuple[Call, ...]
    facts: dict[str, str] = field(default_factory=dict)
    """Where it comes from, for people."""

    @property
    def steps(self) -> int:
        """How many passes through the model it holds."""
        return len({call.step for call in self.calls})

    def needs(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Give layer and needed experts, call by call."""
        for call in self.calls:
            yield call.layer, call.needed

    def per_step(self) -> int:
        """Return the most experts that one call needs."""
        return max((len(call.needed) for call in self.calls), default=0)


def routing_of(
    calls: Iterable[tuple[int, int, torch.Tensor]],
    *,
    layers: int,
    experts: int,
    facts: Mapping[str, str] | None = None,
) -> Routing:
    """Make one of (step, layer, chosen [N, K])."""
    made = tuple(
        Call(step=step, layer=layer, chosen_NK=tuple(tuple(int(one) for one in row) for row in chosen.tolist()))
        for step, layer, chosen in calls
    )
    return Routing(layers=layers, experts=experts, calls=made, facts=dict(facts or {}))


def write_routing(path: Path, routing: Routing) -> None:
    """Write the file under another name and rename it: nobody reads half of one.

    Raises Day0Error where it cannot be written, and for a model whose layers choose different numbers of experts.
    """
    from safetensors.torch import save

    widths = {len(row) for call in routing.calls for row in call.chosen_NK}
    if len(widths) > 1:
        what = f"its layers choose {sorted(widths)} experts for a token"
        raise Day0Error(str(path), what, hint="a recording holds one number of them")
    rows = [row for call in routing.calls for row in call.chosen_NK]
    tensors = {
        "calls": torch.tensor(
            [[call.step, call.layer, len(call.chosen_NK)] for call in routing.calls], dtype=torch.int32
        ).reshape(-1, 3),
        "chosen": torch.tensor(rows, dtype=torch.int32).reshape(len(rows), -1 if rows else 0),
    }
    facts = {"format": FORMAT, "layers": str(routing.layers), "experts": str(routing.experts), **routing.facts}
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(save(tensors, metadata=facts))
        os.replace(part, path)  # noqa: PTH105 - as one word with the comment above
    except OSError as error:
        raise Day0Error(str(path), f"cannot be written: {error.strerror}", hint="name another place") from None


def read_routing(path: Path) -> Routing:
    """Read a file. Raises Day0Error for one that is missing, cut off, too large, or does not hold what it says."""
    if not path.is_file():
        raise Day0Error(str(path), "there is no such file", hint=_AGAIN)
    header = read_header(path)
    layers, experts = _sizes(header)
    calls, chosen = _tensors(header)
    return Routing(
        layers=layers,
        experts=experts,
        calls=tuple(_calls(path, calls, chosen, layers, experts)),
        facts={name: text for name, text in header.metadata.items() if name not in ("format", "layers", "experts")},
    )


def _sizes(header: Header) -> tuple[int, int]:
    where, said = str(header.path), header.metadata
    if said.get("format") != FORMAT:
        what = f"no recorded routing: expected format {FORMAT}, got {said.get('format', 'none')[:60]!r}"
        raise Day0Error(where, what, hint=_AGAIN)
    if header.size > MOST_BYTES:
        raise Day0Error(where, f"{header.size:,} bytes are more than {MOST_BYTES:,}", hint="record fewer tokens")
    sizes = []
    for name, most in (("layers", MOST_LAYERS), ("experts", MOST_EXPERTS)):
        text = said.get(name, "")
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= most):
            raise Day0Error(where, f"{name}: expected a number from 1 to {most:,}, got {text[:20]!r}", hint=_AGAIN)
        sizes.append(int(text))
    if sizes[0] * sizes[1] > MOST_PLACES:
        what = f"{sizes[0]:,} layers of {sizes[1]:,} experts are more than {MOST_PLACES:,} experts"
        raise Day0Error(where, what, hint=_AGAIN)
    return sizes[0], sizes[1]


def _tensors(header: Header) -> tuple[torch.Tensor, torch.Tensor]:
    found = []
    reader = Reader()
    try:
        for name in ("calls", "chosen"):
            stored = header.tensors.get(name)
            if stored is None or stored.dtype != "I32" or len(stored.shape) != 2:
                what = f"expected a tensor {name!r}, I32 with two dimensions"
                raise Day0Error(str(header.path), what, hint=_AGAIN)
            if stored.shape[0] and not stored.shape[1]:
                # Rows of nothing take no bytes, so there may be any number of them.
                raise Day0Error(str(header.path), f"{name!r} has {stored.shape[0]:,} rows and no experts", hint=_AGAIN)
            found.append(reader.whole(stored, into=name).clone())
    finally:
        reader.close()
    return found[0], found[1]


def _calls(path: Path, calls_C3: torch.Tensor, chosen_TK: torch.Tensor, layers: int, experts: int) -> Iterator[Call]:
    def refuse(what: str) -> Day0Error:
        return Day0Error(str(path), what, hint=_AGAIN)

    if calls_C3.shape[1] != 3:
        raise refuse(f"`calls` has {calls_C3.shape[1]} columns, not step, layer and tokens")
    if chosen_TK.numel() and not (int(chosen_TK.min()) >= -1 and int(chosen_TK.max()) < experts):
        raise refuse(f"`chosen` names experts beyond the {experts} that there are")
    at, last = 0, 0
    rows = chosen_TK.tolist()
    for number, (step, layer, tokens) in enumerate(calls_C3.tolist()):
        if not 0 <= layer < layers or step < last or tokens < 0 or at + tokens > len(rows):
            raise refuse(f"call {number} cannot be: step {step}, layer {layer} of {layers}, {tokens} tokens")
        yield Call(step=step, layer=layer, chosen_NK=tuple(tuple(row) for row in rows[at : at + tokens]))
        at, last = at + tokens, step
    if at != len(rows):
        raise refuse(f"its calls have {at:,} tokens, and {len(rows):,} rows were chosen")
