"""How a model is spread over cards, and which layouts are possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from day0.analyzers.fit.weights import ModelShape
from day0.errors import Day0Error, near_names

__all__ = ["MAX_CARDS", "Layout", "check_layout", "layouts_of", "parse_layout", "stages_of"]

MAX_CARDS = 1 << 16
_NAMES = ("tp", "ep", "pp", "dp")
MAX_STAGES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Tensor, expert, pipeline and data parallelism. Experts are spread over the tp x dp cards of a pipeline stage."""

    tp: int = 1
    ep: int = 1
    pp: int = 1
    dp: int = 1

    @property
    def cards(self) -> int:
        """How many cards it takes."""
        return self.tp * self.pp * self.dp

    def __str__(self) -> str:
        return f"tp={self.tp} ep={self.ep} pp={self.pp} dp={self.dp}"


def parse_layout(text: str, shape: ModelShape) -> Layout:
    """Read `tp=8,ep=8,pp=1,dp=1`; what is not named is 1, and experts are spread as far as they can be.

    Raises Day0Error for another name, no number, and what check_layout refuses.
    """
    values: dict[str, int] = {}
    for part in text.replace(" ", ",").split(","):
        name, equals, number = part.strip().partition("=")
        if not part.strip():
            continue
        if name not in _NAMES:
            hint = near_names(name, _NAMES) or f"parts of a layout: {', '.join(_NAMES)}"
            raise Day0Error("--layout", f"there is no parallelism '{name}'", hint=hint)
        if not equals or len(number) > 9 or not number.isdecimal() or not 1 <= int(number) <= MAX_CARDS:
            what = f"{name} is '{number[:20]}', expected a number of cards from 1 to {MAX_CARDS:,}"
            raise Day0Error("--layout", what, hint="for example --layout tp=8,ep=8")
        if name in values:
            raise Day0Error("--layout", f"{name} stands twice", hint="name it once")
        values[name] = int(number)
    if not values:
        raise Day0Error("--layout", "it is empty", hint="for example --layout tp=8,ep=8")
    stage = values.get("tp", 1) * values.get("dp", 1)
    if "ep" not in values:
        values["ep"] = _widest(stage, shape.experts)
    layout = Layout(**values)
    check_layout(layout, shape)
    return layout


def _widest(stage: int, experts: int) -> int:
    """Return the largest number of cards of a stage over which that many experts can be spread."""
    return max((n for n in range(1, stage + 1) if stage % n == 0 and n <= experts), default=1)


def check_layout(layout: Layout, shape: ModelShape) -> None:
    """Raise Day0Error for parts that contradict each other or the model's structure."""
    stage = layout.tp * layout.dp
    reason = hint = ""
    if layout.cards > MAX_CARDS:
        reason, hint = f"{layout.cards:,} cards are more than {MAX_CARDS:,}", "name a smaller layout"
    elif layout.ep > 1 and not shape.experts:
        reason, hint = f"ep={layout.ep}, but the model has no routed experts", "leave ep out"
    elif layout.ep > max(1, shape.experts):
        reason, hint = f"ep={layout.ep} is more than the {shape.experts} experts", f"use at most ep={shape.experts}"
    elif stage % layout.ep:
        reason = f"ep={layout.ep} does not divide the {stage} cards (tp x dp) of a pipeline stage"
        hint = f"experts are spread over those cards: use ep={_widest(stage, shape.experts)}"
    elif shape.heads and shape.heads % layout.tp:
        reason = f"{shape.heads} attention heads cannot be divided by tp={layout.tp}"
        hint = f"use a divisor: {', '.join(str(n) for n in _divisors(shape.heads)[:12])}"
    elif any(heads % layout.tp for heads in shape.other_heads):
        odd = next(heads for heads in shape.other_heads if heads % layout.tp)
        reason = f"{odd} heads of linear attention cannot be divided by tp={layout.tp}"
        hint = f"use a divisor: {', '.join(str(n) for n in _divisors(odd)[:12])}"
    elif layout.pp > max(1, shape.layers):
        reason, hint = f"pp={layout.pp} is more than the {shape.layers} layers", f"use at most pp={shape.layers}"
    if reason:
        raise Day0Error("--layout", reason, hint=hint)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def layouts_of(cards: int, shape: ModelShape, node: int) -> Iterator[Layout]:
    """Yield the layouts of so many cards that servers use.

    Tensor parallelism stays inside a node, and pipeline stages are whole nodes: inside one they only add bubbles.
    """
    for pp in range(1, min(cards, max(1, shape.layers), MAX_STAGES) + 1):  # no layers: one stage all the same
        if cards % pp:
            continue
        stage = cards // pp
        if pp > 1 and stage % node:
            continue
        for tp in range(1, min(stage, node) + 1):
            if stage % tp or (shape.heads and shape.heads % tp) or any(heads % tp for heads in shape.other_heads):
                continue
            ep = stage if stage <= shape.experts else _widest(stage, shape.experts)
            if not shape.experts and stage // tp > 1 and pp > 1:
                continue
            yield Layout(tp=tp, ep=ep, pp=pp, dp=stage // tp)


def stages_of(layers: int, pp: int) -> list[range]:
    """Return the layers of each pipeline stage; the first ones have one more where they cannot be equal."""
    base, more = divmod(layers, pp)
    stages, at = [], 0
    for number in range(pp):
        size = base + (number < more)
        stages.append(range(at, at + size))
        at += size
    return stages
