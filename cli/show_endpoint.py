"""What the canary on a server found, on the terminal: failures first."""

from __future__ import annotations

from pathlib import Path

from day0.cli.talk import Talk, safe
from day0.records import EndpointPrompt, EndpointReport, FigureResult

__all__ = ["report"]

MOST = 10
_COLOURS = {"successful": "green", "failed": "red", "inconclusive": "yellow"}
_WORDS = (
    ("logprob_error", "logprob error, mean"),
    ("logprob_error_ratio", "  over the dtype's own"),
    ("divergence", "divergence (KL), mean"),
    ("prompt_logprob_error", "logprob error on prompts"),
    ("reference_accuracy", "right answers, reference"),
    ("accuracy", "right answers, server"),
    ("first_token_p50", "first token, median"),
    ("first_token_p95", "first token, 95th of 100"),
    ("per_token_p50", "each further token, median"),
    ("throughput", "throughput, all together"),
)


def report(talk: Talk, found: EndpointReport, path: Path) -> None:
    """Say the verdict, what failed and why, then what was measured."""
    colour = _COLOURS[found.verdict]
    talk.say(f"[bold]{safe(found.model)}[/bold] at {safe(found.endpoint)}, against {safe(found.reference)}")
    talk.say(f"[{colour}]{found.verdict}[/{colour}]")
    failed = [one for one in found.results if one.status == "fail"]
    for one in failed[:MOST]:
        _prompt(talk, one)
    if len(failed) > MOST:
        talk.say(f"  and {len(failed) - MOST} more prompts; all are in {safe(path)}")
    _gates(talk, found)
    _requests(talk, found)
    _answers(talk, found)
    _figures(talk, found)
    for note in found.notes:
        talk.note(note)
    talk.say(f"[dim]record: {safe(path)}[/dim]")


def _prompt(talk: Talk, one: EndpointPrompt) -> None:
    talk.say(f"[red]✗[/red] {safe(one.reason)}")
    talk.say(f"    server:    {safe(repr(_cut(one.text)))}")
    talk.say(
        f"    reference: {safe(repr(_cut(one.expected_text)))}{' from there on' if one.compared == 'tokens' else ''}"
    )
    # One line, however long: it is to be copied.
    talk.out.print(f"    [dim]again: {safe(one.reproduce)}[/dim]", soft_wrap=True)


def _gates(talk: Talk, found: EndpointReport) -> None:
    for one in found.gates:
        if one.verdict == "failed" and one.metric != "unexplained_prompts":
            talk.say(f"[red]✗[/red] {safe(one.reason)}")
        elif one.verdict == "inconclusive":
            talk.say(f"[yellow]?[/yellow] {safe(one.reason)}")
    for prompt in found.results:
        for name, said in prompt.differs.items():
            if "not explained" in said:
                talk.say(f"[red]✗[/red] prompt {safe(repr(prompt.name))} asked {name}, {safe(said)}")
    kept = sum(one.verdict == "successful" for one in found.gates)
    talk.say(f"{kept} of {len(found.gates)} gates are kept")
    for name, why in found.left_out.items():
        talk.say(f"[dim]no gate on {safe(name)}: {safe(why)}[/dim]")


def _requests(talk: Talk, found: EndpointReport) -> None:
    counts = ", ".join(f"{number} {name}" for name, number in found.outcomes.items())
    talk.say(f"requests: {safe(counts)}")
    lost = [one for one in found.failures if not one.answered]
    for one in lost[:MOST]:
        earlier = f" after {', '.join(one.earlier)}" if one.earlier else ""
        talk.say(f"  {safe(one.prompt)} ({one.round}): {safe(one.outcome)}{earlier} {safe(one.detail)}")
    if len(lost) > MOST:
        talk.say(f"  and {len(lost) - MOST} more")


def _answers(talk: Talk, found: EndpointReport) -> None:
    count = {name: sum(one.status == name for one in found.results) for name in ("pass", "explained", "fail")}
    others = len(found.results) - sum(count.values())
    talk.say(
        f"prompts: {count['pass']} equal, {count['explained']} other within rounding, {count['fail']} other"
        f"{f', {others} not compared' if others else ''}"
    )


def _figures(talk: Talk, found: EndpointReport) -> None:
    for name, words in _WORDS:
        one = found.figures.get(name)
        if one is not None and one.value is not None:
            talk.say(f"{words:<28}{_value(one)}")


def _value(one: FigureResult) -> str:
    span = f" ({one.low:.3g} to {one.high:.3g})" if one.low is not None and one.high is not None else ""
    return f"{one.value:.3g}{f' {one.unit}' if one.unit else ''}{span}"


def _cut(text: str, most: int = 100) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
