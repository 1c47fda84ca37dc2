"""What the flags of one stage ask for, as one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from day0.cli.canary_ask import EVERYTHING, CanaryAsk
from day0.cli.held_lock import lock_mode
from day0.cli.plans import override_check, override_plan
from day0.cli.rundir import RunFolder
from day0.cli.session import Session
from day0.cli.talk import Talk
from day0.playbook import Playbook

__all__ = ["StageFlags"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageFlags:
    """Flags of inventory, register, check and canary; each stage has some of them."""

    force: bool = False
    device: str | None = None
    load: Sequence[Path] = ()
    without: Sequence[str] = ()
    namespace: str | None = None
    fallback: str | None = None
    replacements: bool | None = None
    replace: Sequence[str] = ()
    upgrade: Sequence[str] = ()
    check: bool = False
    strict: bool = False
    allow_unverified: bool = False
    locked: bool = False
    frozen: bool = False
    plant: Sequence[str] = ()
    jobs: int = 0
    case_timeout: float | None = None
    expect: Path | None = None
    thorough: bool = False
    level: str | None = None
    seed: int | None = None
    ask: CanaryAsk = EVERYTHING
    dry_run: bool = False

    def over(self, plan: Playbook) -> Playbook:
        """Return a plan with what the flags say of it."""
        plan = override_plan(
            plan,
            device=self.device,
            load=self.load,
            without=self.without,
            namespace=self.namespace,
            fallback=self.fallback,
            replacements=self.replacements,
            replace=self.replace,
            strict=self.strict,
            thorough=self.thorough,
            level=self.level,
            seed=self.seed,
        )
        return override_check(plan, case_timeout=self.case_timeout, expect=self.expect)

    def session(self, plan: Playbook, folder: RunFolder, talk: Talk, stage: str) -> Session:
        """Return the session of one stage. Faults are planted in this stage alone."""
        return Session(
            plan=plan,
            folder=folder,
            talk=talk,
            force=self.force or bool(self.upgrade),
            allow_unverified=self.allow_unverified,
            plants=tuple(self.plant),
            planted_stages=(stage,),
            lock_mode=lock_mode(locked=self.locked, frozen=self.frozen),
            upgrade=tuple(self.upgrade),
            jobs=self.jobs,
            ask=self.ask,
        )
