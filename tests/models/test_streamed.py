"""A reference that holds one layer at a time: the same numbers, and no more memory for more layers."""

from __future__ import annotations

import dataclasses
import weakref
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import nn

from day0.analyzers.canary.context import CanaryContext
from day0.analyzers.canary.run import run_stages
from day0.errors import Day0Error
from day0.models.driver import greedy
from day0.models.source import open_model
from day0.models.spec import ModelSpec
from day0.models.streamed import streamed
from day0.models.workload import token_ids
from day0.playbook import CanaryPlan, ModelPlan, StagePlan
from day0.records import Lock
from day0.registry.dispatch import activate

WIDTH = 64


class Stack(nn.Module):
    """An embedding, layers in a row and a tied head."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, WIDTH)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(layers)
        )
        self.head = nn.Linear(WIDTH, 32, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = x + layer(x)
        logits: torch.Tensor = self.head(x)
        return logits


class Ledger:
    """Counts the bytes of what was read and is still held by anybody."""

    def __init__(self, file: Path) -> None:
        self.now = self.peak = 0
        self._file = safe_open(file, framework="pt")

    def __call__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._file.get_tensor(name).clone()  # type: ignore[no-untyped-call]  # as safetensors is
        self.now += tensor.nbytes
        self.peak = max(self.peak, self.now)
        weakref.finalize(tensor.untyped_storage(), self._gone, tensor.nbytes)
        return tensor

    def _gone(self, size: int) -> None:
        self.now -= size


def _spec(folder: Path, layers: int) -> tuple[ModelSpec, Ledger]:
    torch.manual_seed(layers)
    whole = Stack(layers).double()
    rows = {name: value.clone() for name, value in whole.state_dict().items() if name != "head.weight"}
    safetensors.torch.save_file(rows, folder / f"{layers}.safetensors")
    ledger = Ledger(folder / f"{layers}.safetensors")

    def build(device: str) -> nn.Module:
        if device != "meta":
            return whole
        with torch.device("meta"):
            return Stack(layers).double()

    spec = ModelSpec(
        source="stack", dtype=torch.float64, class_name="Stack", fingerprint="x", vocab_size=32, sparse_top_k=None,
        max_positions=None, build=build, read_weights=lambda: ledger,
    )  # fmt: skip
    return spec, ledger


def test_its_peak_does_not_grow_with_the_number_of_layers_and_its_numbers_are_those_of_the_whole(
    tmp_path: Path,
) -> None:
    peaks: dict[int, int] = {}
    ids_BS = torch.arange(12)[None]
    for layers in (2, 16):
        spec, ledger = _spec(tmp_path, layers)
        model = streamed(spec, torch.float64)
        with torch.no_grad():
            assert torch.equal(model(ids_BS), spec.build("cpu")(ids_BS))
        assert ledger.now == 0, "nothing stays"
        peaks[layers] = ledger.peak
    assert peaks[16] == peaks[2]
    one_layer = 8 * 2 * 4 * WIDTH * WIDTH
    assert one_layer < peaks[16] < 1.2 * one_layer


def test_what_fails_inside_of_a_layer_leaves_nothing_behind(tmp_path: Path) -> None:
    spec, ledger = _spec(tmp_path, 2)
    model = streamed(spec, torch.float64)

    def fail(*_: Any) -> None:
        raise RuntimeError("no")

    model.get_submodule("layers.1.1").register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError), torch.no_grad():
        model(torch.arange(4)[None])
    assert ledger.now == 0


def test_the_toy_generates_the_same_one_layer_at_a_time() -> None:
    spec = open_model(ModelPlan(source="toy", dtype="bfloat16"))
    ids_BS = token_ids(spec, 1, 10, seed=1)
    tokens, logits = greedy(streamed(spec, torch.float64), ids_BS, 2)
    expected, whole = greedy(spec.build("cpu").double(), ids_BS, 2)
    assert torch.equal(tokens, expected) and torch.equal(logits, whole)


def test_a_model_whose_weights_are_drawn_says_that_it_has_to_be_whole() -> None:
    spec = open_model(ModelPlan(source="toy:glm-5", dtype="float32"))
    with pytest.raises(Day0Error, match="cannot be read one by one"):
        streamed(spec, torch.float64)


def test_a_checkpoint_of_transformers_runs_one_layer_at_a_time(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=32, intermediate_size=48, vocab_size=50, num_attention_heads=2,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    spec = open_model(ModelPlan(source=f"hf:{tmp_path}", dtype="float32"))
    ids_BS = token_ids(spec, 1, 6, seed=1)
    with torch.no_grad():
        model = streamed(spec, torch.float64)
        assert all(one.is_meta for one in model.parameters())
        torch.testing.assert_close(model(input_ids=ids_BS).logits, spec.build("cpu").double()(input_ids=ids_BS).logits)


def test_a_canary_with_a_small_limit_streams_its_references(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    spec = dataclasses.replace(open_model(ModelPlan(source="toy", dtype="float32")))
    with activate(Lock(device="cpu", namespace="base", model="x", entries=()), cpu, []) as active:
        context = CanaryContext(
            spec=spec, device=cpu, active=active, evidence=tmp_path, prompt_tokens=6, new_tokens=2, reference_mib=1
        )
        names = ("load", "one_layer", "some_layers", "all_layers")
        found = run_stages(context, CanaryPlan(stages={name: StagePlan() for name in names}))
        assert [one.status for one in found] == ["pass"] * 4, [one.reason for one in found]
        assert all(one.is_meta for one in context.golden().parameters())
