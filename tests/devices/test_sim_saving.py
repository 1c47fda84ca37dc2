"""Tensors of `sim` in files, copies and batches."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch.utils.data import DataLoader, TensorDataset

from day0.devices.sim.tensor import SimTensor

pytestmark = pytest.mark.usefixtures("null")


def _sim() -> Any:
    return torch.sim  # type: ignore[attr-defined]  # registered while running


def _saved_and_loaded(value: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True, **options)


# ------------------------------------------------------------------------------------------------- files


def test_safetensors_from_the_device_and_into_a_module(tmp_path: Path) -> None:
    module, twin = (torch.nn.Linear(3, 2).to("sim") for _ in range(2))
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(module.state_dict(), path)
    loaded = safetensors.torch.load_file(path)
    assert torch.equal(loaded["weight"], module.weight.detach().cpu())
    twin.load_state_dict(loaded)
    assert torch.equal(twin.weight, module.weight)
    torch.nn.init.zeros_(twin.weight)
    safetensors.torch.load_model(twin, path)
    assert torch.equal(twin.weight, module.weight)
    assert twin.weight.device.type == "sim"


def test_safetensors_sees_tensors_that_share_memory(tmp_path: Path) -> None:
    module = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2, bias=False), "b": torch.nn.Linear(2, 2, bias=False)})
    module.to("sim")
    module["b"].weight = module["a"].weight
    with pytest.raises(RuntimeError, match="share memory"):
        safetensors.torch.save_file(module.state_dict(), tmp_path / "tied.safetensors")
    safetensors.torch.save_model(module, str(tmp_path / "tied.safetensors"))
    assert len(safetensors.torch.load_file(tmp_path / "tied.safetensors")) == 1


def test_torch_saves_and_loads_with_weights_only() -> None:
    x = torch.arange(6.0, device="sim")
    loaded = _saved_and_loaded({"x": x, "view": x.view(2, 3).t()})
    assert isinstance(loaded["x"], SimTensor)
    assert torch.equal(loaded["view"].cpu(), x.cpu().view(2, 3).t())
    assert loaded["view"].stride() == (1, 3)
    loaded["x"][0] = 7
    assert loaded["view"][0, 0].item() == 7, "they share their memory again"
    assert x[0].item() == 0


@pytest.mark.parametrize(("place", "kind"), [("cpu", "cpu"), ("sim", "sim"), ("sim:0", "sim")])
def test_loading_goes_where_it_is_asked_to(place: str, kind: str) -> None:
    for value in (torch.ones(3), torch.ones(3, device="sim")):
        loaded = _saved_and_loaded(value, map_location=place)
        assert loaded.device.type == kind
        assert loaded.tolist() == [1.0, 1.0, 1.0]
    _sim().reset_counters()
    _saved_and_loaded(torch.ones(256), map_location="sim")
    assert _sim().counters().to_device_bytes == 1024
    with pytest.raises(RuntimeError, match="invalid device ordinal 5"):
        _saved_and_loaded(torch.ones(3), map_location="sim:5")


def test_parameters_and_optimisers_come_back() -> None:
    module = torch.nn.Linear(2, 2).to("sim")
    optimiser = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 2, device="sim")).sum().backward()
    optimiser.step()
    parameter = _saved_and_loaded(module.weight)
    assert isinstance(parameter, torch.nn.Parameter)
    assert parameter.requires_grad
    state = _saved_and_loaded({"model": module.state_dict(), "optimiser": optimiser.state_dict()})
    twin = torch.nn.Linear(2, 2).to("sim")
    twin.load_state_dict(state["model"])
    assert torch.equal(twin.weight, module.weight)
    again = torch.optim.AdamW(twin.parameters())
    again.load_state_dict(state["optimiser"])
    assert torch.equal(again.state_dict()["state"][0]["exp_avg"], optimiser.state_dict()["state"][0]["exp_avg"])


# ------------------------------------------------------------------------------------------------ copies


def test_deepcopy_keeps_aliases_gradients_and_attributes() -> None:
    parameter = torch.nn.Parameter(torch.ones(2, 2, device="sim"))
    (parameter * 3).sum().backward()
    parameter.loader = "by rows"  # type: ignore[attr-defined]  # serving engines do this
    both = {"first": parameter, "again": parameter, "view": parameter.detach()[0]}
    twin = copy.deepcopy(both)
    assert twin["first"] is twin["again"]
    assert isinstance(twin["first"], torch.nn.Parameter)
    assert twin["first"].loader == "by rows"  # type: ignore[attr-defined]  # see above
    assert twin["first"].grad is not None
    assert twin["first"].grad.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    twin["view"].fill_(9)
    assert twin["first"].detach()[0].tolist() == [9.0, 9.0]
    assert parameter.detach()[0].tolist() == [1.0, 1.0]
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(parameter * 2)


def test_storages_and_pointers_tell_aliases() -> None:
    x, other = torch.ones(4, device="sim"), torch.ones(4, device="sim")
    assert x.data_ptr() == x.view(2, 2).data_ptr() != other.data_ptr()
    assert x[1:].data_ptr() == x.data_ptr() + 4
    assert x.untyped_storage().data_ptr() == x[1:].untyped_storage().data_ptr()
    assert x.untyped_storage().device == torch.device("sim", 0)
    assert x.untyped_storage().nbytes() == 16
    assert torch.equal(torch.empty(0, device="sim").set_(x.untyped_storage()), x)


# ------------------------------------------------------------------------------------------------ batches


def test_pinned_memory_is_the_hosts_and_known() -> None:
    host = torch.arange(4.0)
    pinned = host.pin_memory()
    assert pinned.device.type == "cpu"
    assert pinned.is_pinned()
    assert pinned[1:].is_pinned()
    assert not host.is_pinned()
    _sim().reset_counters()
    x = pinned.to("sim", non_blocking=True)
    back = x.to("cpu", non_blocking=True)
    assert _sim().counters().host_syncs == 0, "whoever reads it must synchronize"
    assert _sim().counters().to_device_bytes == _sim().counters().to_host_bytes == 16
    assert torch.equal(back, host)
    torch.empty(4).copy_(x)
    assert _sim().counters().host_syncs == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_a_loader_reach_the_device(workers: int) -> None:
    data = TensorDataset(torch.arange(12.0).view(6, 2), torch.arange(6))
    loader = DataLoader(data, batch_size=3, pin_memory=True, num_workers=workers)
    seen = []
    for x_BC, y_B in loader:
        assert x_BC.is_pinned()
        moved = x_BC.to("sim", non_blocking=True), y_B.to("sim", non_blocking=True)
        assert {one.device.type for one in moved} == {"sim"}
        seen.append((moved[0].sum() + moved[1].sum()).item())
    assert seen == [15.0 + 3, 51.0 + 12]
