"""Run the graph of an exported program, node by node, as the module that it was.

The file names operators, sizes and places of modules; nothing in it is evaluated. Operators are looked up among those
that torch has, arithmetic on sizes among a few functions, and the stack of modules becomes empty modules with the
parameters, so that a trace shows paths and classes as it does for the model itself.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import nn

from day0.errors import Day0Error
from day0.models.exported_archive import DTYPES
from day0.reference_ops.signatures import resolve

__all__ = ["Place", "Run", "run_graph"]

_SKIPPED = frozenset(
    {
        "torch.ops.aten._assert_tensor_metadata.default",
        "torch.ops.aten._assert_scalar.default",
        "torch.ops.aten._assert_async.msg",
        "torch.ops.aten._assert_async.default",
        "torch.ops.aten.sym_constrain_range.default",
        "torch.ops.aten.sym_constrain_range_for_size.default",
    }
)
"""Checks of what held when the program was exported, the device among it."""

_ON_SIZES: Mapping[str, Callable[..., Any]] = {
    **{
        f"_operator.{name}": getattr(operator, name)
        for name in (
            "add",
            "sub",
            "mul",
            "floordiv",
            "mod",
            "truediv",
            "neg",
            "eq",
            "ne",
            "lt",
            "le",
            "gt",
            "ge",
            "and_",
            "or_",
        )
    },
    "_operator.getitem": operator.getitem,
    "_operator.pow": lambda one, other: one ** min(other, 64),
    "torch.sym_max": max,
    "torch.sym_min": min,
    "torch.sym_int": int,
    "torch.sym_float": float,
    "torch.sym_not": operator.not_,
    "torch.sym_sum": sum,
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.trunc": math.trunc,
    "math.sqrt": math.sqrt,
}

_REGISTERED_BY = {"transformers": "transformers.integrations.moe", "torchvision": "torchvision"}
"""Libraries that register operators of their own when they are imported."""

_LAYOUTS = {7: torch.strided}
_FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d, 4: torch.preserve_format}


class Place(nn.Module):
    """Where a node of the graph stood: carries parameters, and runs what it is given."""

    def forward(self, call: Callable[[], Any]) -> Any:
        """Run one node here, so that hooks see the module."""
        return call()


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What all nodes of one run share."""

    where: str
    device: torch.device
    place: Callable[[str], Place]
    """Finds the module of a path."""


def run_graph(run: Run, graph: Mapping[str, Any], values: dict[str, Any]) -> list[Any]:
    """Run the nodes of a graph on its inputs by name, and return its outputs.

    Raises Day0Error for an operator, an argument or a result that day0 does not know, and what the operators raise.
    """
    for node in graph["nodes"]:
        if node["target"] in _SKIPPED:
            continue
        args, kwargs = _arguments(run, node, values)
        function = _function(run, node["target"])
        path, kind = _module_of(node)
        call = _at_its_line(node, function, args, kwargs)
        result = run.place(path)(call) if kind else call()
        _keep(run, node, result, values)
    return [_argument(run, one, values) for one in graph["outputs"]]


# ------------------------------------------------------------------------------------------------- functions


def _function(run: Run, target: str) -> Callable[..., Any]:
    if target in _ON_SIZES:
        return _ON_SIZES[target]
    if target in _HIGHER:
        return lambda *args: _HIGHER[target](run, *args)
    parts = target.split(".")
    if target.startswith("torch.ops.higher_order."):
        what = f"it uses the higher-order operator {parts[-1]}, which day0 does not run"
        raise Day0Error(run.where, what, hint="export the model without it, or trace the model itself with py:")
    if len(parts) != 5 or parts[:2] != ["torch", "ops"]:
        what = f"it calls {target[:100]!r}, which is no operator of torch"
        raise Day0Error(run.where, what, hint="do not trust this file; save it again with torch.export.save")
    namespace, name, overload = parts[2:]
    if namespace in _REGISTERED_BY:
        with contextlib.suppress(ImportError):
            importlib.import_module(_REGISTERED_BY[namespace])
    try:
        return resolve(f"{namespace}::{name}.{overload}" if overload != "default" else f"{namespace}::{name}")
    except Day0Error:
        what = f"torch {torch.__version__} has no operator {namespace}::{name}.{overload}"
        hint = "a library that registers it may have to be installed; or export with this torch"
        raise Day0Error(run.where, what, hint=hint) from None


def _set_grad(run: Run, enabled: Any, graph: Any, *args: Any) -> Any:
    # Everything is traced without gradients.
    return graph(*args)


def _autocast(run: Run, device: Any, dtype: Any, enabled: Any, cache: Any, graph: Any, *args: Any) -> Any:
    if enabled:
        raise Day0Error(
            run.where, "it switches autocast on for a part", hint="export it under the dtype it shall run in"
        )
    return graph(*args)


_HIGHER: Mapping[str, Callable[..., Any]] = {
    "torch.ops.higher_order.wrap_with_set_grad_enabled": _set_grad,
    "torch.ops.higher_order.wrap_with_autocast": _autocast,
}


# ------------------------------------------------------------------------------------------------- arguments


def _arguments(run: Run, node: Mapping[str, Any], values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    args, kwargs = [], {}
    for one in node["inputs"]:
        value = _argument(run, one["arg"], values)
        if one.get("kind") == 2:
            kwargs[one["name"]] = value
        else:
            args.append(value)
    return args, kwargs


def _argument(run: Run, given: Mapping[str, Any], values: dict[str, Any]) -> Any:
    """Turn an argument of the file, `{"as_int": 2}`, into a value."""
    ((kind, value),) = given.items()
    if kind in ("as_int", "as_ints", "as_bool", "as_bools", "as_string", "as_strings"):
        return value
    if kind in ("as_float", "as_floats"):
        return [float(one) for one in value] if kind == "as_floats" else float(value)
    if kind == "as_none":
        return None
    if kind == "as_tensor":
        return _named(run, value["name"], values)
    if kind in ("as_tensors", "as_nested_tensors"):
        return [_named(run, one["name"], values) for one in value]
    if kind in ("as_sym_int", "as_sym_bool", "as_sym_float", "as_optional_tensor"):
        return _symbolic(run, value, values)
    if kind in ("as_sym_ints", "as_sym_bools", "as_sym_floats", "as_optional_tensors"):
        return [_symbolic(run, one, values) for one in value]
    if kind == "as_scalar_type" and value in DTYPES:
        return DTYPES[value]
    if kind == "as_device":
        return run.device
    if kind == "as_layout" and value in _LAYOUTS:
        return _LAYOUTS[value]
    if kind == "as_memory_format" and value in _FORMATS:
        return _FORMATS[value]
    if kind == "as_graph":
        return _sub_graph(run, value["graph"], values)
    raise Day0Error(
        run.where, f"it has an argument of kind {kind[3:]}, which day0 does not read", hint="see py: instead"
    )


def _symbolic(run: Run, value: Mapping[str, Any], values: dict[str, Any]) -> Any:
    ((kind, one),) = value.items()
    if kind == "as_name":
        return _named(run, one, values)
    return _argument(run, value, values)


def _named(run: Run, name: str, values: dict[str, Any]) -> Any:
    if name not in values:
        raise Day0Error(run.where, f"nothing before it makes {name[:100]!r}", hint="the file is damaged; save it again")
    return values[name]


def _sub_graph(run: Run, graph: Mapping[str, Any], values: dict[str, Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        names = [next(iter(one.values()))["name"] for one in graph["inputs"]]
        outputs = run_graph(run, graph, dict(zip(names, args, strict=True)))
        return outputs[0] if graph.get("is_single_tensor_return") else outputs

    return call


def _keep(run: Run, node: Mapping[str, Any], result: Any, values: dict[str, Any]) -> None:
    outputs = node["outputs"]
    several = len(outputs) > 1 and isinstance(result, (list, tuple))
    for given, value in zip(outputs, result if several else [result], strict=False):
        ((kind, names),) = given.items()
        if kind == "as_tensor":
            # A higher-order operator with one result returns a list of it.
            values[names["name"]] = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
        elif kind in ("as_tensors", "as_optional_tensors"):
            for one, item in zip(names, value, strict=True):
                name = one.get("name") or one.get("as_tensor", {}).get("name")
                if name:
                    values[name] = item
        elif kind in ("as_sym_int", "as_sym_bool", "as_sym_float") and "as_name" in names:
            if isinstance(value, int) and abs(value) >= 1 << 63:  # or a few nodes make a number as large as memory
                raise Day0Error(run.where, "it computes a size beyond 2^63", hint="give smaller sizes with --set")
            values[names["as_name"]] = value


# ---------------------------------------------------------------------------------------------- where it was

_FILE = re.compile(r'File "([^"\n]{1,400})", line (\d{1,9})')


def _module_of(node: Mapping[str, Any]) -> tuple[str, str]:
    """Return path and class of the innermost module of a node; empty where the file does not say."""
    stack = str(node.get("metadata", {}).get("nn_module_stack", "")).rsplit(";", 1)[-1]
    parts = stack.rsplit(",", 2)
    if len(parts) != 3 or parts[0] == parts[1] == parts[2]:
        return "", ""
    return parts[1].partition("@")[0], parts[2].rpartition(".")[2]


def module_paths(graph: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield path and class of every module that a graph names."""
    for node in graph["nodes"]:
        for entry in str(node.get("metadata", {}).get("nn_module_stack", "")).split(";"):
            parts = entry.rsplit(",", 2)
            if len(parts) == 3 and not parts[0] == parts[1] == parts[2]:
                yield parts[1].partition("@")[0], parts[2].rpartition(".")[2]


def _at_its_line(
    node: Mapping[str, Any], function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> Callable[[], Any]:
    """Return the call in a frame that says file and line of the model's own code, for the trace to show."""
    found = [
        one for one in _FILE.findall(str(node.get("metadata", {}).get("stack_trace", ""))) if "torch/" not in one[0]
    ]
    if not found:
        return lambda: function(*args, **kwargs)
    name, line = found[-1]
    # Relative, so that nobody opens what a file names.
    name = (
        "site-packages/" + name.rpartition("site-packages/")[2]
        if "site-packages/" in name
        else "/".join(name.split("/")[-2:])
    )
    code = _call.__code__.replace(co_filename=name.lstrip("/"), co_firstlineno=max(1, int(line) - 1))
    here = FunctionType(code, {"__builtins__": {}}, "exported")
    return lambda: here(function, args, kwargs)


def _call(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)
