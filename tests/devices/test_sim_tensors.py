"""Tensors on `sim` behave as on any device of torch."""

import copy
import warnings
from collections.abc import Callable

import pytest
import torch

from day0.devices.sim.device import counters
from day0.devices.sim.tensor import SimTensor

pytestmark = pytest.mark.usefixtures("null")


@pytest.mark.parametrize(
    "make",
    [
        lambda device: torch.ones(2, device=device),
        lambda device: torch.zeros(2, 3, device=device),
        lambda device: torch.full((2,), 7, device=device),
        lambda device: torch.empty(0, device=device),
        lambda device: torch.tensor([], device=device),
        lambda device: torch.tensor([[1, 2], [3, 4]], device=device),
        lambda device: torch.tensor(2.5, device=device),
        lambda device: torch.arange(6.0, device=device),
        lambda device: torch.arange(1, 9, 2, device=device),
        lambda device: torch.linspace(0, 1, 5, device=device),
        lambda device: torch.eye(3, device=device),
        lambda device: torch.tril(torch.ones(3, 3, device=device)),
        lambda device: torch.as_tensor([1.0], device=device),
        lambda device: torch.ones(2).to(device),
        lambda device: torch.ones(2).to(device, torch.float16),
        lambda device: torch.ones(2, device=device).new_zeros(3),
        lambda device: torch.zeros_like(torch.ones(2, device=device)),
    ],
)
def test_factories(make: Callable[[str], torch.Tensor]) -> None:
    made, expected = make("sim"), make("cpu")
    assert isinstance(made, SimTensor)
    assert made.device == torch.device("sim", 0)
    assert made.dtype == expected.dtype
    assert made.stride() == expected.stride()
    assert torch.equal(made.cpu(), expected)


def test_random_numbers_follow_the_seed_and_equal_the_cpus() -> None:
    torch.manual_seed(3)
    first = torch.randn(4, device="sim")
    torch.manual_seed(3)
    assert torch.equal(torch.randn(4, device="sim"), first)
    torch.manual_seed(3)
    assert torch.equal(torch.randn(4), first.cpu())


def test_fork_rng_puts_the_generator_back() -> None:
    torch.manual_seed(3)
    with torch.random.fork_rng(device_type="sim"):
        torch.randn(4, device="sim")
    after = torch.randn(4, device="sim")
    torch.manual_seed(3)
    assert torch.equal(torch.randn(4, device="sim"), after)


def test_round_trip_keeps_bits_of_every_dtype() -> None:
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.uint8, torch.int64, torch.bool, torch.complex64):
        host = torch.arange(8).to(dtype)
        assert torch.equal(host.to("sim").to("cpu").view(torch.uint8), host.view(torch.uint8))


def test_base_sees_what_is_written_through_a_view() -> None:
    base = torch.zeros(4, 4, device="sim")
    base[1].fill_(3)
    base.view(-1)[0] = 7
    base.t()[3, 2:].add_(1)
    base.chunk(2)[1][1].mul_(2).add_(5)
    expected = torch.zeros(4, 4)
    expected[1].fill_(3)
    expected.view(-1)[0] = 7
    expected.t()[3, 2:].add_(1)
    expected.chunk(2)[1][1].mul_(2).add_(5)
    assert torch.equal(base.cpu(), expected)


def test_view_sees_what_is_written_through_the_base() -> None:
    base = torch.zeros(4, device="sim")
    view = base[1:3]
    base.fill_(2)
    assert view.tolist() == [2.0, 2.0]
    assert view._is_view()
    assert view._base is base


@pytest.mark.parametrize(
    "change",
    [
        lambda x_RC: x_RC.t_(),
        lambda x_RC: x_RC.transpose_(0, 1),
        lambda x_RC: x_RC.unsqueeze_(0),
        lambda x_RC: x_RC.unsqueeze_(0).squeeze_(0),
        lambda x_RC: x_RC.unsqueeze_(1).squeeze_(),
        lambda x_RC: x_RC.swapaxes_(0, 1),
        lambda x_RC: x_RC.as_strided_((2, 2), (1, 2), 1),
        lambda x_RC: x_RC.resize_(3, 2),
        lambda x_RC: x_RC.resize_(2),
        lambda x_RC: x_RC.set_(torch.arange(3.0, device=x_RC.device)),
    ],
)
def test_in_place_changes_of_shape_reach_the_inside(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The outside alone changing would show only later, as wrong values."""
    inputs = [torch.arange(6.0).view(2, 3).to(device) for device in ("sim", "cpu")]
    made, expected = (change(one) for one in inputs)
    assert made is inputs[0]
    assert isinstance(made, SimTensor)
    assert made.shape == made.raw.shape == expected.shape
    assert made.stride() == expected.stride()
    assert torch.equal((made + 0).cpu(), expected)


def test_out_argument_is_resized_and_returned() -> None:
    out = torch.empty(0, device="sim")
    result = torch.add(torch.ones(3, device="sim"), 1, out=out)
    assert result is out
    assert out.tolist() == [2.0, 2.0, 2.0]


def test_slices_masks_and_index_tensors() -> None:
    for device in ("sim", "cpu"):
        x_RC = torch.arange(12.0, device=device).view(3, 4)
        x_RC[1:3, ::2] = 50
        x_RC[x_RC > 40] = -1
        x_RC[torch.tensor([0, 2], device=device), torch.tensor([1, 1], device=device)] += 100
        if device == "sim":
            got = (x_RC.tolist(), x_RC[x_RC < 0].tolist(), x_RC[torch.tensor([2, 0])].tolist())
    assert got == (x_RC.tolist(), x_RC[x_RC < 0].tolist(), x_RC[torch.tensor([2, 0])].tolist())


def test_values_reach_python() -> None:
    x = torch.tensor(2.5, device="sim")
    assert x.item() == 2.5
    assert float(x) == 2.5
    assert bool(x)
    assert f"{x:.2f}" == "2.50"
    assert torch.tensor([[1, 2]], device="sim").tolist() == [[1, 2]]
    with pytest.raises(TypeError, match="can't convert sim:0 device type tensor to numpy"):
        x.numpy()
    assert x.numpy(force=True) == 2.5


def test_printing_names_the_device_and_the_gradient() -> None:
    x = torch.ones(2, device="sim")
    assert repr(x) == "tensor([1., 1.], device='sim:0')"
    assert str(x.requires_grad_()) == "tensor([1., 1.], device='sim:0', requires_grad=True)"
    assert repr(x * 2) == "tensor([2., 2.], device='sim:0', grad_fn=<MulBackward0>)"


def test_numbers_that_torch_has_wrapped_keep_their_rank_in_promotion() -> None:
    for dtype in (torch.int64, torch.int32, torch.float16, torch.float32):
        for number in (5, 2.5):
            scalar = torch.tensor(7, dtype=dtype)
            made = torch.remainder(scalar.to("sim"), number)
            expected = torch.remainder(scalar, number)
            assert made.dtype == expected.dtype, (dtype, number)
            assert torch.equal(made.cpu(), expected)
    x = torch.arange(6.0).view(2, 3)
    assert torch.equal(
        x.to("sim").take_along_dim(torch.tensor([[-1], [0]], device="sim"), 1).cpu()[:, 0], x[[0, 1], [2, 0]]
    )


def test_conjugation_is_by_value() -> None:
    z = torch.tensor([1 + 2j, 3 - 1j])
    made = z.to("sim").conj()
    assert torch.equal(torch.view_as_real(made).cpu(), torch.view_as_real(z.conj().resolve_conj()))
    assert torch.equal(made.imag.cpu(), z.conj().imag)


def test_setting_data_changes_what_is_computed() -> None:
    x = torch.ones(2, device="sim")
    x.data = torch.full((3,), 4.0, device="sim")
    assert x.tolist() == [4.0, 4.0, 4.0]
    assert (x * 2).tolist() == [8.0, 8.0, 8.0]


def test_module_moves_there_and_back() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module.to("sim")
    assert {value.device.type for value in module.state_dict().values()} == {"sim"}
    assert all(isinstance(one, torch.nn.Parameter) for one in module.parameters())
    module.to("cpu")
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_module_changes_dtype_on_the_device() -> None:
    module = torch.nn.Linear(3, 4).to("sim")
    expected = copy.deepcopy(module).cpu().bfloat16()(torch.ones(2, 3, dtype=torch.bfloat16))
    module.bfloat16()
    got = module(torch.ones(2, 3, device="sim", dtype=torch.bfloat16))
    assert torch.equal(got.cpu(), expected)


def test_state_dict_loads_in_both_directions() -> None:
    host, device = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2).to("sim")
    device.load_state_dict(host.state_dict())
    assert torch.equal(device.weight.cpu(), host.weight)
    torch.nn.init.ones_(device.weight)
    host.load_state_dict(device.state_dict())
    assert torch.equal(host.weight, torch.ones(2, 3))


def test_module_is_made_on_the_device() -> None:
    with torch.device("sim"):
        module = torch.nn.Linear(3, 2)
    assert module.weight.device.type == "sim"
    empty = torch.nn.Linear(3, 2, device="meta").to_empty(device="sim")
    assert empty.weight.device.type == "sim"


def test_deepcopy_copies_the_memory() -> None:
    module = torch.nn.Linear(3, 2).to("sim")
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.weight.zero_()
    assert twin.weight.abs().sum().item() == 0
    assert module.weight.abs().sum().item() > 0


@pytest.mark.parametrize("causal", [False, True])
def test_scaled_dot_product_attention(causal: bool) -> None:
    torch.manual_seed(0)
    q_BHSD, k_BHSD, v_BHSD = (torch.randn(2, 3, 5, 8) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q_BHSD, k_BHSD, v_BHSD, is_causal=causal)
    got = torch.nn.functional.scaled_dot_product_attention(
        q_BHSD.to("sim"), k_BHSD.to("sim"), v_BHSD.to("sim"), is_causal=causal
    )
    assert torch.allclose(got.cpu(), expected, atol=1e-6)


def test_forward_and_backward_equal_the_cpus() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3),
        torch.nn.GELU(),
        torch.nn.Flatten(),
        torch.nn.LayerNorm(18),
        torch.nn.Linear(18, 4),
        torch.nn.SiLU(),
        torch.nn.Linear(4, 3, bias=False),
    )
    twin = copy.deepcopy(module).to("sim")
    x_BCHW = torch.randn(2, 1, 5, 5)
    module(x_BCHW).square().mean().backward()
    twin(x_BCHW.to("sim")).square().mean().backward()
    for ours, theirs in zip(twin.parameters(), module.parameters(), strict=True):
        assert isinstance(ours.grad, SimTensor)
        assert theirs.grad is not None
        assert torch.allclose(ours.grad.cpu(), theirs.grad, atol=1e-7)


def test_optimiser_steps_on_the_device() -> None:
    parameter = torch.nn.Parameter(torch.ones(3, device="sim"))
    (parameter * 2).sum().backward()
    torch.optim.AdamW([parameter], lr=0.5, weight_decay=0.0).step()
    assert torch.allclose(parameter.detach().cpu(), torch.full((3,), 0.5))


def test_device_module_answers() -> None:
    sim = torch.sim  # type: ignore[attr-defined]  # registered while running
    assert sim.is_available()
    assert sim.device_count() == 1
    assert sim.current_device() == 0
    sim.set_device("sim:0")
    sim.synchronize()
    with pytest.raises(RuntimeError, match="invalid device ordinal 1"):
        sim.set_device(1)
    assert torch.accelerator.current_accelerator() == torch.device("sim")


def test_transfers_and_waits_are_counted() -> None:
    x = torch.ones(4)
    before = counters()
    transfers, size, waits = before.transfers, before.transfer_bytes, before.host_syncs
    y = x.to("sim")
    assert (before.transfers - transfers, before.transfer_bytes - size, before.host_syncs - waits) == (1, 16, 0)
    y.cpu()
    assert (before.transfers - transfers, before.transfer_bytes - size, before.host_syncs - waits) == (2, 32, 1)
    y.sum().item()
    y.nonzero()
    y.add_(1)
    assert before.host_syncs - waits == 3
    assert before.calls["aten::add_.Tensor"] == 1


def test_nothing_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (torch.ones(2, device="sim") + torch.ones(2, device="sim")).cpu()


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x[0],
        lambda x: x + 1,
        lambda x: x.t(),
        lambda x: x.detach(),
        lambda x: (x + 1)[0],
        lambda x: x[0].add_(0),
        lambda x: x.split(1)[1],
        lambda x: torch.cat((x[0], x[1])),
        lambda x: x.as_strided((2,), (1,)),
        lambda x: x.clone(),
    ],
)
def test_inference_mode_is_that_of_other_devices(use: Callable[[torch.Tensor], torch.Tensor]) -> None:
    # Views of tensors from outside could not be made: "Cannot set version_counter for inference tensor".
    host = torch.arange(6.0).reshape(2, 3)
    device = host.to("sim")
    with torch.inference_mode():
        expected, got = use(host), use(device)
        inside_host, inside = host + 1, device + 1
    assert (got.is_inference(), got.tolist()) == (expected.is_inference(), expected.tolist())
    # What was made inside of the mode stays its own afterwards.
    assert use(device).is_inference() == use(host).is_inference() is False
    assert inside[0].is_inference() == inside_host[0].is_inference() is True
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        inside.add_(1)
