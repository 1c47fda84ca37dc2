"""Opening a device: ready for use, or a message that says what is missing."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from day0.devices.open import device_index, memory_allocated, open_torch_device, synchronize, use_device
from day0.devices.profile import load_profile
from day0.errors import Day0Error


def test_sim_opens_twice_and_is_ready() -> None:
    for name in ("null", "sim", "null"):
        device = open_torch_device(load_profile(name))
        assert device == torch.device("sim", 0)
        assert torch.ones(2, device=device).tolist() == [1.0, 1.0]


def test_cpu_opens() -> None:
    assert open_torch_device(load_profile("cpu")) == torch.device("cpu")


def test_absent_device_is_the_users_to_repair() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(Day0Error, match=r"device 'cuda': torch .* cannot use it here") as caught:
        open_torch_device(load_profile("cuda"))
    assert "--device sim" in caught.value.hint


def test_unknown_device_type_is_told() -> None:
    profile = load_profile("cpu").model_copy(update={"torch_device": "warp"})
    with pytest.raises(Day0Error, match="device 'warp'"):
        open_torch_device(profile)


def test_missing_plugin_is_named() -> None:
    profile = load_profile("cpu").model_copy(update={"import_module": "torch_of_nobody"})
    with pytest.raises(Day0Error, match="import_module 'torch_of_nobody' is not installed") as caught:
        open_torch_device(profile)
    assert "torch_of_nobody" in caught.value.hint


def test_plugin_is_imported(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "torch_of_a_test.py").write_text("LOADED = True\n")
    monkeypatch.syspath_prepend(str(folder))
    open_torch_device(load_profile("cpu").model_copy(update={"import_module": "torch_of_a_test"}))
    assert "torch_of_a_test" in sys.modules


def test_helpers_take_any_device(null: torch.device) -> None:
    for device in (null, torch.device("cpu")):
        synchronize(device)
        assert memory_allocated(device) >= 0
    before = memory_allocated(null)
    x = torch.zeros(256, device=null)
    assert memory_allocated(null) == before + 1024
    del x


def test_another_out_of_tree_device_is_not_pushed_aside() -> None:
    code = """
import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
_setup_privateuseone_for_python_backend("npu")
from day0.devices.open import open_torch_device
from day0.devices.profile import load_profile
from day0.errors import Day0Error
try:
    open_torch_device(load_profile("sim"))
except Day0Error as error:
    assert "already has the out-of-tree device 'npu'" in str(error), error
else:
    raise SystemExit("it took the place of another device")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "number", "chosen", "current"),
    [("cuda", 0, "cuda", [0]), ("cuda", 5, "cuda", [1]), ("cuda:0", 3, "cuda:3", [3]), ("cuda:2", None, "cuda:2", [])],
)
def test_one_of_several_devices_is_used(
    monkeypatch: pytest.MonkeyPatch, name: str, number: int | None, chosen: str, current: list[int]
) -> None:
    made: list[int] = []
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(device_count=lambda: 4, set_device=made.append))
    assert use_device(torch.device(name), number) == torch.device(chosen)
    assert made == current


def test_an_only_device_stays_what_it_is() -> None:
    assert use_device(torch.device("cpu"), 3) == torch.device("cpu")
    assert device_index(torch.device("cpu")) == 0
