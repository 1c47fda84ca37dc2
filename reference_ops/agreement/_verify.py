"""Run comparisons and say what came out: one record for each, and its row in the table for people and for the docs."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Literal

from day0 import __version__
from day0.errors import USER_ERRORS, Day0Error
from day0.reference_ops.agreement._comparison import Comparison
from day0.reference_ops.agreement._load import load_comparisons
from day0.reference_ops.load import load_operator, load_operators

__all__ = ["COLUMNS", "Agreement", "cells", "choose", "distributions", "missing", "release", "verify"]

COLUMNS = ("operator", "variant", "compared with", "version", "largest error", "limit", "verdict")

OTHER_SIDE: tuple[type[BaseException], ...] = (Day0Error, *USER_ERRORS)
"""What a comparison may raise when the code of the other side has changed."""

Verdict = Literal["agrees", "differs", "broken", "not installed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """What one comparison gave."""

    comparison: Comparison
    version: str
    """Of the distribution that is compared with; empty where it is not installed."""
    verdict: Verdict
    """`broken`: the other side stopped with an exception, so nothing is known. Counts as a failure."""
    error: float | None = None
    reason: str = ""

    @property
    def failed(self) -> bool:
        """Whether somebody has to repair something. What is not installed is not a failure."""
        return self.verdict in {"differs", "broken"}


def choose(name: str | None) -> tuple[Comparison, ...]:
    """Return the comparisons of one operator, or all.

    Raises Day0Error for an operator that does not exist or is compared with nothing.
    """
    found = load_comparisons()
    if name is None:
        known = load_operators()
        for one in found:
            if one.operator not in known:
                raise Day0Error(
                    f"comparison with {one.against}",
                    f"there is no operator '{one.operator}'",
                    hint="correct its name in reference_ops/agreement",
                )
        return found
    load_operator(name)
    mine = tuple(one for one in found if one.operator == name)
    if not mine:
        raise Day0Error(
            f"operator {name}",
            "it is compared with no independent code, so there is nothing to verify",
            hint=f"`day0 ops show {name}` says what its reference rests on",
        )
    return mine


def verify(comparisons: Iterable[Comparison], watch: Callable[[Comparison], None] | None = None) -> list[Agreement]:
    """Run the comparisons one after another; `watch` hears of each before it begins."""
    done = []
    for one in comparisons:
        if watch is not None:
            watch(one)
        done.append(_verify(one))
    return done


def _verify(one: Comparison) -> Agreement:
    version = release(one.distribution)
    if not version:
        return Agreement(comparison=one, version="", verdict="not installed", reason=one.distribution)
    try:
        error = one.run()
    except ModuleNotFoundError as missing_module:
        # A comparison may need more than what it is named after. A module that has only moved is broken.
        top = (missing_module.name or "").partition(".")[0]
        if top and importlib.util.find_spec(top) is None:
            return Agreement(comparison=one, version=version, verdict="not installed", reason=top)
        return Agreement(comparison=one, version=version, verdict="broken", reason=_text(missing_module))
    except PackageNotFoundError as package:
        return Agreement(comparison=one, version=version, verdict="not installed", reason=str(package.name))
    except OTHER_SIDE as stopped:
        return Agreement(comparison=one, version=version, verdict="broken", reason=_text(stopped))
    if error <= one.limit:
        return Agreement(comparison=one, version=version, verdict="agrees", error=error)
    # NaN is no agreement; infinity is what `error` gives for these two.
    reason = "" if math.isfinite(error) else "shapes or the places of what is not finite differ"
    return Agreement(comparison=one, version=version, verdict="differs", error=error, reason=reason)


def _text(error: BaseException) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:200]}"


def release(distribution: str) -> str:
    """Return the installed version of a distribution without its build (`+cpu`), or nothing."""
    if distribution == "day0":
        return __version__
    try:
        return installed_version(distribution).partition("+")[0]
    except PackageNotFoundError:
        return ""


def cells(one: Agreement) -> tuple[str, ...]:
    """Return the row of the table, in the order of COLUMNS."""
    comparison = one.comparison
    return (
        comparison.operator,
        comparison.variant,
        comparison.against,
        f"{comparison.distribution} {one.version}".strip(),
        "" if one.error is None else f"{one.error:.2g}",
        f"{comparison.limit:.2g}",
        f"{one.verdict}: {one.reason}" if one.reason else one.verdict,
    )


def missing(done: Iterable[Agreement]) -> tuple[str, ...]:
    """Return what would have to be installed so that all comparisons can run."""
    return tuple(sorted({one.reason for one in done if one.verdict == "not installed"}))


def distributions(name: str) -> tuple[str, ...]:
    """Return whose code an operator is compared with; our own brute force is called day0."""
    return tuple(sorted({one.distribution for one in load_comparisons() if one.operator == name}))
