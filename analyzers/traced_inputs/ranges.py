"""Valid ranges of index arguments, from the shapes of what they look up: the text has none.

Only where any value in the range is right. Where two equal indices make the result undefined (`scatter`, `index_copy`,
`index_put` without accumulate), or the values have an order (offsets), nothing is made up.
"""

from __future__ import annotations

from collections.abc import Callable

from day0.records import ListValue, ScalarValue, Signature, TensorValue, Value
from day0.reference_ops.signatures import resolve

__all__ = ["with_ranges"]

Named = dict[str, Value]


def with_ranges(signature: Signature) -> Signature:
    """Return the signature with a range on every index argument whose bounds follow from shapes."""
    rule = _RULES.get(signature.op.partition("::")[2].partition(".")[0])
    if rule is None or not signature.op.startswith("aten::"):
        return signature
    names = [one.name for one in resolve(signature.op)._schema.arguments]
    named: Named = {**dict(zip(names, signature.args, strict=False)), **signature.kwargs}
    changed = rule(named)
    args = tuple(changed.get(name, value) for name, value in zip(names, signature.args, strict=False))
    kwargs = {name: changed.get(name, value) for name, value in signature.kwargs.items()}
    return signature.model_copy(update={"args": args, "kwargs": kwargs})


def _below(value: Value | None, size: int) -> Value | None:
    """Put the range [0, size) on an integer tensor that has none yet."""
    if not isinstance(value, TensorValue) or not value.dtype.startswith("int") or size < 1 or value.range is not None:
        return value
    # The type itself may end earlier than what it looks up.
    top = min(size, 1 << (8 * int(value.dtype.removeprefix("int")) // 8 - 1)) - 1
    return value.model_copy(update={"range": (0, top)})


def _size(value: Value | None, dim: Value | None) -> int:
    if not isinstance(value, TensorValue) or not isinstance(dim, ScalarValue) or dim.type != "int":
        return 0
    number = int(dim.value)
    return value.shape[number] if -len(value.shape) <= number < len(value.shape) else 0


def _set(named: Named, name: str, size: int) -> Named:
    value = _below(named.get(name), size)
    return {} if value is None else {name: value}


def _along_dim(named: Named) -> Named:
    return _set(named, "index", _size(named.get("self"), named.get("dim")))


def _rows(named: Named) -> Named:
    return _set(named, "indices", _size(named.get("weight"), ScalarValue(type="int", value="0")))


def _counted(named: Named) -> Named:
    count = named.get("num_weights")
    number = int(count.value) if isinstance(count, ScalarValue) and count.type == "int" else 0
    return _set(named, "indices", number)


def _classes(named: Named) -> Named:
    scores = named.get("self")
    dim = 1 if isinstance(scores, TensorValue) and len(scores.shape) > 1 else 0
    return _set(named, "target", _size(scores, ScalarValue(type="int", value=str(dim))))


def _by_dimension(named: Named) -> Named:
    """`index`: entry n of the list looks up dimension n."""
    table, indices = named.get("self"), named.get("indices")
    if not isinstance(table, TensorValue) or not isinstance(indices, ListValue):
        return {}
    if any(isinstance(one, TensorValue) and one.dtype in ("bool", "uint8") for one in indices.items):
        return {}  # a mask looks up as many dimensions as it has
    sizes = (*table.shape, *([0] * len(indices.items)))
    items = tuple(_below(one, size) or one for one, size in zip(indices.items, sizes, strict=False))
    return {"indices": ListValue(items=items)}


def _accumulating(named: Named) -> Named:
    flag = named.get("accumulate")
    return _by_dimension(named) if isinstance(flag, ScalarValue) and flag.value == "True" else {}


_RULES: dict[str, Callable[[Named], Named]] = {
    "embedding": _rows,
    "embedding_dense_backward": _counted,
    "gather": _along_dim,
    "index": _by_dimension,
    "index_add": _along_dim,
    "index_add_": _along_dim,
    "index_put": _accumulating,
    "index_put_": _accumulating,
    "_index_put_impl_": _accumulating,
    "_unsafe_index": _by_dimension,
    "index_select": _along_dim,
    "nll_loss_backward": _classes,
    "nll_loss_forward": _classes,
    "nll_loss2d_backward": _classes,
    "nll_loss2d_forward": _classes,
    "scatter_add": _along_dim,
    "scatter_add_": _along_dim,
}
