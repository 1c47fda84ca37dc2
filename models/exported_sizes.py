"""Sizes of an exported program that are not fixed: what they are called, which values they may have and get.

A size is text such as `Mul(Integer(2), Symbol('s27', positive=True, integer=True))`. torch hands it to sympy, which
evaluates it as Python; here it is parsed, and only arithmetic is done.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from day0.errors import Day0Error, near_names

__all__ = ["Dims", "choose_dims", "size_of"]

MAX_TEXT = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Dims:
    """The value of each symbol, and where it comes from."""

    values: Mapping[str, int]
    text: str
    """For a person: `s27 = 8 (as exported; 2 to 128)`."""


def choose_dims(
    where: str, inputs: Mapping[str, list[Any]], ranges: Mapping[str, Any], asked: Mapping[str, object]
) -> Dims:
    """Give every symbol a value: the one asked for, else that of the example, else the smallest that is allowed.

    `inputs` are the sizes of each input as the file has them; a symbol can be asked for by its own name (`s27`) or by
    the input and dimension that it stands for (`ids.1`).
    Raises Day0Error for an unknown name, for no whole number, and for a value out of range.
    """
    names, examples = _symbols(inputs)
    wanted: dict[str, int] = {}
    for key, value in asked.items():
        symbol = names.get(key)
        if symbol is None:
            hint = near_names(key, tuple(names)) or f"sizes that can be set: {', '.join(names) or 'none'}"
            raise Day0Error(f"--set {key}", "the program has no such size", hint=hint)
        if type(value) is not int or value < 0:
            raise Day0Error(f"--set {key}", f"{value!r} is no size", hint=f"for example --set {key}=8")
        wanted[symbol] = value
    values, texts = {}, []
    for symbol in dict.fromkeys(names.values()):
        low, high = _range(ranges.get(symbol))
        value, why = wanted.get(symbol), "asked for"
        if value is None:
            value, why = (examples[symbol], "as exported") if symbol in examples else (max(low, 2), "smallest allowed")
        if not low <= value <= high:
            allowed = f"{low} to {high}" if high < math.inf else f"{low} or more"
            raise Day0Error(where, f"{symbol} = {value} is not allowed: {allowed}", hint=f"give --set {symbol}={low}")
        values[symbol] = value
        texts.append(f"{_title(symbol, names)} = {value} ({why})")
    return Dims(values=values, text=", ".join(texts))


def _title(symbol: str, names: Mapping[str, str]) -> str:
    return next((name for name, one in names.items() if one == symbol and "." in name), symbol)


def _symbols(inputs: Mapping[str, list[Any]]) -> tuple[dict[str, str], dict[str, int]]:
    """Return the names under which each symbol can be set, and the values of the example."""
    names: dict[str, str] = {}
    examples: dict[str, int] = {}
    for name, sizes in inputs.items():
        for place, size in enumerate(sizes):
            expression = size.get("as_expr") if isinstance(size, dict) else None
            if not isinstance(expression, dict):
                continue
            for symbol in _symbols_in(str(expression.get("expr_str"))):
                names.setdefault(symbol, symbol)
            tree = _parsed(str(expression.get("expr_str")))
            hint = expression.get("hint")
            if _is_symbol(tree):
                names[f"{name}.{place}"] = _symbol_name(tree)
                if isinstance(hint, dict) and type(hint.get("as_int")) is int:
                    examples.setdefault(_symbol_name(tree), hint["as_int"])
    return names, examples


def _range(found: Any) -> tuple[int, float]:
    low = found.get("min_val") if isinstance(found, dict) else None
    high = found.get("max_val") if isinstance(found, dict) else None
    return (low if type(low) is int else 0, high if type(high) is int else math.inf)


def size_of(where: str, size: Any, values: Mapping[str, int]) -> int:
    """Return a size of the file as a number. Raises Day0Error for text that is no arithmetic."""
    if isinstance(size, dict) and type(size.get("as_int")) is int and 0 <= size["as_int"] < 1 << 62:
        return int(size["as_int"])
    expression = size.get("as_expr") if isinstance(size, dict) else None
    text = str(expression.get("expr_str")) if isinstance(expression, dict) else str(size)
    try:
        found = _value(_parsed(text), values)
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise Day0Error(where, f"the size {text[:100]!r} is no arithmetic: {error}", hint="save it again") from None
    if not 0 <= found < 1 << 62:
        raise Day0Error(where, f"the size {text[:100]!r} is {found}", hint="give other values with --set")
    return found


def _parsed(text: str) -> ast.expr:
    if len(text) > MAX_TEXT:
        raise ValueError("it is too long")
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("it cannot be read") from None


def _symbols_in(text: str) -> list[str]:
    try:
        return [_symbol_name(node) for node in ast.walk(_parsed(text)) if _is_symbol(node)]
    except ValueError:
        return []


def _is_symbol(node: ast.AST) -> bool:
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Symbol"
    return named and bool(node.args) and isinstance(node.args[0], ast.Constant)  # type: ignore[attr-defined]  # a Call


def _symbol_name(node: ast.AST) -> str:
    return str(node.args[0].value)[:64]  # type: ignore[attr-defined]  # callers ask _is_symbol first


def _value(node: ast.expr, values: Mapping[str, int]) -> int:
    if _is_symbol(node):
        name = _symbol_name(node)
        if name not in values:
            raise ValueError(f"nothing says what {name} is")
        return values[name]
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, values)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ARITHMETIC:
        found = _ARITHMETIC[node.func.id](*(_value(one, values) for one in node.args))
        if abs(found) >= 1 << 62:
            raise ValueError("it is beyond 2^62")
        return found
    raise ValueError(f"it has a {type(node).__name__}")


def _power(base: int, exponent: int) -> int:
    if not 0 <= exponent <= 64:
        raise ValueError("the power is not between 0 and 64")
    return int(base**exponent)


def _sum(*items: int) -> int:
    return sum(items)


def _product(*items: int) -> int:
    return math.prod(items)


_ARITHMETIC: Mapping[str, Callable[..., int]] = {
    "Integer": lambda one: one,
    "Add": _sum,
    "Mul": _product,
    "Pow": _power,
    "PowByNatural": _power,
    "Max": max,
    "Min": min,
    "Mod": lambda one, other: one % other,
    "PythonMod": lambda one, other: one % other,
    "FloorDiv": lambda one, other: one // other,
    "CleanDiv": lambda one, other: one // other,
    "CeilDiv": lambda one, other: -(-one // other),
}
