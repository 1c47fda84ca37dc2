"""What the trained toy answers, and what eight porting mistakes make of it.

`.venv/bin/python benchmarks/toy_accuracy.py [--batch 64]`
"""

from __future__ import annotations

import argparse

import torch
from rich.console import Console
from rich.table import Table

from day0.models.toy.exam import exam, held_out
from day0.models.toy.faults import FAULTS, faulty
from day0.models.toy.model import ToyConfig, make_toy
from day0.models.toy.tasks import Questions
from day0.models.toy.weights import load_weights

VISIBLE = 0.05
"""A fault shows when it costs this share of the answers of one kind: with 512 answers noise is below 0.02."""


def main() -> None:
    """Print a row for the toy as it is and one for each fault, then the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64, help="prompts of each kind")
    torch.set_num_threads(1)
    questions = held_out(parser.parse_args().batch, ToyConfig().vision_patch)
    right = answer(None, questions)
    wrong = {name: answer(name, questions) for name in FAULTS}
    table = Table("fault", *right, "largest drop", box=None)
    table.add_row("none", *(f"{share:.3f}" for share in right.values()))
    for name, shares in wrong.items():
        table.add_row(name, *(f"{share:.3f}" for share in shares.values()), f"{drop(right, shares):.3f}")
    Console().print(table)
    print(f"figure: retrieval_accuracy {min(right.values()):.4f}")
    print(f"figure: faults_visible {sum(drop(right, shares) >= VISIBLE for shares in wrong.values())}")


def answer(fault: str | None, questions: tuple[Questions, ...]) -> dict[str, float]:
    """Return the share of right answers by kind of question, with a fault or without."""
    model = make_toy(ToyConfig(), calls=faulty(fault) if fault else None)
    load_weights(model)
    return exam(model, questions)


def drop(right: dict[str, float], shares: dict[str, float]) -> float:
    """Return the largest loss of any kind of question."""
    return max(right[kind] - shares[kind] for kind in right)


if __name__ == "__main__":
    main()
