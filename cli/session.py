"""What the stages of one run share: the plan, the folder, and things that are opened once and only if needed."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from day0 import __version__
from day0.cli.rundir import RunFolder
from day0.cli.talk import Talk
from day0.hashing import hash_json
from day0.playbook import Playbook

if TYPE_CHECKING:
    import torch

    from day0.devices.profile import DeviceProfile
    from day0.implementation import Implementation
    from day0.models.spec import ModelSpec

__all__ = ["Session", "environment"]


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

    @cached_property
    def implementations(self) -> tuple[Implementation, ...]:
        """Everything that could close a gap."""
        from day0.registry.collect import collect

        return collect(tuple(Path(name) for name in self.plan.register_.load))

    @cached_property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces to search, most specific first."""
        from day0.registry.namespaces import load_parents, search_path

        return search_path(self.plan.register_.namespace, load_parents())

    def hash_of(self, name: str) -> str:
        """Hash one named input of a stage. Names: see `cli/stages.py`."""
        plan = self.plan
        match name:
            case "model":
                return self.spec.fingerprint
            case "workload":
                return hash_json([plan.workload.model_dump(mode="json"), plan.trace])
            case "versions":
                return hash_json({key: self.environment[key] for key in ("torch", "transformers")})
            case "device":
                return hash_json(self.profile.model_dump(mode="json"))
            case "implementations":
                return hash_json([[str(one.identity), one.source_hash] for one in self.implementations])
            case "choices":
                return hash_json([plan.register_.model_dump(mode="json", exclude={"load"}), list(self.namespaces)])
            case "cases":
                return hash_json(plan.check.model_dump(mode="json"))
            case "gates":
                return hash_json([plan.canary.model_dump(mode="json"), self.allow_unverified])
        raise KeyError(name)
