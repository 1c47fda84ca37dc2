"""A real architecture of transformers on `sim`: it stops at its genuine gap, and equals the CPU once that is closed."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from day0.devices.sim.device import counters, native_kernel

transformers = pytest.importorskip("transformers")

OpenWith = Callable[..., object]

SHRUNKEN = {
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "index_topk": 8,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "vocab_size": 128,
}


@pytest.fixture
def model(null: torch.device) -> torch.nn.Module:
    """Return a DeepSeek-V3.2 with random weights on the CPU."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model("deepseek_v32", **SHRUNKEN)
    made: torch.nn.Module = transformers.AutoModelForCausalLM.from_config(config).eval()
    return made


@pytest.fixture
def histogram_of_integers(null: torch.device, open_with: OpenWith) -> Iterator[None]:
    """Close the gap the way the registry does."""
    open_with({"aten::histc": {"dtypes": ("int32",)}})
    below = native_kernel("aten::histc")
    assert below is not None

    def histc(self: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
        return below(self.float(), bins, min, max).to(self.dtype)

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns of every override
        library.impl("histc", histc, "PrivateUse1", allow_override=True)
    yield
    library._destroy()


def _prefill_and_decode(model: torch.nn.Module, ids_BT: torch.Tensor) -> list[torch.Tensor]:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # transformers renames the cache's argument
        prefill = model(ids_BT, use_cache=True)
        decode = model(ids_BT[:, :1], past_key_values=prefill.past_key_values, use_cache=True)
    return [prefill.logits, decode.logits]


def test_it_stops_at_the_integer_histogram(model: torch.nn.Module, open_with: OpenWith) -> None:
    open_with({"aten::histc": {"dtypes": ("int32",)}})
    ids_BT = torch.randint(0, 128, (1, 16))
    with pytest.raises(NotImplementedError, match="\"histc_sim\" not implemented for 'Int'"):
        _prefill_and_decode(model.to("sim"), ids_BT.to("sim"))


@pytest.mark.usefixtures("histogram_of_integers")
def test_prefill_and_decode_equal_the_cpu(model: torch.nn.Module) -> None:
    ids_BT = torch.randint(0, 128, (1, 16))
    expected = _prefill_and_decode(model, ids_BT)
    waits = counters().host_syncs
    got = _prefill_and_decode(model.to("sim"), ids_BT.to("sim"))
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.device.type == "sim"
        assert (ours.cpu() - theirs).abs().max().item() <= 1e-5
    assert counters().calls["aten::_grouped_mm"] > 0
    assert counters().host_syncs > waits, "the composite kernel of _grouped_mm brings the offsets to the host"
