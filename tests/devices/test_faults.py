"""Every planted fault: off by default, and on its minimal input exactly as it says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from day0.devices.faults._fault import Fault
from day0.devices.faults.harness import NOT_ON_A_DEVICE
from day0.devices.faults.load import find_faults, load_faults, planted
from day0.devices.faults.observe import Observation, differences, lent_kernels, observe
from day0.devices.profile import load_profile
from day0.devices.sim.device import open_sim
from day0.devices.sim.planting import PLANTED
from day0.errors import Day0Error
from day0.reference_ops.signatures import tensors_in

ALL = tuple(load_faults().values())
CPU = torch.device("cpu")


def _name(fault: Fault) -> str:
    return fault.name


@pytest.fixture(scope="module", autouse=True)
def kernels() -> Iterator[None]:
    open_sim(load_profile("null"))
    with lent_kernels():
        yield


@pytest.fixture
def sim() -> torch.device:
    return open_sim(load_profile("null"))


def _uncounted(one: Observation) -> Observation:
    return Observation(values=one.values, strides=one.strides, dtypes=one.dtypes, error=one.error)


def _as_numbers(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.tolist()
    return [_as_numbers(one) for one in result] if isinstance(result, (list, tuple)) else result


@pytest.mark.parametrize("fault", ALL, ids=_name)
def test_without_it_the_device_gives_what_the_cpu_gives(fault: Fault, sim: torch.device) -> None:
    off = observe(fault, sim)
    if not fault.minimal.on_cpu:
        assert off.error is not None, "what has no equal on the CPU is an error about two devices"
        return
    assert differences(_uncounted(off), _uncounted(observe(fault, CPU))) == frozenset()


@pytest.mark.parametrize("fault", ALL, ids=_name)
def test_with_it_its_minimal_input_differs_as_it_says(fault: Fault, sim: torch.device) -> None:
    off = observe(fault, sim)
    with planted(fault.name):
        on = observe(fault, sim)
    again = observe(fault, sim)
    assert differences(on, off) == fault.minimal.shows, f"{on}\nagainst\n{off}"
    assert differences(again, off) == frozenset(), "it is gone when the block ends"


@pytest.mark.parametrize("fault", [one for one in ALL if one.minimal.gives is not None], ids=_name)
def test_with_it_its_minimal_input_gives_these_numbers(fault: Fault, sim: torch.device) -> None:
    with planted(fault.name):
        got = _as_numbers(fault.minimal.run(sim))
    torch.testing.assert_close(torch.tensor(_flat(got)), torch.tensor(_flat(fault.minimal.gives)), equal_nan=True)


def _flat(value: Any) -> list[float]:
    return [one for item in value for one in _flat(item)] if isinstance(value, list) else [float(value)]


@pytest.mark.parametrize("fault", [one for one in ALL if one.minimal.raises is not None], ids=_name)
def test_with_it_its_minimal_input_raises_this(fault: Fault, sim: torch.device) -> None:
    raises = fault.minimal.raises
    assert raises is not None
    with planted(fault.name), pytest.raises(raises) as caught:
        fault.minimal.run(sim)
    assert fault.minimal.message
    assert fault.minimal.message in str(caught.value)
    assert type(caught.value) is raises
    assert PLANTED.get() is None, "also after an exception"


@pytest.mark.parametrize("fault", [one for one in ALL if not one.is_fault], ids=_name)
def test_a_legitimate_difference_changes_no_shape_and_raises_nothing(fault: Fault, sim: torch.device) -> None:
    off = observe(fault, sim)
    with planted(fault.name):
        on = observe(fault, sim)
    assert on.error is None
    assert (on.strides, on.dtypes) == (off.strides, off.dtypes)
    assert fault.minimal.shows == {"values"}


def test_the_legitimate_differences_are_within_their_contracts(sim: torch.device) -> None:
    scores = torch.tensor([[2.0, 1.0, 1.0, 1.0, 3.0]], device=sim)
    with planted("topk_ties_other_way"):
        values, indices = scores.topk(3)
    assert values.tolist() == [[3.0, 2.0, 1.0]]
    assert indices.tolist() == [[4, 0, 3]], "valid, distinct, and of the values that are returned"
    with planted("unstable_sort_other_way"):
        found, stable = scores.sort(), scores.sort(stable=True)
    assert scores.gather(1, found.indices).tolist() == found.values.tolist() == stable.values.tolist()
    assert found.indices.tolist() == [[3, 2, 1, 0, 4]]
    assert stable.indices.tolist() == [[1, 2, 3, 0, 4]], "what is asked to be stable is"
    with planted("argmax_last_of_equals"):
        assert scores.argmax(-1).tolist() == [4]
        assert scores[:, 1:4].argmax(-1).tolist() == [2]


def test_the_other_dropout_has_the_same_distribution_and_scale(sim: torch.device) -> None:
    ones = torch.ones(4000, device=sim)
    with planted("dropout_other_stream"):
        kept = torch.nn.functional.dropout(ones, 0.25, training=True).cpu()
        assert torch.equal(torch.nn.functional.dropout(ones, 0.25, training=False).cpu(), ones.cpu())
    assert set(kept.tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert abs(kept.mean().item() - 1.0) < 0.05


def test_the_legitimate_roundings_are_at_most_as_far_off_as_the_dtype(sim: torch.device) -> None:
    a, b = (torch.randn(1000, generator=torch.Generator().manual_seed(n)).to(torch.bfloat16) for n in (0, 1))
    with planted("bfloat16_cut_off"):
        got = (a.to(sim) * b.to(sim)).cpu()
    exact = a.double() * b.double()
    assert ((got.double() - exact).abs() <= exact.abs() * torch.finfo(torch.bfloat16).eps).all()
    index, values = torch.zeros(40, dtype=torch.int64), torch.full((40,), 0.1, dtype=torch.float16)
    base = torch.ones(1, dtype=torch.float16)
    with planted("index_put_accumulates_wide"):
        wide = base.to(sim).index_put((index.to(sim),), values.to(sim), accumulate=True)
    assert wide.item() == 5.0


def test_there_are_at_least_sixty_and_each_says_where_it_comes_from() -> None:
    entries = load_faults()
    assert sum(one.is_fault for one in entries.values()) >= 60
    assert len({one.does for one in entries.values()}) == len(entries)
    for name, one in entries.items():
        assert name == one.name
        assert one.does.strip()
        assert one.operators
        assert one.source
        for source in one.source.split():
            assert source.startswith("https://") or "#" in source, source
    for row in NOT_ON_A_DEVICE:
        assert row.reason
        assert row.source


def test_every_operator_of_every_entry_exists() -> None:
    known = set(torch._C._dispatch_get_all_op_names())
    bases = {name.partition(".")[0] for name in known}
    for one in load_faults().values():
        for operator in one.operators:
            assert operator in known or operator in bases, f"{one.name}: {operator}"


def test_an_unknown_name_lists_near_ones_and_plants_nothing() -> None:
    with pytest.raises(Day0Error, match="no such planted fault") as caught, planted("all_nan", "nibles_swapped"):
        pass
    assert caught.value.hint.startswith("did you mean nibbles_swapped")
    assert PLANTED.get() is None
    with pytest.raises(Day0Error) as far:
        find_faults(("zzz",))
    assert "day0 device faults" in far.value.hint


def test_several_at_once_and_nested_ones_go_one_after_the_other(sim: torch.device) -> None:
    row, column = torch.ones(1, 2, device=sim), torch.ones(2, 1, device=sim)
    with planted("half_as_much_again", "select_doubles_index"):
        assert (row @ column).tolist() == [[3.0]]
        assert torch.arange(3.0, device=sim)[1].item() == 2.0
        with planted("one_input_in_four"):
            assert (row @ column).tolist() == [[3.0]]
        with planted("largest_doubled"):
            assert (torch.ones(1, 1, device=sim) @ torch.tensor([[1.0, 2.0]], device=sim)).tolist() == [[1.5, 6.0]]
    assert (row @ column).tolist() == [[2.0]]
    assert PLANTED.get() is None


def test_no_name_plants_nothing(sim: torch.device) -> None:
    with planted() as found:
        assert found == ()
        assert PLANTED.get() is None


def test_two_threads_have_faults_of_their_own(sim: torch.device) -> None:
    ready, seen = threading.Barrier(3, timeout=60), {}
    row, column = torch.ones(1, 2, device=sim), torch.ones(2, 1, device=sim)

    def work(key: str, *names: str) -> None:
        with planted(*names):
            ready.wait()
            seen[key] = [(row @ column).item() for _ in range(50)]
            ready.wait()

    threads = [
        threading.Thread(target=work, args=("larger", "half_as_much_again")),
        threading.Thread(target=work, args=("right",)),
    ]
    for thread in threads:
        thread.start()
    ready.wait()
    seen["here"] = [(row @ column).item() for _ in range(50)]
    ready.wait()
    for thread in threads:
        thread.join()
    assert {key: set(values) for key, values in seen.items()} == {"larger": {3.0}, "right": {2.0}, "here": {2.0}}


@pytest.mark.parametrize("profile", ["sim", "null"])
def test_faults_are_there_whatever_the_profile(profile: str) -> None:
    device = open_sim(load_profile(profile))
    try:
        with planted("half_as_much_again"):
            assert (torch.ones(1, 2, device=device) @ torch.ones(2, 1, device=device)).item() == 3.0
    finally:
        open_sim(load_profile("null"))


def test_a_planted_fault_reaches_the_backward_pass(sim: torch.device) -> None:
    weight = torch.ones(2, 1, device=sim, requires_grad=True)
    with planted("half_as_much_again"):
        loss = (torch.ones(1, 2, device=sim) @ weight).sum()
        loss.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [[1.5], [1.5]]


def test_what_a_fault_remembers_is_forgotten_when_it_is_planted_again(sim: torch.device) -> None:
    fault = load_faults()["state_stale_when_replayed"]
    for _ in range(2):
        with planted(fault.name):
            first, second, third = (one.cpu() for one in tensors_in(fault.minimal.run(sim)))
        assert torch.equal(second, third)
        assert not torch.equal(first, second)
