"""Random operators: what each must give whatever stream of numbers a device has."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from day0.analyzers.cases.case import CaseInputs
from day0.analyzers.judging.calls import named
from day0.analyzers.judging.distributions import follows, independent, mean_is, rows_differ
from day0.analyzers.judging.exact import exact
from day0.analyzers.judging.floats import floats
from day0.analyzers.judging.judgement import Judgement
from day0.analyzers.judging.kinds import is_random, short_name
from day0.analyzers.judging.words import first_true, readable, text_at
from day0.reference_ops._spec import DEFAULT_TOLERANCE

__all__ = ["draws", "judge_draws"]

Arguments = dict[str, Any]
Results = tuple[torch.Tensor, ...]


def draws(op: str, inputs: CaseInputs) -> bool:
    """Say whether this call draws numbers: dropout outside training does not, nor does attention without dropout."""
    given = named(op, inputs)
    if given.get("train", True) is False or given.get("training", True) is False:
        return False
    chance = given.get("dropout_p")
    return is_random(op) if chance is None else chance > 0.0


def judge_draws(op: str, inputs: CaseInputs, got: Results) -> Judgement:
    """Judge all results of a random operator together; a note where nobody has said what it draws."""
    rule = _RULES.get(short_name(op))
    if rule is None:
        note = f"nobody has said how the numbers of {short_name(op)} are distributed: only their layout was judged"
        return Judgement(passed=True, rule="distribution", notes=(note,))
    last = Judgement(passed=True, rule="distribution")
    for found in rule(named(op, inputs), tuple(one.detach().cpu() for one in got)):
        if not found.passed:
            return found
        last = found if found.limit is not None else last
    return last


Rule = Callable[[Arguments, Results], "list[Judgement]"]


def _uniform(given: Arguments, got: Results) -> list[Judgement]:
    low, high = float(given.get("from", 0.0)), float(given.get("to", 1.0))
    value = got[0]
    if low == high:
        return [exact(value, torch.full_like(value, low))]
    share = (value.to(torch.float64) - low) / (high - low)
    return _continuous(value, low, high, lambda x: (x - low) / (high - low), share, "uniform")


def _normal(given: Arguments, got: Results) -> list[Judgement]:
    mean, std = given.get("mean", 0.0), given.get("std", 1.0)
    value = got[0].to(torch.float64)
    if isinstance(mean, torch.Tensor) or isinstance(std, torch.Tensor):
        value, mean, std = (value - mean) / std, 0.0, 1.0
    if not std:
        return [exact(got[0], torch.full_like(got[0], mean))]
    scaled = (value - mean) / std
    return _continuous(scaled, -math.inf, math.inf, _normal_share, _normal_share(scaled), "normal", like=got[0])


def _normal_share(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * torch.erfc(-x / math.sqrt(2.0))


def _exponential(given: Arguments, got: Results) -> list[Judgement]:
    scaled = got[0].to(torch.float64) * float(given.get("lambd", 1.0))
    share = 1.0 - torch.exp(-scaled)
    return _continuous(scaled, 0.0, math.inf, lambda x: 1.0 - torch.exp(-x), share, "exponential", like=got[0])


def _log_normal(given: Arguments, got: Results) -> list[Judgement]:
    if got[0].itemsize < 4:  # a half type rounds the logarithm by more than the draws tell
        return [_inside(got[0], ~(got[0] > 0), "above 0")]
    return _normal(given, (got[0].to(torch.float64).log(),))


def _cauchy(given: Arguments, got: Results) -> list[Judgement]:
    scaled = (got[0].to(torch.float64) - float(given["median"])) / float(given["sigma"])

    def share(x: torch.Tensor) -> torch.Tensor:
        return 0.5 + torch.atan(x) / math.pi

    return [follows(scaled, share, share, "like Cauchy's"), independent(share(scaled))]


def _continuous(
    value: torch.Tensor,
    low: float,
    high: float,
    at_or_below: Callable[[torch.Tensor], torch.Tensor],
    share: torch.Tensor,
    what: str,
    like: torch.Tensor | None = None,
) -> list[Judgement]:
    """Judge range, distribution, neighbours and rows; narrow dtypes round their draws by up to one unit."""
    dtype = (like if like is not None else value).dtype
    unit = float(torch.finfo(dtype).eps) if dtype.is_floating_point else 0.0
    wide = value.to(torch.float64)

    def moved(direction: float) -> Callable[[torch.Tensor], torch.Tensor]:
        def one(x: torch.Tensor) -> torch.Tensor:
            return at_or_below(x + direction * unit * x.abs().clamp(min=unit)).clamp(0.0, 1.0)

        return one

    outside = (wide < low) | (wide > high) | torch.isnan(wide)
    # A draw of float16 is one of 2048 numbers between 1/2 and 1: equal ones are common there.
    chance = max(unit, 2.0**-24)
    return [
        _inside(value, outside, f"between {low:g} and {high:g}"),
        follows(wide, moved(1.0), moved(-1.0), what),
        independent(share),
        rows_differ(value, min(0.5, 4.0 * chance)),
    ]


def _inside(value: torch.Tensor, outside: torch.Tensor, what: str) -> Judgement:
    if not bool(outside.any()):
        return Judgement(passed=True, rule="distribution")
    index = first_true(outside)
    reason = f"{int(outside.sum())} draws are not {what}"
    got = text_at(readable(value), index)
    return Judgement(passed=False, rule="distribution", reason=reason, worst_index=index, worst_got=got)


def _bernoulli(given: Arguments, got: Results) -> list[Judgement]:
    value = got[0].to(torch.float64)
    chance = given.get("p")
    chance = given["self"].to(torch.float64) if chance is None else chance
    chances = chance.to(torch.float64) if isinstance(chance, torch.Tensor) else torch.tensor(float(chance))
    chances = chances.expand(value.shape).to(torch.float64)
    outside = ((value != 0) & (value != 1)) | ((chances == 0) & (value != 0)) | ((chances == 1) & (value != 1))
    same = float((chances**2 + (1 - chances) ** 2).max()) if chances.numel() else 1.0
    return [
        _inside(got[0], outside, "0 or 1 as their chance allows"),
        mean_is(value - chances, 0.0, -1.0, 1.0, "the share of ones beside its chance"),
        independent((value - chances + 1.0) / 2.0),
        rows_differ(value, same),
    ]


def _dropout(given: Arguments, got: Results) -> list[Judgement]:
    """Values stay, larger by 1 / (1 - p), or become 0; the mask says which."""
    source, chance = given["input"], float(given["p"])
    scale = 1.0 / (1.0 - chance) if chance < 1.0 else 0.0
    golden = source.to(torch.float64) * scale
    kept = got[1] if len(got) > 1 else (got[0] != 0) | (golden == 0)
    expected = torch.where(kept, golden, 0.0)
    values = floats(got[0], expected, expected.to(got[0].dtype), DEFAULT_TOLERANCE, pointwise=True)
    share = kept.to(torch.float64) if len(got) > 1 else kept[source != 0].to(torch.float64)
    same = chance**2 + (1.0 - chance) ** 2
    return [
        values,
        mean_is(share, 1.0 - chance, 0.0, 1.0, "the share of values that stay"),
        independent((kept.to(torch.float64) - (1.0 - chance) + 1.0) / 2.0),
        rows_differ(kept, same)
        if len(got) > 1 or bool((source != 0).all())
        else Judgement(passed=True, rule="distribution"),
    ]


def _integers(given: Arguments, got: Results) -> list[Judgement]:
    low, high = given.get("low", given.get("from", 0)) or 0, given.get("high", given.get("to"))
    value = got[0].to(torch.float64)
    if high is None:
        return [_inside(got[0], value < 0, "0 or more")]
    count = max(1, int(high) - int(low))

    def at_or_below(x: torch.Tensor) -> torch.Tensor:
        return ((x.floor() - low + 1) / count).clamp(0.0, 1.0)

    whole = (value >= low) & (value < high) & (value == value.floor())
    return [
        _inside(got[0], ~whole, f"whole numbers from {low} to {int(high) - 1}"),
        follows(value, at_or_below, lambda x: at_or_below(x - 1), "uniform"),
        independent((value - low + 0.5) / count),
        rows_differ(got[0], 1.0 / count),
    ]


def _permutation(given: Arguments, got: Results) -> list[Judgement]:
    value = got[0].to(torch.float64)
    count = int(given["n"])
    every = torch.arange(count, dtype=torch.float64)
    if value.shape != every.shape or not torch.equal(value.sort().values, every):
        return [Judgement(passed=False, rule="distribution", reason=f"not every number below {count} comes once")]
    # Of 14 numbers and more the order they had is drawn once in 1e11.
    reason = "the numbers come in the order they had" if count >= 14 and torch.equal(value, every) else ""
    return [Judgement(passed=not reason, rule="distribution", reason=reason)]


def _multinomial(given: Arguments, got: Results) -> list[Judgement]:
    weights = torch.atleast_2d(given["self"].to(torch.float64))
    places = torch.atleast_2d(got[0])
    outside = (places < 0) | (places >= weights.shape[-1])
    if bool(outside.any()):
        return [_inside(places, outside, "places of the weights")]
    found = [_inside(places, weights.gather(-1, places) <= 0, "places with a weight above 0")]
    ordered = places.sort(-1).values
    if not given.get("replacement", False):
        twice = bool((ordered[..., 1:] == ordered[..., :-1]).any())
        reason = "a place is drawn twice without replacement" if twice else ""
        found.append(Judgement(passed=not twice, rule="distribution", reason=reason))
        if places.shape[-1] > 1:
            return found
    share = (weights / weights.sum(-1, keepdim=True)).cumsum(-1)
    before = torch.nn.functional.pad(share[..., :-1], (1, 0))
    for row in range(share.shape[0]) if share.shape[0] <= 64 else ():
        found.append(follows(places[row], _at(share[row]), _at(before[row]), "like the weights"))
    middle = (share + before).gather(-1, places) / 2.0
    found.append(mean_is(middle, 0.5, 0.0, 1.0, "where in the running sum of weights the draws fall"))
    return found


def _at(table: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that looks places up."""
    return lambda places: table[places.to(torch.int64)]


def _poisson(given: Arguments, got: Results) -> list[Judgement]:
    value = got[0].to(torch.float64)
    return [_inside(got[0], (value < 0) | (value != value.floor()), "whole numbers of 0 or more")]


_RULES: dict[str, Rule] = {
    "bernoulli": _bernoulli,
    "cauchy": _cauchy,
    "dropout": _dropout,
    "exponential": _exponential,
    "log_normal": _log_normal,
    "multinomial": _multinomial,
    "native_dropout": _dropout,
    "normal": _normal,
    "normal_functional": _normal,
    "poisson": _poisson,
    "rand": _uniform,
    "rand_like": _uniform,
    "randint": _integers,
    "randint_like": _integers,
    "randn": _normal,
    "randn_like": _normal,
    "random": _integers,
    "randperm": _permutation,
    "uniform": _uniform,
}
