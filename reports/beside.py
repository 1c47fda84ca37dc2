"""Records beside the five stages: does the model fit, what is the server worth, do several ranks agree, did it last."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from day0.records import EndpointReport, FitReport, RanksReport, StageResult
from day0.reports.bundle import Bundle
from day0.reports.clean import clean
from day0.reports.figures import bytes_text, counted, joined
from day0.reports.summary import Beside

__all__ = ["FILES", "beside"]

FILES: dict[str, str] = {"fit": "fit.json", "endpoint": "endpoint.json", "ranks": "ranks.json"}
"""Record by name, in the run folder."""

_TITLES = {
    "fit": "Memory: how many cards",
    "soak": "Soak: does it last",
    "endpoint": "A server against a reference",
    "ranks": "Several ranks",
}


def beside(bundle: Bundle) -> tuple[Beside, ...]:
    """Return what there is beside the stages, and what there is not, each with the command that makes it."""
    makers: tuple[Callable[[Bundle], tuple[str, str]], ...] = (_fit, _soak, _endpoint, _ranks)
    commands = {
        "fit": ["fit"],
        "soak": ["canary", "--stage", "soak"],
        "endpoint": ["canary", "--endpoint", "URL", "--model", "NAME"],
        "ranks": ["canary", "ranks", "2"],
    }
    found = []
    for name, maker in zip(_TITLES, makers, strict=True):
        status, headline = maker(bundle)
        file = FILES.get(name, "canary.json")
        if file in bundle.damaged:
            status, headline = "damaged", bundle.damaged[file]
        value = {
            "name": name,
            "title": _TITLES[name],
            "file": file,
            "status": status,
            "headline": headline,
            "command": shlex.join(["day0", *commands[name], "--run", bundle.run or "RUN"]),
        }
        found.append(Beside.model_validate(value))
    return tuple(found)


def _fit(bundle: Bundle) -> tuple[str, str]:
    found = bundle.fit
    if found is None:
        return "missing", "nobody asked yet whether the model fits"
    model = bundle.trace.model
    if found.model != model.source or found.overrides != model.overrides:
        return "stale", f"it was made for {found.model} with other fields than the trace, or for another model"
    return ("pass" if found.fits else "fail"), fit_answer(found)


def fit_answer(found: FitReport) -> str:
    """Return the answer in one line."""
    card, memory = found.card, bytes_text(found.memory_bytes)
    if card is None:
        return f"it fits on no layout that was searched, on cards of {memory}"
    cards = f"{counted(card.cards, 'card')} of {memory} (tp={card.tp} ep={card.ep} pp={card.pp} dp={card.dp})"
    rest = f", for {found.batch:,} x {found.context:,} tokens"
    if not found.fits:
        return f"it does not fit on {cards}: {bytes_text(-card.free)} a card too much{rest}"
    only = "; cache and activations are not in it" if found.unread else ""
    return f"it fits on {cards} with {bytes_text(card.free)} a card left{rest}{only}"


def _soak(bundle: Bundle) -> tuple[str, str]:
    stage = next((one for one in bundle.canary.stages if one.name == "soak"), None) if bundle.canary else None
    if stage is None:
        return "missing", "the canary has no soak yet"
    if stage.status == "skipped":
        return "skipped", stage.reason
    return stage.status, "; ".join(_soak_facts(stage))


def _soak_facts(stage: StageResult) -> Iterator[str]:
    if stage.reason:
        yield stage.reason
    of = {name: int(value) for name, value in stage.metrics.items() if abs(value) < 1e15}
    yield f"{counted(of.get('sequences', 0), 'sequence')} and {counted(of.get('tokens', 0), 'token')} in "\
        f"{counted(of.get('steps', 0), 'step')}"  # fmt: skip
    undecided = [gate.metric for gate in stage.gates if gate.verdict == "inconclusive"]
    if undecided:
        yield f"not decided in so short a time: {joined(undecided)}"


def _endpoint(bundle: Bundle) -> tuple[str, str]:
    found = bundle.endpoint
    if found is None:
        return "missing", "no server was asked yet"
    words = {"successful": "pass", "failed": "fail", "inconclusive": "skipped"}
    return words[found.verdict], f"{found.model} against {found.reference}: {_answers(found)}"


def _answers(found: EndpointReport) -> str:
    count = {name: sum(one.status == name for one in found.results) for name in ("pass", "explained", "fail")}
    kept = sum(gate.verdict == "successful" for gate in found.gates)
    return (
        f"{counted(count['pass'], 'prompt')} equal, {count['explained']} other within rounding, {count['fail']} other; "
        f"{kept} of {counted(len(found.gates), 'gate')} kept"
    )


def _ranks(bundle: Bundle) -> tuple[str, str]:
    found = bundle.ranks
    if found is None:
        return "missing", "it was not run on several ranks yet"
    if found.model != bundle.trace.model.source:
        return "stale", f"it was made for {found.model}, the trace is of {bundle.trace.model.source}"
    bad = [run for run in found.runs if run.status == "fail"]
    return ("fail" if bad else "pass"), _runs(found) + (f": {bad[0].reasons[0]}" if bad and bad[0].reasons else "")


def _runs(found: RanksReport) -> str:
    texts = [f"{counted(run.ranks, 'rank')} {run.status}" for run in found.runs[:6]]
    planted = [run.planted for run in found.runs if run.planted]
    return joined(texts) + (f" (planted: {clean(', '.join(planted))})" if planted else "")
