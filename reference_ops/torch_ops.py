"""Make torch know our operators: schema, the reference on the CPU, shapes on meta, and nothing else.

A device without a kernel of its own then has a genuine gap, which torch itself reports.
"""

from __future__ import annotations

import threading

import torch

from day0.errors import Day0Error
from day0.reference_ops._spec import Operator
from day0.reference_ops.load import load_operators

__all__ = ["NAMESPACE", "register_operators"]

NAMESPACE = "day0"

_LOCK = threading.Lock()
_LIBRARIES: dict[str, torch.library.Library] = {}
"""The definition of each registered operator; torch forgets it when the library is collected."""


def register_operators() -> None:
    """Define every `day0::*` operator in torch. A second call does nothing.

    Raises Day0Error for an operator of ours without schema or shape function.
    """
    with _LOCK:
        for name, operator in sorted(load_operators().items()):
            if name.startswith(f"{NAMESPACE}::") and name not in _LIBRARIES:
                _LIBRARIES[name] = _define(operator)


def _define(operator: Operator) -> torch.library.Library:
    if not operator.schema or operator.fake is None:
        raise Day0Error(
            f"operator {operator.name}",
            "it has no schema or no fake, so torch cannot be told of it",
            hint="give both in its file",
        )
    name = operator.name.partition("::")[2]
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    library.define(f"{name}{operator.schema}")
    library.impl(name, operator.reference, "CPU")
    library.impl(name, operator.fake, "Meta")
    return library
