"""Every operator, every sample: what its contract promises. And every check can fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from day0.reference_ops._spec import Operator, Sample
from day0.reference_ops.load import load_operators
from tests.reference_ops import contract, counts

OPERATORS = load_operators()
NAMES = sorted(OPERATORS)
each = pytest.mark.parametrize("name", NAMES)


def samples(name: str) -> list[Sample]:
    return list(OPERATORS[name].samples(torch.Generator().manual_seed(5)))


@each
def test_every_kind_of_sample_is_there(name: str) -> None:
    assert {sample.kind for sample in samples(name)} == {"small", "odd", "corner", "traced"}


@each
def test_float32_is_float64_within_the_operators_own_floor(name: str) -> None:
    taken = [contract.check_precision(OPERATORS[name], sample, torch.float32) for sample in samples(name)]
    assert any(taken)


@each
@pytest.mark.parametrize("dtype", contract.HALF)
def test_half_types_are_float64_within_their_rounding(name: str, dtype: torch.dtype) -> None:
    for sample in samples(name):
        contract.check_precision(OPERATORS[name], sample, dtype)


@each
def test_what_is_promised_without_values_holds(name: str) -> None:
    for sample in samples(name):
        contract.check_fake(OPERATORS[name], sample)


ANY_LEADING = {"fused_add_rms_norm", "gated_activation", "hadamard", "mxfp4_decode", "rms_norm"}


@pytest.mark.parametrize("name", [name for name in NAMES if OPERATORS[name].schema])
def test_one_more_dimension_is_refused_or_a_batch(name: str) -> None:
    taken = contract.check_leading(OPERATORS[name], samples(name)[0])
    # docs/decisions/0004 names them.
    assert taken == (name.removeprefix("day0::") in ANY_LEADING)


@each
def test_memory_is_left_alone(name: str) -> None:
    for sample in samples(name):
        contract.check_memory(OPERATORS[name], sample)


@each
def test_strides_offsets_and_neighbours_do_not_matter(name: str) -> None:
    for sample in samples(name):
        contract.check_guards(OPERATORS[name], sample)


@each
def test_words_and_counts(name: str) -> None:
    contract.check_words(OPERATORS[name])
    for sample in samples(name):
        counts.check_counts(OPERATORS[name], sample)


QUANTISED = [name for name in NAMES if OPERATORS[name].quantised is not None]


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_reference_is_near_and_not_the_same(name: str) -> None:
    for sample in samples(name):
        contract.check_quantised(OPERATORS[name], sample)


# --- every check can fail: one planted fault each


def faulty(name: str, **changes: Any) -> Operator:
    return replace(OPERATORS[name], **changes)


def fails(check: Callable[..., Any], operator: Operator, *rest: Any) -> str:
    """Run a check on the samples until it fails; return what it says."""
    for sample in operator.samples(torch.Generator().manual_seed(5)):
        try:
            check(operator, sample, *rest)
        except AssertionError as error:
            return str(error)
    return ""


NORM = OPERATORS["day0::rms_norm"]


def test_a_result_that_is_slightly_off_is_seen() -> None:
    def off(*args: Any, **kwargs: Any) -> torch.Tensor:
        out: torch.Tensor = NORM.reference(*args, **kwargs)
        return out if out.dtype == torch.float64 else out * (1 + 3e-5)

    assert "relative error" in fails(contract.check_precision, replace(NORM, reference=off), torch.float32)


def test_half_types_that_are_computed_in_half_are_seen() -> None:
    def coarse(q: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, state = OPERATORS["day0::kda_recurrent"].reference(q, *rest)
        return (out, state) if q.dtype != torch.bfloat16 else (out * (1 - 2**-7), state)

    operator = faulty("day0::kda_recurrent", reference=coarse)
    assert "relative error" in fails(contract.check_precision, operator, torch.bfloat16)


def test_another_choice_is_seen() -> None:
    def wrong(logits: torch.Tensor, *rest: Any, **kwargs: Any) -> Any:
        values, indices = OPERATORS["aten::topk"].reference(logits, *rest, **kwargs)
        return values, indices if logits.dtype == torch.float64 else (indices + 1) % logits.shape[-1]

    assert "index" in fails(contract.check_precision, faulty("aten::topk", reference=wrong), torch.float32)


def test_a_wrong_fake_is_seen() -> None:
    assert NORM.fake is not None
    fake = NORM.fake
    turned = replace(NORM, fake=lambda *args: fake(*args).transpose(0, -1).contiguous().transpose(0, -1))
    other = replace(NORM, fake=lambda *args: fake(*args).to(torch.float64))
    assert fails(contract.check_fake, turned) and fails(contract.check_fake, other)


def test_another_meaning_of_a_leading_dimension_is_seen() -> None:
    def over_all(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        out: torch.Tensor = NORM.reference(x, *rest)
        return out * x.dim()

    assert "one more dimension" in fails(contract.check_leading, replace(NORM, reference=over_all))


@pytest.mark.parametrize("way", ["empty", "counts", "writes", "returns", "twice"])
def test_careless_memory_is_seen(way: str) -> None:
    calls: list[int] = []

    def careless(x: torch.Tensor, *rest: Any) -> Any:
        calls.append(1)
        out = NORM.reference(x, *rest)
        if way == "empty":
            return torch.cat((out, torch.empty(1)[None].expand(1, *out.shape[1:]))) if out.dim() == 2 else out
        if way == "counts":
            return out + len(calls)
        if way == "writes":
            x.mul_(2)
        return x if way == "returns" else (out, out) if way == "twice" else out

    said = fails(contract.check_memory, replace(NORM, reference=careless))
    expected = {
        "empty": ("poison", "another result"),
        "counts": ("another result",),
        "writes": ("was written to",),
        "returns": ("shares its memory",),
        "twice": ("shares its memory",),
    }
    assert any(text in said for text in expected[way]), said


@pytest.mark.parametrize("way", ["neighbour", "strides"])
def test_a_look_at_the_neighbours_is_seen(way: str) -> None:
    def careless(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        out: torch.Tensor = NORM.reference(x, *rest)
        if way == "neighbour" and x.storage_offset():
            x.as_strided((1,), (1,), x.storage_offset() - 1).fill_(0)
        if way == "neighbour":
            return out
        packed: torch.Tensor = NORM.reference(x.as_strided(x.shape, out.stride(), x.storage_offset()), *rest)
        return packed

    said = fails(contract.check_guards, replace(NORM, reference=careless))
    assert ("guard bytes" in said) if way == "neighbour" else ("differ in NaN" in said), said


@pytest.mark.parametrize("name", ["summary", "mathematics", "source", "verified_against", "attributes"])
def test_empty_words_are_seen(name: str) -> None:
    with pytest.raises(AssertionError):
        contract.check_words(faulty("day0::rms_norm", **{name: () if name == "attributes" else " "}))


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (lambda x, *_: -1, "day0::rms_norm: flops"),
        (lambda x, *_: 2.0, "day0::rms_norm: flops"),
        (lambda x, *_: x.shape[-1], "does not grow"),
        (lambda x, *_: 0 if x.device.type == "meta" else x.numel(), "depends on values"),
    ],
)
def test_wrong_counts_are_seen(count: Callable[..., Any], says: str) -> None:
    assert says in fails(counts.check_counts, replace(NORM, flops=count))


def test_a_quantised_reference_that_does_nothing_or_too_much_is_seen() -> None:
    indexer = OPERATORS["day0::lightning_indexer"]
    assert "changes nothing" in fails(contract.check_quantised, replace(indexer, quantised=indexer.reference))
    doubled = replace(indexer, quantised=lambda *args, **kwargs: 2 * indexer.reference(*args, **kwargs))
    assert "quantised result 0" in fails(contract.check_quantised, doubled)
