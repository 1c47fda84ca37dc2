"""An operator that raises once, in the middle of a step: what real devices do when they are out of something."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Drill", "DrillError"]

STRIKES_AT = 25
"""Which operator of the step raises: some layers have written into their caches by then."""


class DrillError(RuntimeError):
    """What the operator raises."""


class Drill(TorchDispatchMode):
    """While active, lets one operator raise, once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's modes carry no annotations
        self.operator = ""
        """The operator that raised."""
        self._seen = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator, or raise."""
        self._seen += 1
        if self._seen >= STRIKES_AT and not self.operator:
            self.operator = func.name()
            raise DrillError(f"a drill: {self.operator} raises once")
        return func(*args, **(kwargs or {}))
