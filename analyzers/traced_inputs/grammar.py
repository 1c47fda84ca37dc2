"""The arguments of one call, from text to the values of a signature: a parser of its own, no `eval`.

The text is a literal of Python: `((T([2, 3], f16), [1, None], -inf), {'dtype': f32})`. What public readers evaluate
is understood here by a fixed grammar; everything else is refused with its column.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import NoReturn

from day0.analyzers.traced_inputs.dtypes import ITEM_BYTES, LAYOUTS, MEMORY_FORMATS, QSCHEMES, TORCH_OF
from day0.analyzers.traced_inputs.tokens import Place, Token, tokenize, unquote
from day0.errors import near_names
from day0.records import ListValue, ScalarValue, TensorValue, Value

__all__ = ["MAX_DEPTH", "Arguments", "contiguous_stride", "parse_arguments"]

MAX_DEPTH = 16
"""Lists in lists; operators take lists of lists at most."""
MAX_DIMS = 64
MAX_BYTES = 1 << 62
"""Bytes that a tensor may span: beyond that torch's own arithmetic overflows."""

NONE = ScalarValue(type="none", value="None")


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    """What one call was given."""

    args: tuple[Value, ...]
    kwargs: dict[str, Value]
    unfit: tuple[str, ...]
    """What the text says and a signature has no place for; empty for almost all calls."""


def parse_arguments(text: str, start: int, place: Place) -> Arguments:
    """Read `((…), {…})` from index `start` of a line. Raises Day0Error with the column for what is not of that form."""
    parser = _Parser(tokens=tokenize(text, start, place), place=place)
    parser.expect("(")
    args = parser.positional()
    parser.expect(",")
    kwargs = parser.keywords()
    parser.skip(",")
    parser.expect(")")
    if parser.next.kind != "end":
        parser.fail(f"after the arguments comes {parser.next}")
    return Arguments(args=args, kwargs=kwargs, unfit=tuple(dict.fromkeys(parser.unfit)))


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides that torch gives a fresh tensor of that shape."""
    steps = accumulate(reversed(shape[1:]), lambda step, size: step * max(size, 1), initial=1)
    return tuple(reversed(list(steps))) if shape else ()


@dataclass(kw_only=True, slots=True)
class _Parser:
    tokens: list[Token]
    place: Place
    at: int = 0
    unfit: list[str] = field(default_factory=list)

    # ------------------------------------------------------------------------------------------ tokens

    @property
    def next(self) -> Token:
        return self.tokens[self.at]

    def take(self) -> Token:
        token = self.tokens[self.at]
        self.at += token.kind != "end"
        return token

    def is_mark(self, text: str, ahead: int = 0) -> bool:
        token = self.tokens[min(self.at + ahead, len(self.tokens) - 1)]
        return token.kind == "mark" and token.text == text

    def skip(self, text: str) -> bool:
        found = self.is_mark(text)
        self.at += found
        return found

    def expect(self, text: str) -> None:
        if not self.skip(text):
            self.fail(f"expected '{text}', got {self.next}")

    def fail(self, what: str, hint: str = "", token: Token | None = None) -> NoReturn:
        self.place.fail((token or self.next).column, what, hint or "correct that line and import again")

    # --------------------------------------------------------------------------------------- arguments

    def positional(self) -> tuple[Value, ...]:
        begin = self.next
        items, comma = self.items("(", ")", 1) if self.is_mark("(") else ([], False)
        if self.tokens[self.at - 1].text != ")" or (len(items) == 1 and not comma):
            self.fail("the positional arguments are no tuple", "one argument alone needs a comma: ((x,), {})", begin)
        return tuple(items)

    def keywords(self) -> dict[str, Value]:
        self.expect("{")
        found: dict[str, Value] = {}
        while not self.is_mark("}"):
            token = self.take()
            if token.kind != "string":
                self.fail(f"expected the quoted name of an argument, got {token}", token=token)
            name = unquote(token, self.place)
            if not name.isidentifier() or name in found:
                self.fail(f"{token} is {'given twice' if name in found else 'no name of an argument'}", token=token)
            self.expect(":")
            found[name] = self.value(1)
            if not self.skip(","):
                break
        self.expect("}")
        return found

    def items(self, begin: str, end: str, depth: int) -> tuple[list[Value], bool]:
        """Return the values between two brackets, and whether the last one was followed by a comma."""
        self.expect(begin)
        found: list[Value] = []
        comma = False
        while not self.is_mark(end):
            found.append(self.value(depth))
            comma = self.skip(",")
            if not comma:
                break
        self.expect(end)
        return found, comma

    # ------------------------------------------------------------------------------------------ values

    def value(self, depth: int) -> Value:
        if depth > MAX_DEPTH:
            self.fail(f"lists are nested more than {MAX_DEPTH} deep")
        token = self.next
        if token.kind == "number" or token.text in ("+", "-", "inf", "nan", "infj", "nanj"):
            return self.number()
        if token.kind == "string":
            return ScalarValue(type="str", value=unquote(self.take(), self.place))
        if token.kind == "name":
            return self.named(self.take(), depth)
        if self.is_mark("["):
            return ListValue(items=tuple(self.items("[", "]", depth + 1)[0]))
        if self.is_mark("("):
            items, comma = self.items("(", ")", depth + 1)
            return items[0] if len(items) == 1 and not comma else ListValue(items=tuple(items))
        self.fail(f"expected a value, got {token}")

    def number(self) -> ScalarValue:
        """Read an int, a float, or a complex number in one or two parts, such as `1-2j`."""
        first = self.signed()
        if first[-1] in "jJ" or not (self.is_mark("+") or self.is_mark("-")):
            return self.scalar(first)
        second = self.signed()
        if second[-1] not in "jJ":
            self.fail("numbers are read, not computed", token=self.tokens[self.at - 2])
        # `complex` keeps the signs of zeros, which an addition would lose.
        return ScalarValue(type="complex", value=repr(complex(first + second)))

    def signed(self) -> str:
        sign = self.take().text if self.is_mark("-") or self.is_mark("+") else ""
        token = self.take()
        if token.kind != "number" and token.text not in ("inf", "nan", "infj", "nanj"):
            self.fail(f"expected a number, got {token}", token=token)
        digits = token.text.rstrip("jJ") if token.kind == "number" else ""
        if digits.isdigit() and len(digits) > 1 and digits[0] == "0":
            self.fail(f"the number {token} begins with a zero", token=token)
        if token.text.isdigit() and int(token.text[:30]) >= 1 << 64:
            self.fail(f"the number {token} does not fit into 64 bits", token=token)
        return ("-" if sign == "-" else "+" if sign else "") + token.text

    def scalar(self, text: str) -> ScalarValue:
        if text[-1] in "jJ":
            return ScalarValue(type="complex", value=repr(complex(text)))
        if text.lstrip("+-").isdigit():
            return ScalarValue(type="int", value=str(int(text)))
        return ScalarValue(type="float", value=repr(float(text)))

    def named(self, token: Token, depth: int) -> Value:
        name = token.text
        if name == "T":
            return self.tensor(token)
        if name == "ST":
            return self.sparse()
        if name in ("True", "False"):
            return ScalarValue(type="bool", value=name)
        if name == "None":
            return NONE
        if name in ("device", "torch.device", "th.device"):
            return self.device(depth)
        if name in ("torch.Size", "th.Size"):
            self.expect("(")
            found = self.value(depth + 1)
            self.expect(")")
            return found
        return self.torch_name(token)

    def torch_name(self, token: Token) -> ScalarValue:
        head, _, rest = token.text.rpartition(".")
        if head in ("", "torch", "th"):
            if head and rest in LAYOUTS:
                return ScalarValue(type="layout", value=rest)
            if head and rest in MEMORY_FORMATS:
                return ScalarValue(type="memory_format", value=rest)
            if head and rest in QSCHEMES:
                self.unfit.append(f"a quantisation scheme ({token.text})")
                return NONE
            if (not head and rest in TORCH_OF) or rest in ITEM_BYTES:
                return ScalarValue(type="dtype", value=TORCH_OF.get(rest, rest) if not head else rest)
        hint = near_names(rest, (*TORCH_OF, *ITEM_BYTES, "True", "False", "None"))
        self.fail(f"the name {token} is not known", hint or "symbolic sizes and calls are not part of the text", token)

    def device(self, depth: int) -> ScalarValue:
        """Read `device('cpu')` or `device(type='cuda', index=0)`: in a signature all of them are the device under test."""
        self.expect("(")
        while not self.is_mark(")"):
            if self.next.text in ("type", "index") and self.is_mark("=", 1):
                self.at += 2
            found = self.value(depth + 1)
            if not isinstance(found, ScalarValue) or found.type not in ("str", "int", "none"):
                self.fail("a device has a type and an index", token=self.tokens[self.at - 1])
            if not self.skip(","):
                break
        self.expect(")")
        return ScalarValue(type="device", value="device")

    # ----------------------------------------------------------------------------------------- tensors

    def tensor(self, begin: Token) -> TensorValue:
        self.expect("(")
        shape, dtype = self.shape_and_dtype()
        options: dict[str, tuple[int, ...]] = {}
        while self.skip(",") and not self.is_mark(")"):
            name, value = self.option()
            if name in options:
                self.fail(f"'{name}' is given twice", token=self.tokens[self.at - 1])
            options[name] = value
        self.expect(")")
        return self.checked(begin, shape, dtype, options)

    def shape_and_dtype(self) -> tuple[tuple[int, ...], str]:
        shape = self.ints()
        if len(shape) > MAX_DIMS:
            self.fail(f"a tensor of {len(shape)} dimensions; torch has at most {MAX_DIMS}")
        self.expect(",")
        token = self.take()
        name = unquote(token, self.place) if token.kind == "string" else token.text
        plain = name.removeprefix("torch.").removeprefix("th.")
        dtype = TORCH_OF.get(plain, plain)
        if token.kind not in ("name", "string") or dtype not in ITEM_BYTES:
            hint = near_names(plain, (*TORCH_OF, *ITEM_BYTES)) or f"short names are {', '.join(TORCH_OF)}"
            self.fail(f"{token} is no dtype", hint, token)
        return shape, dtype

    def option(self) -> tuple[str, tuple[int, ...]]:
        """Read what may follow the dtype: strides, with or without their name, and what `--extended` adds."""
        token = self.next
        if not (token.kind == "name" and self.is_mark("=", 1)):
            return "stride", self.ints()
        if token.text not in ("stride", "offset", "alias", "range"):
            self.fail(f"a tensor has no {token}", "stride, offset, alias or range")
        self.at += 2
        return token.text, self.ints() if token.text in ("stride", "range") else (self.integer(),)

    def ints(self) -> tuple[int, ...]:
        end = {"[": "]", "(": ")"}.get(self.next.text) if self.next.kind == "mark" else None
        if end is None:
            self.fail(f"expected a list of numbers, got {self.next}")
        self.at += 1
        found: list[int] = []
        while not self.is_mark(end):
            found.append(self.integer())
            if not self.skip(","):
                break
        self.expect(end)
        return tuple(found)

    def integer(self) -> int:
        token = self.next
        if token.kind == "name":
            self.fail(f"{token} is no number: symbolic sizes are not read", "put in the number that was used", token)
        found = self.scalar(self.signed())
        if found.type != "int":
            self.fail(f"{token} is no whole number", token=token)
        return int(found.value)

    def checked(
        self, begin: Token, shape: tuple[int, ...], dtype: str, options: dict[str, tuple[int, ...]]
    ) -> TensorValue:
        stride = options.get("stride", contiguous_stride(shape))
        (offset,), alias, limits = options.get("offset", (0,)), options.get("alias"), options.get("range")
        if len(stride) != len(shape):
            self.fail(f"{len(stride)} strides for {len(shape)} dimensions", token=begin)
        if min((*shape, *stride, offset, *(alias or ())), default=0) < 0:
            self.fail("sizes, strides and offsets are not negative in torch", token=begin)
        reach = offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True) if size > 0)
        elements = 1
        for size in shape:
            elements *= size
        if max(reach, elements, *shape, *stride) * ITEM_BYTES[dtype] >= MAX_BYTES:
            self.fail(f"a tensor of {max(reach, elements):,} elements is more than any machine addresses", token=begin)
        if limits is not None and (len(limits) != 2 or limits[0] > limits[1] or not _is_integer(dtype)):
            self.fail("a range is (lowest, highest) of an integer tensor", token=begin)
        return TensorValue(
            shape=shape,
            dtype=dtype,
            stride=stride,
            offset=offset,
            alias=alias[0] if alias else None,
            range=(limits[0], limits[1]) if limits else None,
        )

    def sparse(self) -> ScalarValue:
        """Read `ST(shape, dtype, layout, is_coalesced, nnz=…)`: it is understood, and a signature has no place for it."""
        self.expect("(")
        begin = self.next
        shape, dtype = self.shape_and_dtype()
        self.checked(begin, shape, dtype, {})
        self.expect(",")
        layout = self.value(MAX_DEPTH)
        self.expect(",")
        coalesced = self.value(MAX_DEPTH)
        if not isinstance(layout, ScalarValue) or layout.type != "layout":
            self.fail("the third part of a sparse tensor is its layout", "such as torch.sparse_coo", begin)
        if not isinstance(coalesced, ScalarValue) or coalesced.type != "bool":
            self.fail("the fourth part of a sparse tensor is True or False: coalesced or not", token=begin)
        if self.skip(",") and not self.is_mark(")"):
            if self.next.text == "nnz" and self.is_mark("=", 1):
                self.at += 2
            self.integer()
            self.skip(",")
        self.expect(")")
        self.unfit.append(f"a sparse tensor ({layout.value})")
        return NONE


def _is_integer(dtype: str) -> bool:
    return dtype.startswith(("int", "uint"))
