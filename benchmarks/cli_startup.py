"""How long `day0 --help` takes, over `python -c "import typer"`, in the same minute on the same machine."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 15


def seconds(*arguments: str) -> float:
    """Run a Python process and return its wall time."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own words
    return time.perf_counter() - began


def main() -> None:
    """Take turns, so that a busy moment hits both; print medians and their ratio."""
    pairs = [(seconds("-m", "day0", "--help"), seconds("-c", "import typer")) for _ in range(ROUNDS)]
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"day0 --help {ours * 1000:.0f} ms, import typer {theirs * 1000:.0f} ms, medians of {ROUNDS}")
    print(f"figure: help_over_typer {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
