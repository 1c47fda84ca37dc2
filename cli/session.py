"""What the stages of one run share: the plan, the folder, and things that are opened once and only if needed."""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from day0 import __version__
from day0.cli.canary_ask import EVERYTHING, CanaryAsk
from day0.cli.rundir import RunFolder
from day0.cli.talk import Talk
from day0.errors import Day0Error
from day0.hashing import hash_json
from day0.playbook import Playbook

if TYPE_CHECKING:
    import torch

    from day0.devices.profile import DeviceProfile
    from day0.devices.sim.planting import Planting
    from day0.implementation import Implementation
    from day0.models.spec import ModelSpec

__all__ = ["PLANTED_STAGES", "LockMode", "Session", "environment"]

LockMode = Literal["update", "locked", "frozen"]

PLANTED_STAGES = ("check", "canary")
"""Stages that run on the device, where faults can be planted."""


def environment() -> dict[str, str]:
    """Return the versions that a result depends on."""
    facts = {"python": platform.python_version(), "platform": platform.platform(), "day0": __version__}
    for name in ("torch", "transformers"):
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = "not installed"
    return facts


@dataclass(kw_only=True)
class Session:
    """One command at work on one run folder."""

    plan: Playbook
    folder: RunFolder
    talk: Talk
    force: bool = False
    allow_unverified: bool = False
    environment: dict[str, str] = field(default_factory=environment)
    plants: tuple[str, ...] = ()
    """Faults to plant on the simulated device."""
    planted_stages: tuple[str, ...] = PLANTED_STAGES
    """In which stages."""
    lock_mode: LockMode = "update"
    """`locked`: fail if the lock would change. `frozen`: take it unseen."""
    upgrade: tuple[str, ...] = ()
    """Choose anew for these operators only."""
    jobs: int = 0
    """Processes that check cases; 0: as many as fit."""
    ask: CanaryAsk = EVERYTHING
    """What of the canary is asked for."""

    def plants_in(self, stage: str) -> tuple[str, ...]:
        """Return the faults that are planted in a stage; there they are inputs like any other."""
        return tuple(dict.fromkeys(self.plants)) if stage in self.planted_stages else ()

    def planting(self, stage: str) -> AbstractContextManager[tuple[Planting, ...]]:
        """Plant what belongs into a stage while this lasts."""
        names = self.plants_in(stage)
        if not names:
            return nullcontext(())
        from day0.devices.faults.load import planted

        return planted(*names)

    def refuse_bad_plants(self) -> None:
        """Raise Day0Error for a fault that does not exist, and for a device that is not simulated."""
        if not self.plants:
            return
        from day0.devices.faults.load import find_faults

        find_faults(self.plants)
        if self.profile.torch_device != "sim":
            raise Day0Error(
                "--plant",
                f"faults are planted on the simulated device, and {self.profile.name} is torch's '{self.profile.torch_device}'",
                hint="take a profile of the simulated device, such as --device null",
            )

    @cached_property
    def spec(self) -> ModelSpec:
        """The model, opened but not built."""
        from day0.models.source import open_model

        self.talk.progress(f"opening {self.plan.model.source}")
        return open_model(self.plan.model)

    @cached_property
    def profile(self) -> DeviceProfile:
        """The device profile."""
        from day0.devices.profile import load_profile

        return load_profile(self.plan.device)

    @cached_property
    def device(self) -> torch.device:
        """The device itself, opened."""
        from day0.devices.open import open_torch_device

        return open_torch_device(self.profile)

    def measured_with(self, stage: str) -> dict[str, str]:
        """Return what a measurement on the device depends on beyond the sources: torch, the card, planted faults."""
        from day0.devices.open import device_title

        facts = {"torch": self.environment["torch"], "device": device_title(self.device)}
        planted = ", ".join(self.plants_in(stage))
        return {**facts, "planted": planted} if planted else facts

    @cached_property
    def implementations(self) -> tuple[Implementation, ...]:
        """Everything that could close a gap."""
        from day0.registry.collect import collect

        plan = self.plan.register_
        return collect(tuple(Path(name) for name in plan.load), without=plan.without)

    @cached_property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces to search, most specific first."""
        from day0.registry.namespaces import load_parents, search_path

        files = tuple(Path(name) for name in self.plan.register_.load)
        parents = load_parents(files, without=self.plan.register_.without)
        return search_path(self.plan.register_.namespace, parents)

    def hash_of(self, name: str) -> str:
        """Hash one named input of a stage. Names: see `cli/stages.py`."""
        plan = self.plan
        match name:
            case "model":
                return self.spec.fingerprint
            case "workload":
                captures = ["capture"] if plan.capture else []
                return hash_json([plan.workload.model_dump(mode="json"), plan.trace, *captures])
            case "versions":
                return hash_json({key: self.environment[key] for key in ("torch", "transformers")})
            case "device":
                return hash_json(self.profile.model_dump(mode="json"))
            case "implementations":
                return hash_json([[str(one.identity), one.source_hash] for one in self.implementations])
            case "choices":
                return hash_json([plan.register_.model_dump(mode="json", exclude={"load"}), list(self.namespaces)])
            case "cases":
                from day0.analyzers.cases.captured import index_hash

                captured = index_hash(self.folder.path)
                over = [one.until is not None and one.until < datetime.now(UTC).date() for one in plan.check.expect]
                return hash_json([plan.check.model_dump(mode="json"), *over, *([captured] if captured else [])])
            case "gates":
                return hash_json([plan.canary.model_dump(mode="json"), self.allow_unverified])
        raise KeyError(name)
