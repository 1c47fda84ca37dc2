"""The model level of the check: the model of the run on the device, held against a golden run of the whole model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from day0.analyzers.modules.compare import Compared, compare_modules
from day0.analyzers.modules.logits import GREEDY, SAMPLED, choose_history, judge_logits
from day0.analyzers.modules.passes import own_calls, picture_calls, plain_tokens, prompt_length, token_calls
from day0.analyzers.modules.places import Logits, Models, all_three, build_models, followed
from day0.analyzers.modules.ways import Way, batched, compare_ways, takes_mask
from day0.errors import USER_ERRORS, Day0Error
from day0.models.memory import module_bytes
from day0.models.pictures import picture_inputs
from day0.models.spec import ModelSpec
from day0.models.workload import IMAGE_PROMPT, token_ids
from day0.playbook import ModelLevelPlan
from day0.records.modules import LogitsResult, ModelCheck, WaysResult
from day0.registry.call_guard import RefusedCall
from day0.registry.results import WrongResult

__all__ = ["Progress", "check_model", "too_large"]

MODEL_ERRORS: tuple[type[BaseException], ...] = (*USER_ERRORS, Day0Error, WrongResult)
"""What a model or a kernel may raise."""

PICTURE_SEED = 8

Progress = Callable[[str, int, int], None]


def check_model(
    spec: ModelSpec,
    device: torch.device,
    plan: ModelLevelPlan,
    *,
    seed: int = 0,
    decode: bool = True,
    pictures: bool = True,
    progress: Progress = lambda *_: None,
) -> ModelCheck:
    """Compare the model on a device with itself in float64 and in its own dtype on the CPU.

    Whatever lock is active in this context serves the device; the golden and the yardstick run without it. Without
    `decode` only whole prompts are run, without `pictures` none with an image: a lock made for a trace without such a
    phase has nothing for its calls.
    A model that is too large for the plan is skipped, with the reason; so is one that cannot be built or run on the CPU,
    and one that makes calls which neither the device nor the lock has. One that stops on the device otherwise fails.
    """
    size = too_large(spec, plan)
    if size:
        return ModelCheck(status="skipped", reason=size, seed=seed)
    progress(f"building {spec.class_name} three times", 0, 1)
    try:
        models = build_models(spec, device)
    except MODEL_ERRORS as error:
        return ModelCheck(status="skipped", reason=f"it cannot be built: {_first_line(error)}", seed=seed)
    try:
        return _checked(spec, models, plan, seed, (decode, pictures), progress)
    except (NotImplementedError, RefusedCall) as error:
        reason = f"it makes a call that neither the device nor the lock has: {_first_line(error)}"
        return ModelCheck(status="skipped", reason=reason, seed=seed)
    except MODEL_ERRORS as error:
        return ModelCheck(status="fail", reason=f"the pass stopped: {_first_line(error)}", seed=seed)


def too_large(spec: ModelSpec, plan: ModelLevelPlan) -> str:
    """Say why a model is not run three times on this machine, or return an empty text. Allocates nothing."""
    try:
        size = module_bytes(spec.build_own("meta"))
    except MODEL_ERRORS as error:
        return f"its size is not known, since it cannot be built on meta: {_first_line(error)}"
    if size <= plan.max_mib << 20:
        return ""
    return (
        f"its weights take {size / 2**20:,.0f} MiB, and the model level runs three copies of at most {plan.max_mib} MiB: "
        "trace with --shrink, or raise check.model.max_mib in the playbook"
    )


def _checked(
    spec: ModelSpec, models: Models, plan: ModelLevelPlan, seed: int, phases: tuple[bool, bool], progress: Progress
) -> ModelCheck:
    if spec.phases:
        return _verdict(compare_modules(models, own_calls(spec.phases), spec.dtype, progress), _Said(), seed, 0)
    decode, pictures = phases
    why_not = plain_tokens(spec, models.same) or ("" if decode else "the trace has no phase with tokens in a cache")
    tokens, note = prompt_length(spec, plan.new_tokens + 1)
    ids_BS = token_ids(spec, 1, tokens + 1, seed=seed)
    calls = batched(ids_BS[:, :tokens]) if why_not else token_calls(ids_BS)
    compared = compare_modules(models, calls, spec.dtype, progress)
    said = _Said(notes=[note] if note else [])
    compared = _with_pictures(spec, models, compared, said, progress) if pictures else compared
    if spec.image_inputs is not None and not pictures:
        said.notes.append("its vision branch was not run: the trace has no phase with an image")
    if why_not:
        said.notes.append(f"decoding was left out: {why_not}")
        other_BS = token_ids(spec, 1, tokens, seed=seed + 1)
        _in_batches(models, torch.cat((ids_BS[:, :tokens], other_BS)), None, said, progress)
    else:
        _decode(models, ids_BS[:, :tokens], plan, seed, said, progress)
    return _verdict(compared, said, seed, tokens)


def _with_pictures(spec: ModelSpec, models: Models, compared: Compared, said: _Said, progress: Progress) -> Compared:
    """Add a pass of two prompts with an image each: they lie in one row of patches, and must not see each other."""
    ids_BS = token_ids(spec, 2, max(IMAGE_PROMPT, 12), seed=PICTURE_SEED)
    try:
        if picture_inputs(spec, models.same, ids_BS, lambda one: one) is None:
            return compared
        seen = compare_modules(models, picture_calls(spec, ids_BS), spec.dtype, progress)
    except (NotImplementedError, RefusedCall) as error:
        said.notes.append(f"its vision branch was not run: {_first_line(error)}")
        return compared
    first = compared if compared.first_divergent or compared.reason else seen
    return Compared(
        modules=(*compared.modules, *seen.modules),
        first_divergent=first.first_divergent,
        reason=first.reason,
        non_finite=compared.non_finite or seen.non_finite,
        choices=compared.choices + seen.choices,
        moved=compared.moved + seen.moved,
        wrong=compared.wrong + seen.wrong,
        lost=compared.lost or seen.lost,
    )


@dataclass(kw_only=True)
class _Said:
    notes: list[str] = field(default_factory=list)
    ways: list[WaysResult] = field(default_factory=list)
    logits: list[LogitsResult] = field(default_factory=list)


def _decode(
    models: Models,
    prompt_BS: torch.Tensor,
    plan: ModelLevelPlan,
    seed: int,
    said: _Said,
    progress: Progress,
) -> None:
    progress("greedy and sampled decoding", 0, 3)
    history = choose_history(models.golden, prompt_BS, plan.new_tokens, seed)
    ids_BS = history.ids_BS[:, :-1]
    calls = token_calls(ids_BS, plan.new_tokens - 1)
    decoded = followed(models, calls, history.logits_BSV, history.choices)
    said.logits += [judge_logits(history, row, decoded) for row in (GREEDY, SAMPLED)]
    one_by_one = _way("one token after the other", decoded) if plan.new_tokens > 1 else None
    _in_batches(models, ids_BS, one_by_one, said, progress)


def _in_batches(models: Models, ids_BS: torch.Tensor, one_by_one: Way | None, said: _Said, progress: Progress) -> None:
    """Run two rows of tokens [2, S] at once, one of them alone, and padded; hold them against each other."""
    progress("prefill against decode", 1, 3)
    together = all_three(models, batched(ids_BS))
    if one_by_one is not None:
        said.ways.append(compare_ways("prefill against decode", _way("all tokens at once", together), one_by_one))
    progress("a row alone and in a batch", 2, 3)
    alone = _way("alone", all_three(models, batched(ids_BS[:1])))
    in_batch = _way("in a batch", together, rows=1)
    said.ways.append(compare_ways("a row alone and in a batch", alone, in_batch))
    if takes_mask(models.same):
        padded = all_three(models, batched(ids_BS, padded=True))
        behind = _way("in a padded batch", padded, rows=1, tokens=ids_BS.shape[1])
        said.ways.append(compare_ways("a row alone and in a padded batch", alone, behind))


def _way(name: str, logits: Logits, *, rows: int | None = None, tokens: int | None = None) -> Way:
    golden, same, device = (one[:rows, :tokens].flatten(0, 1) for one in (logits.golden, logits.same, logits.device))
    return Way(name=name, golden=golden, same=same, device=device, lost=logits.lost)


def _verdict(compared: Compared, said: _Said, seed: int, tokens: int) -> ModelCheck:
    reasons = (
        [f"first divergent module: {compared.first_divergent}: {compared.reason}"] if compared.first_divergent else []
    )
    if not reasons and compared.reason:
        reasons.append(compared.reason)
    holes = compared.non_finite
    if holes is not None and not holes.also_on_cpu:
        reasons.append(f"{holes.module} ({holes.class_name}) makes {holes.elements} NaN or infinite elements")
    reasons += [f"{one.name}: {one.reason}" for one in said.ways if one.status == "fail"]
    reasons += [f"{one.decoding} decoding: {one.reason}" for one in said.logits if one.status == "fail"]
    return ModelCheck(
        status="fail" if reasons else "pass",
        reason=reasons[0] if reasons else "",
        golden="float64 on cpu",
        seed=seed,
        prompt_tokens=tokens,
        first_divergent=compared.first_divergent,
        non_finite=holes,
        choices=compared.choices,
        choices_moved=compared.moved,
        choices_wrong=compared.wrong,
        choices_lost=compared.lost,
        modules=compared.modules,
        ways=tuple(said.ways),
        logits=tuple(said.logits),
        notes=tuple(said.notes),
    )


def _first_line(error: BaseException) -> str:
    text = (str(error).strip().splitlines() or [""])[0][:300]
    return f"{type(error).__name__}: {text}"
