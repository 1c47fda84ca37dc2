"""The tables of a page of figures, in Markdown: everything on it is in the record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["tables_of"]

Record = Mapping[str, Any]
HEADLINES = (
    ("mxfp4_to_fp8_fraction_of_copy", "MXFP4 to FP8, of the speed of a copy", "0.90"),
    ("mxfp4_to_mxfp8_fraction_of_copy", "with the scales of MXFP8", "0.90"),
    ("mxfp4_to_fp8_1x128_fraction_of_copy", "with a scale for 1 x 128 values", "0.90"),
    ("mxfp4_to_fp8_128x128_fraction_of_copy", "with a scale for 128 x 128 values", "0.90"),
    ("mxfp4_to_bf16_fraction_of_copy", "MXFP4 to BF16", ""),
    ("sparse_layer_128k_batch_1_over_dense", "sparse layer at 128 Ki over dense, 1 request", "3"),
    ("sparse_layer_128k_batch_8_over_dense", "the same, 8 requests", "3"),
    ("sparse_decode_128k_over_dense", "the same, 32 requests", "3"),
    ("sparse_attention_128k_batch_1_over_dense", "its attention alone, 1 request", "5"),
    ("sparse_attention_128k_batch_32_over_dense", "its attention alone, 32 requests", "5"),
    ("model_deepseek_v32_decode_128k_batch_32_sparse_over_dense", "a step of DeepSeek-V3.2's layers, 32 requests", ""),
    ("model_kimi_k31_decode_128k_batch_32_sparse_over_dense", "a step of Kimi K3.1's layers, 32 requests", ""),
    ("model_decode_lock_graph_over_plain", "a step under a lock, as a graph, over plain torch", ""),
    ("model_decode_lock_eager_over_plain", "the same without a graph", ""),
    ("model_prefill_lock_eager_over_plain", "prefill under a lock over plain torch", ""),
    (
        "hf_deepseek_v32_batch_8_decode_day0_over_transformers",
        "deepseek_v32 of transformers, a step, day0 over its own",
        "",
    ),
    ("hf_kimi_linear_batch_8_decode_day0_over_transformers", "kimi_linear of transformers, a step", ""),
    ("hf_kimi_linear_batch_8_prefill_day0_over_transformers", "the same, prefill", ""),
)
EXPERTS = ("expert_cache_over_none", "conversion_share_of_decode")
"""Figures of the expert cache; by batch and layout there are several of each."""


def tables_of(record: Record, charts: Mapping[str, str]) -> str:
    """Return all tables and pictures."""
    sections = {
        "The figures that were asked for": (headlines(record["figures"]),),
        "Operators": (
            operators(record["operators"]),
            picture(charts, "operators", "Operators: share of the nearer ceiling"),
            not_run(record["operators"]),
        ),
        "Sparse attention over contexts, batches and sizes of the selection": (
            sweeps(record["sweeps"]),
            picture(charts, "contexts", "A layer of attention in decode, sparse and dense, over the context"),
            picture(charts, "selection", "A sparse layer over the size of its selection"),
        ),
        "Whole models": (
            models(record["model"]),
            by_hits(record["model"].get("experts", {}).get("rows", ())),
            picture(charts, "models", "A step of decode of two models, sparse and dense, over the context"),
        ),
    }
    parts = [where(record)]
    for title, bodies in sections.items():
        if any(bodies):
            parts += [f"### {title}", *(body for body in bodies if body)]
    return "\n\n".join(parts)


def where(record: Record) -> str:
    """Return what was measured on what."""
    versions = ", ".join(
        f"{name} {version}" for name, version in sorted(record["versions"].items()) if version != "none"
    )
    ceilings = record["ceilings"]
    return (
        f"Measured on {record['date']} on {escape(record['device'])}, driver {escape(record['driver'] or 'none')}, {escape(versions)}. "
        f"A copy moves {ceilings['copy_gb_s']:,.0f} GB/s, read and written; a product of bfloat16 matrices does "
        f"{ceilings['bf16_tflops']:,.0f} TFLOPS."
    )


def headlines(figures: Mapping[str, float]) -> str:
    """Return the figures with marks."""
    rows = [(text, f"{figures[name]:.2f}", mark) for name, text, mark in HEADLINES if name in figures]
    for name in sorted(figures):
        if name.startswith(EXPERTS[0] + "_batch"):
            rows.append((f"expert cache over none, {words(name, EXPERTS[0])}", f"{figures[name]:.2f}", "1.4"))
        if name.startswith(EXPERTS[1] + "_batch"):
            rows.append(
                (f"conversion's share of decode, {words(name, EXPERTS[1])}", f"{figures[name]:.1%}", "5 % at most")
            )
    return table(("what", "measured", "mark"), rows)


def words(name: str, start: str) -> str:
    """Return `batch 8, mxfp8` from the end of a figure's name."""
    _, _, batch, *layout = name.removeprefix(start).split("_")
    return f"{batch} at a time, {'-'.join(layout)}"


def operators(found: Mapping[str, Any]) -> str:
    """Return a row for each case."""
    rows = []
    for name, operator in sorted(found.items()):
        for case, one in sorted(operator.get("cases", {}).items()):
            ran = {peer: took["ratio"] for peer, took in sorted(one.get("peers", {}).items()) if "ratio" in took}
            peers = ", ".join(f"{peer_name(peer)} {ratio:.1f}" for peer, ratio in ran.items())
            amount = f"{one['gb_s']:,.0f} GB/s" if one["bound"] == "copy" else f"{one['tflops']:,.0f} TFLOPS"
            right = str(operator.get("check", {}).get("passed", ""))
            parts = (f"{one['ms']:.4f}", one["bound"], amount, f"{one['fraction']:.2f}", peers)
            rows.append((f"`{name}`", right, case, *parts))
    head = ("operator", "calls right", "case", "ms", "bound by", "reached", "of the ceiling", "peers, times slower")
    return table(head, rows)


def peer_name(name: str) -> str:
    """Return a peer's name for people."""
    return name.replace("_", " ")


def not_run(found: Mapping[str, Any]) -> str:
    """Return why peers, and operators, have no time."""
    lines: dict[str, list[str]] = {}
    for name, operator in sorted(found.items()):
        if not operator.get("cases"):
            lines.setdefault(str(operator.get("status", "not measured")), []).append(f"`{name}`")
        for case, one in sorted(operator.get("cases", {}).items()):
            for peer, took in sorted(one.get("peers", {}).items()):
                if "not_run" in took:
                    lines.setdefault(f"{peer_name(peer)}: {took['not_run']}", []).append(f"`{name}` {case}")
    if not lines:
        return ""
    rows = [(", ".join(dict.fromkeys(where_)), escape(reason)) for reason, where_ in sorted(lines.items())]
    return "What has no time, and why:\n\n" + table(("operator", "reason"), rows)


def sweeps(found: Sequence[Mapping[str, Any]]) -> str:
    """Return a row for each measured case: the sparse layer and its parts beside the quickest dense one."""
    rows = []
    for row in found:
        size = (f"{row['context'] // 1024:,} Ki", str(row["batch"]), str(row["topk"]))
        if "ms" not in row:
            rows.append((*size, escape(str(row.get("not_run", ""))), "", "", "", "", ""))
            continue
        ms = row["ms"]
        dense = min(value for name, value in ms.items() if name.startswith("dense"))
        parts = (ms["indexer"], ms["selection"], ms["sparse attention"], ms["sparse layer"], dense)
        rows.append((*size, *(f"{one:.3f}" for one in parts), f"{dense / ms['sparse layer']:.1f}"))
    head = (
        "context",
        "requests",
        "chosen",
        "indexer",
        "selection",
        "attention",
        "layer, ms",
        "dense, ms",
        "times quicker",
    )
    return table(head, rows)


def models(found: Mapping[str, Any]) -> str:
    """Return a table for each part."""
    parts = []
    for name, part in sorted(found.items()):
        rows = [
            (row["case"], row["way"], f"{row['ms']:.3f}" if row["ms"] else "", escape(row["how"]), held(row))
            for row in part.get("rows", ())
        ]
        note = "" if part.get("status") == "done" else f"\n\nIt ended early: {escape(str(part.get('status')))}."
        parts.append(f"#### {name}\n\n" + table(("case", "way", "ms", "how", "cache of a request"), rows) + note)
    return "\n\n".join(parts)


def by_hits(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what the two ends of the expert cache, nothing kept and the hits that it had, say of others between them.

    Time and conversion are taken to fall with the hits along a line.
    """
    ends: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if "hit_rate" in row:
            ends.setdefault(row["case"], {})[row["way"]] = row
    lines = []
    for case, found in ends.items():
        if len(found) == 2 and found["cache"]["hit_rate"]:
            none, cache = found["nothing kept"], found["cache"]
            gain = (none["ms"] - cache["ms"]) / cache["hit_rate"]
            converting = none["ms"] * none["conversion_share"]
            quicker = none["ms"] * (1 - 1 / 1.4) / gain
            little = (converting - 0.05 * none["ms"]) / (converting - 0.05 * gain)
            at = [none["ms"] / (none["ms"] - hits * gain) for hits in (0.67, 0.81)]
            parts = (f"{cache['hit_rate']:.1%}", f"{quicker:.0%}", f"{little:.1%}", *(f"{one:.2f}" for one in at))
            lines.append((case, *parts))
    head = ("case", "hits it had", "hits for 1.4 times", "hits for 5 % converting", "times quicker at 67 %", "at 81 %")
    return (
        "Between nothing kept and the hits it had, along a line (computed):\n\n" + table(head, lines) if lines else ""
    )


def held(row: Mapping[str, Any]) -> str:
    """Return the bytes of a request's cache, beside those of keys and values of all heads."""
    if "kv_bytes" not in row:
        return ""
    text = f"{row['kv_bytes'] / 2**20:,.0f} MiB"
    return text + (f" of {row['kv_bytes_of_heads'] / 2**20:,.0f}" if "kv_bytes_of_heads" in row else "")


def picture(charts: Mapping[str, str], name: str, text: str) -> str:
    """Return an image, where there is one."""
    return f"![{text}]({charts[name]})" if name in charts else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; nothing without rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *lines]) if lines else ""


def escape(text: str) -> str:
    """Return text from outside so that it is text: no markup, no cells, one line."""
    for character in "\\`*_<>[]|":
        text = text.replace(
            character,
            f"\\{character}" if character not in "<>|" else {"<": "&lt;", ">": "&gt;", "|": "&#124;"}[character],
        )
    return " ".join(text.split())
