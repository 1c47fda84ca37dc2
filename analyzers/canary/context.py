"""What every canary stage gets, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from day0.analyzers.canary.gates import Figure
from day0.analyzers.canary.kept import Kept
from day0.analyzers.canary.operators import Timeline
from day0.analyzers.modules.measure import floor_of
from day0.analyzers.modules.places import Models
from day0.devices.profile import DeviceProfile
from day0.models.spec import ModelSpec
from day0.models.streamed import meta_bytes, streamed, streamed_reader
from day0.records import OperatorFigures, Receipt, Trace
from day0.registry.dispatch import suspended
from day0.registry.receipts import ActiveLock, Key

__all__ = ["CanaryContext", "Measured", "model_error"]


@dataclass(kw_only=True)
class CanaryContext:
    """The model on three places: the device, the CPU in its own dtype, and the CPU in float64.

    `models` is filled as stages build them, so that a later stage does not build a model again.
    """

    spec: ModelSpec
    device: torch.device
    active: ActiveLock
    evidence: Path
    """Folder for what a failed stage leaves behind."""
    prompt_tokens: int
    new_tokens: int
    models: dict[str, nn.Module] = field(default_factory=dict)
    must_run: frozenset[Key] | None = None
    """Entries of the lock that the stages have to reach, see `entries_to_run`; None: all of them."""
    trace: Trace | None = None
    """What the model calls; None where nobody has traced it."""
    profile: DeviceProfile | None = None
    """The device's peaks; None where nobody knows them."""
    timeline: Timeline = field(default_factory=Timeline)
    """The calls of a pass one after the other, for a person to look at."""
    kept: Kept | None = None
    """Where passes of the golden and the yardstick are kept; None: they are run anew."""
    about_cases: Mapping[str, Any] | None = None
    """What a reproducer has to know beside its case, see `reproducer.write`; None: none are written."""
    seed: int = 0
    soak_s: float = 2.0
    """Seconds of the last stage."""
    compile: str = ""
    """Backend of torch.compile that the model is compiled with; empty: it is not."""
    reference_mib: int | None = None
    """A reference whose weights take more is run one layer at a time; None: always whole."""

    def reference(self) -> nn.Module:
        """Return the model on the CPU in its own dtype and with its own code: the yardstick."""
        dtype = self.spec.dtype
        return self._made("reference", lambda: self._streamed(dtype) or self.spec.build_own("cpu"))

    def golden(self) -> nn.Module:
        """Return the model on the CPU in float64, with its own code."""
        wide = torch.float64
        return self._made("golden", lambda: self._streamed(wide) or self.spec.build_own("cpu").double())

    def _streamed(self, dtype: torch.dtype) -> nn.Module | None:
        """Return a model that holds one layer at a time, where the whole one would take more than is allowed."""
        if self.spec.read_weights is None or self.reference_mib is None:
            return None
        if meta_bytes(self.spec, dtype) <= self.reference_mib << 20:
            return None
        return streamed(self.spec, dtype)

    def expected(self) -> Callable[[str], torch.Tensor]:
        """Return what reads a weight or a buffer as the model has it in its own dtype, by name."""
        dtype, state = self.spec.dtype, self.reference().state_dict()
        if not any(one.is_meta for one in state.values()):
            return state.__getitem__
        read = streamed_reader(self.spec, dtype)
        return lambda name: read(name) if state[name].is_meta else state[name]

    def on_device(self) -> nn.Module:
        """Return the model on the device. The lock counts its calls by module from here on."""
        if "device" not in self.models:
            self.models["device"] = self.spec.build(str(self.device)).eval()
        model = self.models["device"]
        self.active.watch(model)
        return model

    def three(self) -> Models:
        """Return the model on all three places."""
        return Models(golden=self.golden(), same=self.reference(), device=self.on_device(), where=self.device)

    def _made(self, name: str, build: Callable[[], nn.Module]) -> nn.Module:
        if name not in self.models:
            with suspended():
                self.models[name] = build().eval()
        return self.models[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The figures of a stage, or the reason why it could not measure."""

    metrics: Mapping[str, float | Figure]
    """By name; a figure that could not be measured has no value and says why."""
    failure: str = ""
    unfit: str = ""
    """Why the model has nothing for this stage after all: it is skipped, and that is no failure."""
    receipts: tuple[Receipt, ...] = ()
    evidence: str = ""
    """The worst place, for the reason of a gate that fails."""
    diverged: str = ""
    """The operator or module that is wrong, where the stage itself knows it."""
    unrepeated: str = ""
    """The first operator that gives other bits when the same pass is run again; it is to blame if no module is wrong."""
    written: str = ""
    """Folder below the run folder where the stage itself wrote evidence."""
    next_command: str = ""
    operators: tuple[OperatorFigures, ...] = ()


UNFOLLOWED = 16.0
MAX_YARDSTICK = 0.5
"""A same-dtype result on the CPU that is further from float64 is no yardstick; something else is wrong."""


def model_error(
    got: torch.Tensor, reference: torch.Tensor, golden: torch.Tensor, *, followed: bool = True
) -> dict[str, float]:
    """Return relative L2 errors against the golden and their ratio; all tensors are on the CPU.

    The ratio has the floor of the model level below, one rounding of the dtype: on a small model the yardstick can be 0.
    Where the golden's choices of experts and tokens were not `followed`, it is 16: a near tie that falls otherwise moves
    a result by more than rounding does.
    Raises RuntimeError where the yardstick itself is so far off that a ratio to it says nothing.
    """
    gold = golden.to(torch.float64)
    size = float(torch.linalg.vector_norm(gold)) or 1.0
    error = float(torch.linalg.vector_norm(got.to(torch.float64) - gold)) / size
    yardstick = float(torch.linalg.vector_norm(reference.to(torch.float64) - gold)) / size
    if not yardstick <= MAX_YARDSTICK:
        raise RuntimeError(
            f"the golden cannot judge: the CPU's own {reference.dtype} result is {yardstick:.3g} away from float64"
        )
    floor = floor_of(reference.dtype) if followed else UNFOLLOWED * float(torch.finfo(reference.dtype).eps)
    return {"error": error, "yardstick": yardstick, "error_ratio": error / max(yardstick, floor)}
