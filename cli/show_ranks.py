"""What `day0 canary ranks` shows: a verdict for each run, the reasons, what was measured, how it scales."""

from __future__ import annotations

from rich.table import Table

from day0.cli.talk import Talk, safe
from day0.records import RankResult, RanksReport, RanksRun

__all__ = ["report"]

LOG_LINES = 6
MIB = 1 << 20


def report(talk: Talk, found: RanksReport) -> None:
    """Show every run, then the table of scaling."""
    small = " (made smaller)" if any(" -> " in value for value in found.overrides.values()) else ""
    title = f"{found.model}{small}: {found.class_name}, {found.dtype}, {found.prompt_tokens} tokens"
    talk.say(f"[dim]{safe(title)}; {safe(found.device)}, collectives by {safe(found.backend)}[/dim]")
    for run in found.runs:
        _run(talk, run)
    if len(found.scaling) > 1:
        talk.say("")
        talk.out.print(_scaling(found))
    for note in found.notes:
        talk.note(note)


def _run(talk: Talk, run: RanksRun) -> None:
    mark = "[green]✓[/green]" if run.status == "pass" else "[red]✗[/red]"
    word = "rank" if run.ranks == 1 else "ranks"
    experts = ", whole experts" if run.whole_experts else ""
    planted = f"; planted: {run.planted}" if run.planted else ""
    talk.say(f"{mark} {run.ranks} {word}{experts}{safe(planted)}: {run.status}")
    for reason in run.reasons:
        talk.say(f"    {safe(reason)}")
    if run.planted and run.metrics.get("planted_calls") == 0:
        talk.say("    the planted fault was never reached")
    undecided = () if run.metrics.get("ranks_lost") else [one for one in run.gates if one.verdict == "inconclusive"]
    for reason in dict.fromkeys(one.reason for one in undecided):
        talk.say(f"    [yellow]not decided[/yellow]: {safe(reason)}")
    for one in run.results:
        _log(talk, one)
    if "decode_s" in run.metrics:
        talk.say(f"    [dim]{safe(_figures(run))}[/dim]")


def _log(talk: Talk, one: RankResult) -> None:
    if one.status in ("done", "stopped") or not one.log_tail:
        return
    # Where a rank hangs stands first; what ended one stands last.
    lines = one.log_tail[:LOG_LINES] if one.status == "hung" else one.log_tail[-LOG_LINES:]
    talk.say(f"    the log of rank {one.rank}:")
    for line in lines:
        talk.say(f"      [dim]{safe(line)}[/dim]")


def _figures(run: RanksRun) -> str:
    figures = run.metrics
    parts = [
        f"prefill {figures['prefill_s'] * 1e3:.1f} ms",
        f"decode {figures['decode_s'] * 1e3:.1f} ms a token",
        f"weights {figures['weight_bytes'] / MIB:.2f} MiB on the fullest rank",
    ]
    if "weights_over_fit" in figures:
        parts.append(f"{figures['weights_over_fit']:.3f} of what day0 fit predicts")
    if "peak_bytes" in figures:
        parts.append(f"{figures['peak_bytes'] / MIB:.2f} MiB in use at most")
    if "memory_over_plan" in figures:
        parts.append(f"{figures['memory_over_plan']:.3f} of the prediction")
    if run.ranks > 1:
        share, least = figures["decode_collective_share"], figures["decode_collective_share_least"]
        parts.append(f"collectives {least:.0%} to {share:.0%} of a token's time")
        bits = "the same" if figures["logits_same_bits"] else "other"
        parts.append(f"logits have {bits} bits on all ranks")
        if figures["collectives_unsupported"]:
            parts.append(f"{figures['collectives_unsupported']:.0f} collectives are not in the backend")
    return "; ".join(parts)


def _scaling(found: RanksReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("ranks", "prefill ms", "decode ms", "efficiency", "in decode", "collectives", "weights MiB"):
        table.add_column(name, justify="right")
    for one in found.scaling:
        table.add_row(
            str(one.ranks),
            f"{one.prefill_s * 1e3:.1f}",
            f"{one.decode_s * 1e3:.1f}",
            f"{one.prefill_efficiency:.0%}",
            f"{one.decode_efficiency:.0%}",
            f"{one.collective_share:.0%}",
            f"{one.weight_bytes / MIB:.2f}",
        )
    return table
