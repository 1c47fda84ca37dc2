"""How the whole model was judged: module by module, by phase, by its logits."""

from __future__ import annotations

from typing import Literal

from day0.records._base import Record

__all__ = ["LogitsResult", "ModelCheck", "ModuleError", "ModuleResult", "NonFinite", "WaysResult"]

ModuleStatus = Literal["pass", "fail", "not_comparable", "skipped"]


class ModuleError(Record):
    """The results of one call of a module against the golden. Errors are relative L2 errors."""

    status: ModuleStatus
    rule: str = ""
    """The rule that decided."""
    reason: str = ""
    error: float = 0.0
    yardstick: float = 0.0
    """The same error of the same dtype on the CPU."""
    limit: float = 0.0


class ModuleResult(Record):
    """One call of one module. Results stand in the order in which the calls ended."""

    phase: str
    """Which call of the model: `prefill`, `decode`, or a name that the source gave."""
    module: str
    class_name: str
    call: int
    """How often the module had been called before in this phase."""
    fresh: ModuleError
    """With the golden's own inputs: the module's own error."""
    cumulative: ModuleError
    """In the pass on the device: the error that has built up so far."""


class NonFinite(Record):
    """The first module that makes NaN or infinity of finite inputs, where the golden has none."""

    phase: str
    module: str
    class_name: str
    elements: int
    also_on_cpu: bool
    """Whether the same dtype on the CPU makes them too: then it is the dtype, not the device."""


class WaysResult(Record):
    """Two ways to the same logits: all tokens at once and one after the other, a row alone and in a batch."""

    name: str
    positions: int
    status: Literal["pass", "warning", "fail", "skipped"]
    reason: str = ""
    difference: float = 0.0
    """Relative L2 difference of the two ways on the device."""
    yardstick: float = 0.0
    """The same on the CPU in the same dtype."""
    limit: float = 0.0
    flips: int = 0
    """Positions at which the two ways have another best token."""
    unexplained_flips: int = 0
    """Those whose margin is larger than rounding explains."""


class LogitsResult(Record):
    """Logits by position, all with the history that the golden chose."""

    decoding: Literal["greedy", "sampled"]
    seed: int
    """Of the prompt, and of the draws where tokens were sampled."""
    prompt_tokens: int
    new_tokens: int
    status: Literal["pass", "fail", "skipped"]
    reason: str = ""
    kl_mean: float = 0.0
    """Mean over positions of the divergence of the device's distribution from the golden's, in nats."""
    kl_max: float = 0.0
    kl_mean_cpu: float = 0.0
    """The same for the same dtype on the CPU."""
    kl_max_cpu: float = 0.0
    kl_limit: float = 0.0
    """For the mean."""
    overlap: float = 1.0
    """Mean share of the golden's five best tokens that are among the device's five best."""
    overlap_cpu: float = 1.0
    first_divergent: int | None = None
    """Number of the first new token that the device would choose otherwise, from 0; None: none."""
    expected_token: int = -1
    got_token: int = -1
    margin: float = 0.0
    """How far the two are apart in the golden: in logits, or in probability where tokens were sampled."""
    explained: float = 0.0
    """How much of that rounding explains."""


class ModelCheck(Record):
    """The model level of a check."""

    status: Literal["pass", "fail", "skipped"]
    reason: str = ""
    """What failed first, or why it was not made."""
    golden: str = ""
    """What it was measured against."""
    seed: int = 0
    prompt_tokens: int = 0
    first_divergent: str = ""
    """The first module whose own error is too large, or else the first whose built-up error is: path, class, phase."""
    non_finite: NonFinite | None = None
    choices: int = 0
    """Rows of experts or tokens that were chosen in the pass on the device."""
    choices_moved: int = 0
    """Rows that fell otherwise within rounding and were set to the golden's choice, so that the rest can be compared."""
    choices_wrong: int = 0
    choices_lost: bool = False
    """Whether choices were made by other operators than in the golden, so that they could not be followed."""
    modules: tuple[ModuleResult, ...] = ()
    ways: tuple[WaysResult, ...] = ()
    logits: tuple[LogitsResult, ...] = ()
    notes: tuple[str, ...] = ()
