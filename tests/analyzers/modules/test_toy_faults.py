"""Eight porting mistakes in the trained toy: the comparison names the module that makes each, and no other run alarms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from day0.analyzers.modules.compare import Compared, compare_modules
from day0.analyzers.modules.passes import Call, Pass, token_calls
from day0.analyzers.modules.places import CPU, Models
from day0.models.driver import step
from day0.models.toy.faults import FAULTS, faulty
from day0.models.toy.model import ToyConfig, ToyModel, make_toy
from day0.models.toy.weights import load_weights

TOKENS = 40
"""Beyond the sparse top-k of 8, and several pages of the cache."""


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def toy(calls: Any = None) -> ToyModel:
    model = make_toy(ToyConfig(), calls=calls)
    load_weights(model)
    return model.requires_grad_(False)


def models(calls: Any = None, dtype: torch.dtype = torch.bfloat16) -> Models:
    return Models(golden=toy().double(), same=toy().to(dtype), device=toy(calls).to(dtype), where=CPU)


def ids(seed: int) -> torch.Tensor:
    return torch.randint(0, 120, (1, TOKENS + 1), generator=torch.Generator().manual_seed(seed))


def with_image(seed: int) -> Pass:
    # Values that bfloat16 holds exactly: the picture is the same on all places.
    pixels = torch.randint(0, 5, (1, 3, 24, 24), generator=torch.Generator().manual_seed(seed)) / 4

    def run(model: Any, device: torch.device, _: Any) -> Any:
        return step(
            model,
            ids(seed)[:, :-1].to(device),
            inputs={"pixel_values": pixels.to(device, next(model.parameters()).dtype)},
        )

    return (Call(name="image", run=run),)


def compared(calls: Any = None, seed: int = 0, *, image: bool = False) -> Compared:
    return compare_modules(models(calls), with_image(seed) if image else token_calls(ids(seed)), torch.bfloat16)


NAMED = {
    "wrong rope pairing": "vision_tower.blocks.0 (VisionBlock) in image",
    "one-sided Hadamard": "layers.3.self_attn.indexer (Indexer) in prefill",
    "transposed KDA state": "layers.0.self_attn (KdaAttention) in prefill",
    "swapped nibbles": "layers.1.mlp.experts (Experts) in prefill",
    "off-by-one causal mask": "layers.3.self_attn.indexer (Indexer) in prefill",
    "stale cache block": "layers.3.self_attn (MlaAttention) in prefill",
    "weight applied early": "layers.1.mlp.experts (Experts) in prefill",
    "missing attention-residual bank": "layers.0 (KdaLayer) in prefill",
}


def test_every_mistake_is_tried() -> None:
    assert NAMED.keys() == FAULTS.keys()


QUICK = ("one-sided Hadamard", "swapped nibbles", "stale cache block")
"""Each takes four seconds; one in the choice of tokens, one in weights and one in decode are enough for every day."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name not in QUICK else name for name in FAULTS]
)
def test_the_module_that_makes_a_mistake_is_named(name: str) -> None:
    found = compared(faulty(name), image=name == "wrong rope pairing")
    assert found.first_divergent.startswith(NAMED[name]), (found.first_divergent, found.reason)


@pytest.mark.parametrize("image", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_same_code_on_the_cpu_gives_no_alarm(image: bool) -> None:
    found = compared(seed=1, image=image)
    assert (found.first_divergent, found.reason, found.non_finite, found.wrong, found.lost) == ("", "", None, 0, False)
