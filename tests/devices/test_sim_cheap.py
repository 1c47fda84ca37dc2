"""What the simulated device finds out once for an operator, or by one look, is what it would find for every call."""

from __future__ import annotations

import gc

import pytest
import torch

from day0.devices.profile import load_profile
from day0.devices.sim.arithmetic import flush_subnormals
from day0.devices.sim.device import open_sim
from day0.devices.sim.forward import wait_for, waits
from day0.devices.sim.refuse import SIZED, refuse_size
from day0.devices.sim.state import STATE


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_number_of_a_half_type_is_flushed_as_by_its_definition(dtype: torch.dtype) -> None:
    values = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    tiny = torch.finfo(dtype).tiny
    expected = torch.where((values.abs() < tiny) & (values != 0), values * 0, values)
    for part in (values, values[torch.isfinite(values)], values[values.abs() >= tiny], values[7::5]):
        found = part.clone()
        flush_subnormals(found)
        wanted = torch.where((part.abs() < tiny) & (part != 0), part * 0, part)
        assert torch.equal(found.view(torch.int16), wanted.view(torch.int16))
    assert not torch.equal(expected.nan_to_num(), values.nan_to_num())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_numbers_around_the_smallest_normal_one_are_flushed(dtype: torch.dtype, sign: float) -> None:
    info = torch.finfo(dtype)
    normal = torch.tensor(info.tiny, dtype=dtype)
    below = torch.nextafter(normal, torch.zeros_like(normal))
    smallest = torch.nextafter(torch.zeros_like(normal), normal)
    for one in (below, smallest):
        found = sign * torch.stack([one, normal])
        flush_subnormals(found)
        assert found.tolist() == [0.0, sign * info.tiny]
        assert bool(torch.signbit(found[0])) == (sign < 0)
    kept = sign * torch.stack([normal, 2 * normal])
    flush_subnormals(kept)
    assert kept.tolist() == [sign * info.tiny, 2 * sign * info.tiny]


def test_an_operator_that_never_lets_the_host_wait_is_one_for_which_wait_for_says_nothing() -> None:
    mask = torch.ones(2, dtype=torch.bool)
    quiet = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::") and not waits(name)]
    assert len(quiet) > 1000
    for name in quiet:
        assert wait_for(name, (mask, [mask]), {}) == ""
    for name in ("aten::_local_scalar_dense", "aten::repeat_interleave.Tensor", "aten::index.Tensor", "aten::nonzero"):
        assert waits(name)
        assert wait_for(name, (mask, [mask]), {})


def test_refuse_size_has_nothing_to_say_of_other_operators() -> None:
    open_sim(load_profile("sim"))
    assert sorted(SIZED) == ["aten::empty.memory_format", "aten::empty_strided", "aten::resize_"]
    for name in SIZED - {"aten::resize_"}:
        with pytest.raises(torch.OutOfMemoryError):
            refuse_size(name, ((1 << 50,), (1,)), {})


def test_a_profile_knows_of_which_operators_it_speaks() -> None:
    profile = load_profile("sim")
    assert profile.names("aten::topk.values")
    assert profile.names("aten::rsqrt")
    assert not profile.names("aten::add.Tensor")
    quiet = ("aten::add.Tensor", "aten::mm", "aten::cat")
    assert [profile.lack_of(name, ("float32",), (2,)) for name in quiet] == [None] * 3
    assert profile.lack_of("aten::add.Tensor", ("float8_e4m3fn",), (2,)) is not None  # what is stored only


def test_memory_is_given_back_when_the_last_view_goes() -> None:
    open_sim(load_profile("sim"))
    gc.collect()
    before = STATE.allocated_bytes
    made = torch.zeros(1000, device="sim")
    view = made[10:]
    assert STATE.allocated_bytes == before + 4000
    del made
    assert STATE.allocated_bytes == before + 4000
    del view
    assert STATE.allocated_bytes == before
