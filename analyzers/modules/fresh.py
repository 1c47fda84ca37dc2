"""Each module alone, with the inputs that it has in the golden run: its own error, without that of those before it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from day0.analyzers.modules.choices import Choices
from day0.analyzers.modules.measure import Measure, measure
from day0.analyzers.modules.places import CPU, Models, in_float64, in_own_dtype, on_device
from day0.analyzers.modules.record import ModuleCall
from day0.analyzers.modules.tree import held_tensors, rebuilt, tensors_of
from day0.errors import USER_ERRORS, Day0Error

__all__ = ["Skipped", "fresh"]

RUN_ERRORS: tuple[type[BaseException], ...] = (*USER_ERRORS, Day0Error)
"""What a model or a kernel may raise."""


class Skipped(str):
    """Why a module could not be called alone."""

    __slots__ = ()


def fresh(models: Models, call: ModuleCall, dtypes: list[torch.dtype], default: torch.dtype) -> Measure | Skipped:
    """Call one module on all three places with the golden's inputs, rounded to the dtypes it gets in its own dtype.

    `dtypes` are those of the tensors among its inputs, in order; where they are not known, floats become `default`.
    The golden is computed anew from the rounded inputs, so that their rounding is nobody's error.
    """
    path = call.key[1]
    if call.inputs is None:
        return Skipped("its inputs were too large to keep")
    try:
        modules = [model.get_submodule(path) for model in (models.golden, models.same, models.device)]
    except AttributeError:
        return Skipped("the model on the device has no module of this path")
    rounded = _rounded(call.inputs, dtypes, default)
    try:
        with in_float64(modules[0]) as golden:
            right = _results(modules[0], rebuilt(rounded, _widened), CPU)
        with in_own_dtype(modules[1], golden.made) as same:
            base = _results(modules[1], rebuilt(rounded, torch.clone), CPU)
    except RUN_ERRORS as error:
        return Skipped(f"it cannot be called alone: {_first_line(error)}")
    try:
        with on_device(modules[2], golden.made, same.made) as heard:
            got = _results(modules[2], rebuilt(rounded, lambda one: one.to(models.where, copy=True)), models.where)
    except NotImplementedError as error:
        return Skipped(f"neither the device nor the lock has what it calls: {_first_line(error)}")
    except RUN_ERRORS as error:
        return Measure(status="fail", rule="raised", reason=_first_line(error))
    return _wrong_choice(heard) or measure(got, base, right, lost=heard.lost)


def _results(module: nn.Module, inputs: tuple[Any, Any], device: torch.device) -> list[torch.Tensor]:
    args, kwargs = inputs
    with torch.no_grad():
        output = module(*args, **kwargs)
    return [one.detach().cpu() for one in (*tensors_of(output), *held_tensors((*args, *kwargs.values())))]


def _wrong_choice(heard: Choices) -> Measure | None:
    wrong = next((one for one in heard.moved if one.wrong), None)
    if wrong is None:
        return None
    reason = (
        f"{wrong.wrong} of {wrong.rows} rows choose otherwise: by {wrong.shortfall:.3g} in score, "
        f"and rounding explains {wrong.slack:.3g}"
    )
    return Measure(status="fail", rule="choice", reason=reason, error=wrong.shortfall, limit=wrong.slack)


def _rounded(inputs: tuple[Any, Any], dtypes: list[torch.dtype], default: torch.dtype) -> tuple[Any, Any]:
    given = tensors_of(inputs)
    known = {id(one): dtype for one, dtype in zip(given, dtypes, strict=True)} if len(given) == len(dtypes) else {}

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or tensor.element_size() == 1:
            return tensor.clone()
        dtype = known.get(id(tensor), default)
        return _finite_cast(tensor, dtype if dtype.is_floating_point else default)

    copied: tuple[Any, Any] = rebuilt(inputs, cast)
    return copied


def _finite_cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round; the smallest number of float64, with which masks are filled, becomes the smallest of the dtype."""
    largest = torch.finfo(dtype).max
    clamped = torch.where(torch.isinf(tensor), tensor, tensor.clamp(-largest, largest))
    return clamped.to(dtype)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    wide = tensor.is_floating_point() and tensor.element_size() > 1
    return tensor.to(torch.float64) if wide else tensor.clone()


def _first_line(error: BaseException) -> str:
    text = (str(error).strip().splitlines() or [""])[0][:300]
    return f"{type(error).__name__}: {text}"
