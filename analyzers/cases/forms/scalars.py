"""Other scalars: a dimension counted from the end, alpha and beta of 0 and 2, an epsilon that matters."""

from __future__ import annotations

from collections.abc import Iterator

from day0.analyzers.cases.forms._form import Form
from day0.records import ScalarValue, Signature, TensorValue, Value
from day0.reference_ops._spec import Operator
from day0.reference_ops.signatures import resolve

__all__ = ["FORM"]

_DIMS = frozenset({"dim", "axis"})
_FACTORS = frozenset({"alpha", "beta"})
_FLAGS = frozenset({"largest", "descending", "keepdim", "accumulate", "unbiased", "right"})


def _derive(signature: Signature, contract: Operator | None) -> Iterator[tuple[str, Signature]]:
    rank = next((len(one.shape) for one in signature.args if isinstance(one, TensorValue)), 0)
    schema = resolve(signature.op)._schema.arguments
    for place, argument in enumerate(schema):
        value = signature.args[place] if place < len(signature.args) else signature.kwargs.get(argument.name)
        for number, other in enumerate(_others(argument.name, value, rank, str(argument.type))):
            yield f"{argument.name}{number}", _with(signature, place, argument.name, other, argument.kwarg_only)


def _others(name: str, value: Value | None, rank: int, kind: str) -> Iterator[ScalarValue]:
    text = value.value if isinstance(value, ScalarValue) else None
    if name in _DIMS and text is not None and isinstance(value, ScalarValue) and value.type == "int" and rank > 0:
        dim = int(text)
        yield ScalarValue(type="int", value=str(dim - rank if dim >= 0 else dim + rank))
        if rank > 1:
            yield ScalarValue(type="int", value=str((dim + 1) % rank))
    elif name in _FACTORS and kind in ("number", "Scalar", "float"):
        yield from (ScalarValue(type="int", value=one) for one in ("0", "2"))
    elif name in _FLAGS and kind == "bool":
        yield ScalarValue(type="bool", value=str(text != "True" if text else name not in ("largest", "unbiased")))
    elif name.startswith("eps") and text is not None and isinstance(value, ScalarValue) and value.type == "float":
        yield from (ScalarValue(type="float", value=repr(one)) for one in (0.5, 1e-12) if repr(one) != text)


def _with(signature: Signature, place: int, name: str, value: ScalarValue, named: bool) -> Signature:
    if place < len(signature.args):
        args = (*signature.args[:place], value, *signature.args[place + 1 :])
        return signature.model_copy(update={"args": args})
    if place == len(signature.args) and not named:
        return signature.model_copy(update={"args": (*signature.args, value)})
    return signature.model_copy(update={"kwargs": {**signature.kwargs, name: value}})


FORM = Form(
    name="scalars",
    why="scalars that a kernel fixes, ignores or knows from 0 upwards only",
    derive=_derive,
    regimes=("ordinary", "unread"),
)
