"""Train the toy and write its weights: `python -m day0.models.toy.train`. About 13 minutes on one core.

The same build of torch on the same kind of processor gives the same bytes; elsewhere sums round differently.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import nn

from day0.hashing import hash_bytes
from day0.models.toy import tasks
from day0.models.toy.config import ToyConfig
from day0.models.toy.exam import exam, held_out
from day0.models.toy.layers import Experts
from day0.models.toy.model import ToyModel, make_toy
from day0.models.toy.tasks import IGNORED, Questions
from day0.models.toy.training import RoundedExperts, TrainingCalls, export, first_weights
from day0.models.toy.weights import load_weights, weights_bytes, weights_path

__all__ = ["Recipe", "main", "train"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How the weights that ship were trained."""

    seed: int = 1
    steps: int = 1500
    rate: float = 3e-3
    vision_rate: float = 1.2e-3
    warm_up: int = 50
    sparse_from: float = 0.5
    """Share of the steps after which attention reads the indexer's choice alone."""
    rounded_from: float = 0.6
    """Share of the steps after which experts are rounded to MXFP4."""
    index_weight: float = 0.1
    recall_tokens: int = 1750
    """Tokens in the recall questions of a step: with few pairs there are more prompts."""
    pairs: tuple[int, int] = (4, 24)
    """From few to many, once the few are answered."""
    others: int = 12
    images: int = 48
    threads: int = 1
    """One: two threads wait for each other whenever anything else runs on the machine."""


@dataclass
class Progress:
    """How far training is: the share of right answers by kind, smoothed, and how many pairs are asked."""

    right: dict[str, float]
    understood: int | None = None
    """The step at which few pairs were answered, from which on there are more, and facts."""

    def pairs(self, recipe: Recipe, step: int) -> int:
        """Return how many pairs the next prompts hold."""
        few, many = recipe.pairs
        return few if self.understood is None else min(many, few + 2 * ((step - self.understood) // 20))

    def note(self, kind: str, right: float, step: int) -> None:
        """Smooth a share of right answers."""
        self.right[kind] = 0.95 * self.right.get(kind, 0.0) + 0.05 * right
        if kind == "recall" and self.right[kind] > 0.85 and self.understood is None:
            self.understood = step


def train(config: ToyConfig, recipe: Recipe) -> dict[str, torch.Tensor]:
    """Return trained weights; prints a line every fifty steps."""
    torch.set_num_threads(recipe.threads)
    generator, calls = torch.Generator().manual_seed(recipe.seed), TrainingCalls()
    model = ToyModel(config, calls)
    first_weights(model, generator)
    experts = RoundedExperts(model, generator)
    for module in model.modules():
        if isinstance(module, Experts):
            module.workspace = experts
    optimiser = _optimiser(model, experts, recipe)
    progress, begun = Progress(right={}), time.monotonic()
    for step in range(recipe.steps):
        done = step / recipe.steps
        calls.sparse, experts.rounded = done > recipe.sparse_from, done > recipe.rounded_from
        for group in optimiser.param_groups:
            group["lr"] = group["peak"] * min(1.0, (step + 1) / recipe.warm_up) * min(1.0, max(0.02, 2 * (1 - done)))
        _step(model, calls, optimiser, _lesson(recipe, progress, step, config, generator), recipe, progress, step)
        if step % 50 == 0:
            told = " ".join(f"{kind} {share:.2f}" for kind, share in progress.right.items())
            print(
                f"{step:5} {time.monotonic() - begun:5.0f} s  {progress.pairs(recipe, step)} pairs  {told}", flush=True
            )
    return export(model, experts)


def _optimiser(model: ToyModel, experts: RoundedExperts, recipe: Recipe) -> torch.optim.Optimizer:
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: [*experts.weights.values()]}
    for name, value in model.named_parameters():
        if name.endswith("e_score_correction_bias"):
            value.requires_grad_(False)
        else:
            groups[name.startswith("vision_tower")].append(value)
    peaks = {True: recipe.vision_rate, False: recipe.rate}
    return torch.optim.AdamW(
        [{"params": values, "peak": peaks[vision]} for vision, values in groups.items()],
        betas=(0.9, 0.98),
        weight_decay=0.01,
    )


def _lesson(
    recipe: Recipe, progress: Progress, step: int, config: ToyConfig, generator: torch.Generator
) -> tuple[Questions, ...]:
    pairs = progress.pairs(recipe, step)
    prompts = recipe.recall_tokens // (25 + 2 * pairs)
    return (
        tasks.recall_questions(prompts, pairs, 8, generator, plain=progress.understood is None),
        tasks.copy_questions(recipe.others, min(10, pairs), generator),
        tasks.largest_questions(recipe.others, 24, generator),
        tasks.image_questions(recipe.images, config.vision_patch, generator),
    )


def _step(
    model: ToyModel,
    calls: TrainingCalls,
    optimiser: torch.optim.Optimizer,
    lesson: tuple[Questions, ...],
    recipe: Recipe,
    progress: Progress,
    step: int,
) -> None:
    optimiser.zero_grad()
    calls.index_losses.clear()
    loss = torch.zeros(())
    for questions in lesson:
        logits_BSV = model(input_ids=questions.ids_BS, use_cache=False, pixel_values=questions.pixels).logits
        asked = questions.answer_BS != IGNORED
        loss = loss + nn.functional.cross_entropy(logits_BSV[asked], questions.answer_BS[asked])
        right = logits_BSV.argmax(dim=-1)[asked] == questions.answer_BS[asked]
        progress.note(questions.kind, float(right.float().mean()), step)
    loss = loss + recipe.index_weight * torch.stack(calls.index_losses).mean()
    loss.backward()
    values = [value for group in optimiser.param_groups for value in group["params"]]
    nn.utils.clip_grad_norm_(values, 1.0)
    optimiser.step()


def main() -> None:
    """Train, write the file, and print its hash, which stands in weights.py, and what it answers."""
    config = ToyConfig()
    data = weights_bytes(train(config, Recipe()))
    path, found = weights_path(), hash_bytes(data)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    print(f"{path}: {len(data):,} bytes, {found}")
    model = make_toy(config)
    load_weights(model, expected=found)
    for kind, share in exam(model, held_out(64, config.vision_patch)).items():
        print(f"{kind}: {share:.1%} of held-out questions")


if __name__ == "__main__":
    main()
