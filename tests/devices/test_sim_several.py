"""Several simulated devices in one process: indices, the current one, transfers between them, memory of each."""

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack

from day0.devices.sim.tensor import SimTensor

OpenWith = Callable[..., Any]
MIXED = r"Expected all tensors to be on the same device, but found at least two devices, sim:0 and sim:1!"


def _sim() -> Any:
    return torch.sim  # type: ignore[attr-defined]  # registered while running


@pytest.fixture(autouse=True)
def _three(open_with: OpenWith) -> None:
    open_with(devices=3, link_gb_s=1.0)


def _index(tensor: torch.Tensor) -> int:
    assert isinstance(tensor, SimTensor)
    assert tensor.device == torch.device("sim", tensor.get_device())
    return tensor.get_device()


def test_count_comes_from_the_profile(open_with: OpenWith) -> None:
    assert _sim().device_count() == 3
    for ask in (
        lambda: torch.ones(2, device="sim:3"),
        lambda: torch.ones(2).to("sim:3"),
        lambda: torch.ones(2, device="sim").to("sim:3"),
        lambda: _sim().set_device(3),
        lambda: _sim().memory_allocated(3),
        lambda: torch.Generator(device="sim:3"),
    ):
        with pytest.raises(RuntimeError, match="invalid device ordinal 3; there are 3 devices, sim:0 to sim:2"):
            ask()
    open_with(devices=1)
    with pytest.raises(RuntimeError, match="invalid device ordinal 1; there is one device, sim:0"):
        torch.ones(2, device="sim:1")
    with pytest.raises(ValueError, match="Expected a sim device"):
        _sim().set_device("cpu")


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x + 1,
        lambda x: x @ x,
        lambda x: x.t()[0],
        lambda x: x.clone(),
        lambda x: x.detach(),
        lambda x: x.bfloat16(),
        lambda x: x.topk(1)[1],
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: torch.zeros_like(x),
        lambda x: torch.rand_like(x),
        lambda x: x.new_zeros(2),
        lambda x: x.new_tensor([1, 2]),
        lambda x: x.to(torch.complex64).conj(),
        lambda x: torch.nn.functional.one_hot(x[0].long(), 3),
        lambda x: torch.empty(0, device=x.device).set_(x),
        lambda x: torch.add(x, 1, out=torch.empty(0, device=x.device)),
        lambda x: torch.nn.functional.conv1d(x[None], torch.ones(1, 2, 1, device=x.device)),
        lambda x: torch.arange(3, device=x.device),
    ],
)
def test_results_lie_where_the_arguments_lie(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert _index(make(torch.ones(2, 2, device="sim:1"))) == 1


@pytest.mark.parametrize(
    "mix",
    [
        lambda a, b: a + b,
        lambda a, b: a @ b,
        lambda a, b: torch.cat([a, b]),
        lambda a, b: torch.where(a > 0, a, b),
        lambda a, b: a[b.long()],
        lambda a, b: a.add_(b),
        lambda a, b: a + b[0, 0],
        lambda a, b: torch.add(a, 1, out=b),
        lambda a, b: torch.nn.functional.linear(a, b),
    ],
)
def test_two_indices_are_refused(mix: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(RuntimeError, match=MIXED):
        mix(torch.ones(2, 2, device="sim:0"), torch.ones(2, 2, device="sim:1"))


def test_current_device_is_what_sim_without_an_index_means() -> None:
    assert _sim().current_device() == 0
    with _sim().device(1):
        made = [
            torch.ones(2, device="sim"),
            torch.rand(2, device="sim"),
            torch.tensor([1.0], device="sim"),
            torch.ones(2).to("sim"),
            torch.ones(2).to(device="sim"),
            torch.ones(2).sim(),  # type: ignore[attr-defined]  # registered while running
            torch.nn.Linear(2, 2).to("sim").weight,
            torch.nn.Linear(2, 2, device="sim").weight,
        ]
        assert [_index(one) for one in made] == [1] * len(made)
        assert _index(torch.ones(2, device="sim:0")) == 0
        with _sim().device("sim:2"):
            assert _index(torch.ones(2, device="sim")) == 2
        assert _sim().current_device() == 1
    assert _index(torch.ones(2).to("sim")) == 0
    assert not _get_current_function_mode_stack(), "back on sim:0 nothing of it stays in torch"


def test_current_device_belongs_to_the_thread_and_outlives_other_modes() -> None:
    seen: list[int] = []

    def work() -> None:
        with torch.device("cpu"):
            _sim().set_device(2)
        seen.append(_index(torch.ones(1).to("sim")))
        seen.append(int(torch.ones(1).device.type == "cpu"))
        _sim().set_device(0)
        seen.append(_index(torch.ones(1).to("sim")))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [2, 1, 0]
    assert _sim().current_device() == 0


def test_transfers_between_devices_are_counted_over_the_link() -> None:
    x = torch.arange(256.0, device="sim:0")
    _sim().reset_counters()
    y = x.to("sim:1")
    torch.empty(256, device="sim:2").copy_(y)
    found = _sim().counters()
    assert torch.equal(y.cpu(), x.cpu())
    assert (found.between, found.between_bytes, found.to_device, found.to_host) == (2, 2048, 0, 0)
    assert found.transfer_seconds == pytest.approx(2048 / 1e9)
    assert found.host_syncs == 0
    y.add_(1)
    assert x[0].item() == 0, "it is a copy"
    assert x.to("sim:0") is x
    assert y.to("sim:1") is y


def test_memory_is_counted_by_device(open_with: OpenWith) -> None:
    gc.collect()
    start = [_sim().memory_allocated(index) for index in range(3)]
    x = torch.zeros(1024, device="sim:1")
    view = x[1:]
    assert [_sim().memory_allocated(index) for index in range(3)] == [start[0], start[1] + 4096, start[2]]
    assert _sim().memory_allocated("sim:1") == _sim().memory_allocated(torch.device("sim", 1)) == start[1] + 4096
    with _sim().device(1):
        assert _sim().memory_allocated() == start[1] + 4096
    del x, view
    assert _sim().memory_allocated(1) == start[1]
    assert _sim().max_memory_allocated(1) == start[1] + 4096
    assert _sim().max_memory_allocated(2) == start[2]
    open_with(devices=2, memory_gib=(max(start) + 6000) / 2**30)
    kept = torch.zeros(1024, device="sim:0")
    other = torch.zeros(1024, device="sim:1")
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 4\.00 KiB\. Device 1 has"):
        torch.zeros(1024, device="sim:1")
    assert _index(kept) != _index(other)


def test_module_and_its_copy_move_to_an_index() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).to("sim:1")
    assert {_index(value) for value in module.state_dict().values()} == {1}
    module.eval()
    assert _index(module(torch.ones(1, 2, device="sim:1"))) == 1
    with pytest.raises(RuntimeError, match="sim:1 and sim:0"):
        module(torch.ones(1, 2, device="sim:0"))
    module.to("sim:2")
    assert _index(module(torch.ones(1, 2, device="sim:2"))) == 2


def test_seeds_are_those_of_each_device() -> None:
    torch.manual_seed(4)
    first = torch.rand(3, device="sim:0")
    assert torch.equal(torch.rand(3, device="sim:1").cpu(), first.cpu()), "torch seeds all devices alike"
    with _sim().device(1):
        _sim().manual_seed(9)
        state = _sim().get_rng_state()
    assert torch.equal(state, _sim().get_rng_state(1))
    assert not torch.equal(state, _sim().get_rng_state(0))


def test_backward_beyond_the_first_device_is_refused_in_words() -> None:
    x = torch.ones(2, device="sim:1", requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"backward reaches a tensor on sim:1 or above"):
        (x * 2).sum().backward()
    with pytest.raises(NotImplementedError, match="train on sim:0"):
        torch.autograd.grad((x * 2).sum(), x)
    y = torch.ones(2, device="sim:0", requires_grad=True)
    (y * 2).sum().backward()
    assert y.grad is not None, "the engine goes on after it"
    assert y.grad.tolist() == [2.0, 2.0]


def test_streams_belong_to_a_device() -> None:
    stream = _sim().Stream("sim:1")
    with stream:
        assert _sim().current_device() == 1
        assert _sim().current_stream() is stream
        assert _sim().current_stream(0) is _sim().default_stream(0)
    assert _sim().current_device() == 0
    assert _sim().current_stream(1) is _sim().default_stream(1)
