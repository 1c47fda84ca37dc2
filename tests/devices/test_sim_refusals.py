"""The simulated device refuses what a real one refuses, in the words that torch uses."""

from collections.abc import Callable

import pytest
import torch

from day0.devices.profile import load_profile
from day0.devices.sim.device import close_sim, counters, open_sim

OpenWith = Callable[..., object]


@pytest.mark.parametrize(
    "mix",
    [
        lambda x_RC: x_RC + torch.ones(2, 2),
        lambda x_RC: torch.ones(2, 2) + x_RC,
        lambda x_RC: x_RC @ torch.ones(2, 2),
        lambda x_RC: torch.cat([x_RC, torch.ones(2, 2)]),
        lambda x_RC: torch.where(x_RC > 0, x_RC, torch.ones(2, 2)),
        lambda x_RC: x_RC.add_(torch.ones(2, 2)),
        lambda x_RC: torch.ones(2, 2).add_(x_RC),
        lambda x_RC: torch.tensor(1.0).add_(x_RC[0, 0]),
        lambda x_RC: torch.add(x_RC, 1, out=torch.empty(2, 2)),
        lambda x_RC: torch.nn.functional.linear(x_RC, torch.ones(2, 2)),
        lambda x_RC: torch.nn.functional.conv1d(x_RC[None], torch.ones(2, 2, 1)),
        lambda x_RC: x_RC + torch.ones(2, 2, device="meta"),
    ],
)
@pytest.mark.usefixtures("null")
def test_mixed_devices(mix: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        mix(torch.ones(2, 2, device="sim"))


@pytest.mark.usefixtures("null")
def test_a_number_on_the_cpu_and_index_tensors_are_fine() -> None:
    x = torch.ones(3, device="sim")
    assert (x + torch.tensor(2.0)).tolist() == [3.0, 3.0, 3.0]
    assert (torch.tensor(2.0) * x).tolist() == [2.0, 2.0, 2.0]
    assert x[torch.tensor([0, 2])].tolist() == [1.0, 1.0]


def test_missing_operator_raises_torchs_own_error(open_with: OpenWith) -> None:
    open_with(lacks={"aten::rsqrt": {}, "aten::sigmoid": {}})
    for name in ("rsqrt", "sigmoid"):
        with pytest.raises(
            NotImplementedError, match=rf"Could not run 'aten::{name}.out' with arguments from the 'sim' backend"
        ):
            getattr(torch, name)(torch.ones(2, device="sim"))


def test_missing_operator_without_composite_names_itself(open_with: OpenWith) -> None:
    open_with(lacks={"aten::nonzero": {}})
    with pytest.raises(
        NotImplementedError, match="Could not run 'aten::nonzero' with arguments from the 'sim' backend"
    ):
        torch.ones(2, device="sim").nonzero()


def test_composites_above_a_missing_operator_fail_at_their_leaf(open_with: OpenWith) -> None:
    open_with(lacks={"aten::native_layer_norm": {}, "aten::rsqrt": {}})
    with pytest.raises(NotImplementedError, match=r"'aten::rsqrt\.out'"):
        torch.nn.RMSNorm(4).to("sim")(torch.ones(2, 4, device="sim"))


def test_composite_runs_where_the_native_kernel_is_missing(open_with: OpenWith) -> None:
    open_with(lacks={"aten::native_layer_norm": {}})
    torch.manual_seed(0)
    module, x_BD = torch.nn.LayerNorm(4), torch.randn(2, 4)
    expected = module(x_BD)
    assert torch.allclose(module.to("sim")(x_BD.to("sim")).cpu(), expected, atol=1e-6)


def test_missing_out_form_takes_the_operator_away(open_with: OpenWith) -> None:
    open_with(lacks={"aten::topk": {}})
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::topk", "PrivateUse1")
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::topk.values", "PrivateUse1")
    with pytest.raises(NotImplementedError, match=r"Could not run 'aten::topk\.values'"):
        torch.topk(torch.ones(4, device="sim"), 2)


def test_registrations_follow_the_open_profile(open_with: OpenWith) -> None:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    open_with(lacks={"aten::mm": {}})
    assert not has("aten::mm", "PrivateUse1")
    assert has("aten::bmm", "PrivateUse1")
    assert not has("aten::linear", "PrivateUse1"), "a composite of torch's must not count as the device's kernel"
    open_with(lacks={})
    assert has("aten::mm", "PrivateUse1")


def test_dtype_that_a_kernel_does_not_take(open_with: OpenWith) -> None:
    open_with(lacks={"aten::topk": {"dtypes": ("float16",)}})
    with pytest.raises(NotImplementedError, match="\"topk_sim\" not implemented for 'Half'"):
        torch.topk(torch.ones(4, device="sim", dtype=torch.float16), 2)
    assert torch.topk(torch.arange(4.0, device="sim"), 2).indices.tolist() == [3, 2]


def test_rank_that_a_kernel_does_not_take(open_with: OpenWith) -> None:
    open_with(lacks={"aten::cumsum": {"ranks": (3,)}})
    assert torch.ones(2, 2, device="sim").cumsum(0).shape == (2, 2)
    with pytest.raises(RuntimeError, match="cumsum: the sim device does not take tensors with 3 dimensions"):
        torch.ones(2, 2, 2, device="sim").cumsum(0)


def test_storage_dtypes_do_not_compute(open_with: OpenWith) -> None:
    open_with()
    x = torch.ones(2, device="sim").to(torch.float8_e4m3fn)
    assert x.view(torch.uint8).float().tolist() == [56.0, 56.0]
    with pytest.raises(NotImplementedError, match="not implemented for 'Float8_e4m3fn'"):
        x * x


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, device="sim", dtype=torch.float64),
        lambda: torch.ones(2, dtype=torch.float64).to("sim"),
        lambda: torch.ones(2, device="sim").double(),
        lambda: torch.tensor([1.0], dtype=torch.float64, device="sim"),
        lambda: torch.arange(3, dtype=torch.float64, device="sim"),
        lambda: torch.nn.Linear(2, 2, dtype=torch.float64).to("sim"),
        lambda: torch.ones(2, device="sim").sum(dtype=torch.float64),
        lambda: torch.ones(8, device="sim", dtype=torch.uint8).view(torch.float64),
    ],
)
def test_dtype_that_the_device_does_not_hold(make: Callable[[], object]) -> None:
    open_sim(load_profile("sim"))
    with pytest.raises(TypeError, match="the sim device 'sim' does not hold float64"):
        make()


@pytest.mark.usefixtures("null")
@pytest.mark.parametrize("make", [lambda: torch.ones(2, device="sim:1"), lambda: torch.ones(2).to("sim:1")])
def test_there_is_one_device(make: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match="invalid device ordinal 1"):
        make()


def test_integer_histogram_is_refused_as_on_the_cpu_where_a_profile_lacks_it() -> None:
    open_sim(load_profile("sim"))
    with pytest.raises((NotImplementedError, RuntimeError), match="not implemented for 'Int'") as theirs:
        torch.histc(torch.ones(3, dtype=torch.int32))
    with pytest.raises(NotImplementedError, match="not implemented for 'Int'") as ours:
        torch.histc(torch.ones(3, dtype=torch.int32, device="sim"))
    assert issubclass(ours.type, theirs.type)


@pytest.mark.usefixtures("null")
def test_integer_histogram_is_there_where_nothing_is_missing() -> None:
    ids = torch.tensor([0, 2, 2, 3], dtype=torch.int32, device="sim")
    counts = torch.histc(ids, bins=4, min=0, max=3)
    assert counts.dtype == torch.int32
    assert counts.tolist() == [1, 0, 2, 1]
    assert torch.histc(ids, 4, 0, 3, out=torch.empty(0, dtype=torch.int32, device="sim")).tolist() == [1, 0, 2, 1]


def test_fallback_profile_runs_on_the_cpu_and_counts(open_with: OpenWith) -> None:
    open_with(lacks={"aten::topk": {}, "aten::nonzero": {}}, fallback="cpu")
    x = torch.arange(4.0, device="sim")
    transfers, waits = counters().transfers, counters().host_syncs
    found = torch.topk(x, 2)
    assert found.indices.device.type == "sim"
    assert counters().fallbacks == {"aten::topk.values": 1}
    assert counters().transfers > transfers
    assert counters().host_syncs > waits
    assert found.indices.tolist() == [3, 2]
    x.nonzero()
    assert counters().fallbacks["aten::nonzero"] == 1


def test_fallback_is_not_taken_without_need(open_with: OpenWith) -> None:
    open_with(lacks={}, fallback="cpu")
    torch.topk(torch.arange(4.0, device="sim"), 2)
    assert not counters().fallbacks


def test_closed_device_has_no_kernels() -> None:
    open_sim(load_profile("null"))
    x = torch.ones(2, device="sim")
    close_sim()
    with pytest.raises(NotImplementedError, match="'sim' backend"):
        torch.ones(2, device="sim")
    with pytest.raises(NotImplementedError, match="'sim' backend"):
        x + x
    open_sim(load_profile("null"))
    assert (x + x).tolist() == [2.0, 2.0], "tensors that exist stay valid"


@pytest.mark.usefixtures("null")
def test_sparse_and_nested_tensors_are_refused_in_words() -> None:
    with pytest.raises(NotImplementedError, match="dense tensors only, and this one is sparse_coo"):
        torch.eye(3, device="sim").to_sparse()
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 1).to("sim").eval()
    padded = torch.tensor([[False, False, True]], device="sim")
    with torch.no_grad(), pytest.raises(NotImplementedError, match="enable_nested_tensor=False"):
        encoder(torch.ones(1, 3, 8, device="sim"), src_key_padding_mask=padded)
