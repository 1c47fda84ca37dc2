"""How large the report of many signatures is, how long it takes to write, and how long Chromium takes to open it.

The records are invented: as many signatures as asked for, each with a verdict, a case and a place in the lock where it
lacks something; a third of the cases fail. Writing is told in processor time, opening by the clock on the wall.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from day0.codec import body_hash
from day0.records import (
    CaseResult,
    Decision,
    Gap,
    Identity,
    Inventory,
    InventoryEntry,
    Lock,
    LockEntry,
    ModelInfo,
    NumericsReport,
    PhaseInfo,
    Signature,
    TensorValue,
    Trace,
    TraceEntry,
)
from day0.reports.bundle import Bundle, Peaks
from day0.reports.html import render_html
from day0.reports.markdown import render_markdown

OPERATORS = 400
FINGERPRINT = "sha256:" + "ab" * 32


def main() -> None:
    """Print what it took, and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--signatures", type=int, default=100_000)
    parser.add_argument("--opens", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="where to leave the page")
    options = parser.parse_args()
    bundle = make_bundle(options.signatures)
    began = time.process_time()
    page = render_html(bundle)
    wrote = time.process_time() - began
    markdown = render_markdown(bundle)
    both = time.process_time() - began
    print(f"{options.signatures:,} signatures: the page in {wrote:.1f} s of processor time, with Markdown {both:.1f} s")
    print(f"page {len(page.encode()) / 1e6:.2f} MB, Markdown {len(markdown.encode()) / 1e6:.2f} MB")
    print(f"figure: report_write_seconds {wrote:.2f}")
    print(f"figure: report_megabytes {len(page.encode()) / 1e6:.2f}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        path.write_text(page, encoding="utf-8")
        if options.keep:
            shutil.copy(path, options.keep)
        if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
            print("Chromium and its driver are not here: the page was not opened")
            return
        _open(path, options.opens)


def make_bundle(count: int) -> Bundle:
    """Return a run of `count` signatures on 400 operators."""
    entries = tuple(_entry(n, count) for n in range(count))
    lacking = [entry for entry in entries if entry.is_gap]
    lock = Lock(
        device="sim",
        namespace="base",
        model=FINGERPRINT,
        entries=tuple(_chosen(entry) for entry in lacking[::2]),
        gaps=tuple(_gap(entry) for entry in lacking[1::2]),
    )
    cases = tuple(_case(n, entry) for n, entry in enumerate(entries))
    return Bundle(
        name="many",
        trace=_trace(count),
        inventory=Inventory(device="sim", model="many", entries=entries, roofline_seconds=0.5),
        lock=lock,
        numerics=NumericsReport(device="sim", lock=body_hash(lock), seed=0, cases=cases),
        peaks=Peaks(bandwidth=1.6e12, rates={"bfloat16": 2e14}),
    )


def _name(n: int) -> str:
    return f"aten::operator_{n % OPERATORS}"


def _shape(n: int) -> tuple[int, int, int]:
    return 1 + n % 97, 64 * (1 + n % 61), 128 + n


def _trace(count: int) -> Trace:
    def entry(n: int) -> TraceEntry:
        value = TensorValue(shape=_shape(n), dtype="bfloat16", stride=(1, 1, 1))
        return TraceEntry(
            id=f"{n:016x}", signature=Signature(op=_name(n), args=(value,)), outputs=(), counts={"prefill": 1 + n % 9},
            module=f"layers.{n % 61}.mlp", flops=1000 * (1 + n % 7), bytes=500 + n,
        )  # fmt: skip

    model = ModelInfo(
        source="many", dtype="bfloat16", class_name="Many", parameters=10**9, parameter_bytes=2 * 10**9,
        fingerprint=FINGERPRINT,
    )  # fmt: skip
    phase = PhaseInfo(name="prefill", batch=1, tokens=4096, context=0, calls=5 * count)
    return Trace(
        model=model,
        mode="meta",
        mode_reason="",
        device="meta",
        phases=(phase,),
        entries=tuple(map(entry, range(count))),
    )


def _entry(n: int, count: int) -> InventoryEntry:
    verdict: Any = ("native", "missing", "decomposes")[n % 3]
    return InventoryEntry(
        id=f"{n:016x}", op=_name(n), dtypes=("bfloat16",), shapes=f"bfloat16{list(_shape(n))}", verdict=verdict,
        device_verdict=verdict, reason="the profile lacks it", evidence="static", calls=1 + n % 9, phases=("prefill",),
        module=f"layers.{n % 61}.mlp", source="modeling.py:120", share=1.0 / count,
    )  # fmt: skip


def _chosen(entry: InventoryEntry) -> LockEntry:
    return LockEntry(
        operator=entry.op, dtypes=entry.dtypes, signatures=(entry.id,),
        identity=Identity(operator=entry.op, contract=1, namespace="base", id="composed", version="1.0"),
        kind="decomposition", source_hash=FINGERPRINT, origin="kernels/torch/composed.py:10",
        decisions=(Decision(candidate="composed", accepted=True, reason="built from what the device has"),),
    )  # fmt: skip


def _gap(entry: InventoryEntry) -> Gap:
    refused = Decision(candidate="base:fast==1.0", accepted=False, reason="takes float32, not bfloat16")
    return Gap(
        operator=entry.op, dtypes=entry.dtypes, signatures=(entry.id,), calls=entry.calls, module=entry.module,
        reason=entry.reason, decisions=(refused,),
    )  # fmt: skip


def _case(n: int, entry: InventoryEntry) -> CaseResult:
    bad = n % 3 == 0
    return CaseResult(
        case=f"{n:016x}-ordinary-0", signature=entry.id, op=entry.op, shapes=entry.shapes, implementation="native",
        regime="ordinary", seed=0, status="fail" if bad else "pass", rule="relative_l2",
        reason="the error is over its limit" if bad else "", golden="float64 on cpu", error=1e-3 * (1 + n % 13),
        yardstick=2e-3, limit=3e-3 if bad else 2e-2, reproducer=f"evidence/repro/{n}" if bad else "",
        worst_index=(1, n) if bad else None, worst_got="0.5", worst_expected="0.25",
    )  # fmt: skip


def _open(path: Path, opens: int) -> None:
    """Open the page, then search all rows and sort them."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.binary_location = str(shutil.which("chromium"))
    browser = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    try:
        took = statistics.median([_seconds(browser, path) for _ in range(opens)])
        searched = _timed(browser, "rows.search('operator_399 61')")
        ordered = _timed(browser, "rows.search('').then(() => rows.sort(3))")
    finally:
        browser.quit()
    print(
        f"opened in {took:.2f} s, median of {opens}; first search of all rows {searched:.2f} s, sorted {ordered:.2f} s"
    )
    print(f"figure: report_open_seconds {took:.2f}")
    print(f"figure: report_search_seconds {searched:.2f}")
    print(f"figure: report_sort_seconds {ordered:.2f}")


def _seconds(browser: Any, path: Path) -> float:
    """Return the time until the page is loaded, its script has run and a frame was drawn."""
    began = time.perf_counter()
    browser.get(path.as_uri())
    browser.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => setTimeout(done, 0));")
    return time.perf_counter() - began


def _timed(browser: Any, what: str) -> float:
    """Return the time of something done to the largest table of the page, by the page's own script."""
    code = f"""
        const done = arguments[0];
        const rows = document.querySelector('[data-rows=every-signature-heaviest-first]').day0;
        const began = performance.now();
        {what}.then(() => done((performance.now() - began) / 1000));
    """
    return float(browser.execute_async_script(code))


if __name__ == "__main__":
    main()
