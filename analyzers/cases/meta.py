"""Whether a derived call is a valid one: torch's meta kernels and the contracts' shape functions say so, without values."""

from __future__ import annotations

import warnings

import torch

from day0.analyzers.cases.errors import MAKE_ERRORS
from day0.records import Signature
from day0.reference_ops.signatures import materialise, resolve, tensors_in
from day0.reference_ops.torch_ops import register_operators

__all__ = ["refused_on_meta", "results_on_meta"]


def results_on_meta(signature: Signature) -> tuple[torch.Tensor, ...] | None:
    """Return the results of a call without values; None where its meta kernel refuses it or there is none."""
    register_operators()
    try:
        args, kwargs = materialise(signature, "meta")
        with torch.no_grad():
            return tuple(tensors_in(resolve(signature.op)(*args, **kwargs)))
    except MAKE_ERRORS:
        return None


def refused_on_meta(signature: Signature) -> str:
    """Return why a call is no valid one, or nothing. An operator without a meta kernel says nothing."""
    register_operators()
    try:
        args, kwargs = materialise(signature, "meta")
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            resolve(signature.op)(*args, **kwargs)
    except NotImplementedError:
        return ""
    except MAKE_ERRORS as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
    return ""
