"""Profiles: the shipped ones load, and a mistake in one of your own says file, line, field and what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from day0.devices.profile import DTYPES, Lack, list_profiles, load_profile
from day0.errors import Day0Error

GOOD = """\
schema: day0.device/1
name: mine
title: my device
torch_device: sim
kernels: CPU
source: a test
dtypes: [float32, int64, float8_e4m3fn]
storage_dtypes: [float8_e4m3fn]
memory_gib: 1
bandwidth_gb_s: 100
lacks:
  aten::topk: {reason: no selection}
"""


@pytest.mark.parametrize("name", ["cpu", "cuda", "null", "sim"])
def test_shipped_profiles_load_under_their_own_name(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.source
    assert set(profile.storage_dtypes) <= set(profile.dtypes)


def test_list_names_every_shipped_profile() -> None:
    assert list_profiles() == ("cpu", "cuda", "null", "sim")


def test_sim_lacks_what_young_libraries_lack() -> None:
    profile = load_profile("sim")
    assert not {"float64", "float4_e2m1fn_x2", "float8_e8m0fnu"} & set(profile.dtypes)
    assert {"aten::topk", "aten::_grouped_mm", "aten::histc"} <= set(profile.lacks)


def test_every_dtype_name_is_torchs() -> None:
    import torch

    assert all(isinstance(getattr(torch, name), torch.dtype) for name in DTYPES)


def test_own_file_loads(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    assert load_profile(str(path)).lacks["aten::topk"].reason == "no selection"


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("aten::topk:", "aten::topkk:", 12, "'aten::topkk' is not an operator of torch"),
        ("aten::topk:", "aten::topk.valuess:", 12, "'aten::topk.valuess' is not an operator of torch"),
        ("aten::topk:", "topk:", 12, "'topk' is not an operator of torch"),
        ("aten::topk:", "aten::clone:", 12, "no device can lack 'aten::clone'"),
        ("aten::topk:", "aten::transpose:", 12, "no device can lack 'aten::transpose'"),
        ("int64", "int65", 7, "not a dtype; dtypes are: bool, uint8"),
        ("memory_gib: 1", "memory_gib: 0", 9, "memory_gib"),
        ("memory_gib: 1", "memory_gb: 1", 9, "there is no such field 'memory_gb'"),
        ("name: mine", "name: [mine", 3, "malformed YAML"),
        ("day0.device/1", "day0.device/2", 1, "schema"),
    ],
)
def test_mistakes_name_line_and_problem(tmp_path: Path, old: str, new: str, line: int, says: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(Day0Error) as caught:
        load_profile(str(path))
    told = "\n".join((str(caught.value), *caught.value.facts))
    assert says in told
    assert f"{path}:{line}" in told
    assert caught.value.hint


def test_misspelt_operator_gets_a_suggestion(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace("aten::topk:", "aten::topkk:"))
    with pytest.raises(Day0Error) as caught:
        load_profile(str(path))
    assert "aten::topk" in caught.value.hint


@pytest.mark.parametrize("name", ["simm", "profiles/sim", "../sim"])
def test_unknown_profile_names_the_known(name: str) -> None:
    with pytest.raises(Day0Error, match="there is no such profile") as caught:
        load_profile(name)
    assert "sim" in caught.value.hint


def test_missing_file_is_told() -> None:
    with pytest.raises(Day0Error, match="there is no such file"):
        load_profile("nowhere.yaml")


def test_lack_with_dtypes_and_ranks_needs_both() -> None:
    lack = Lack(reason="r", dtypes=("float16",), ranks=(3,))
    assert lack.applies(("float16", "float32"), (3, 1))
    assert not lack.applies(("float16",), (2,))
    assert not lack.applies(("float32",), (3,))


def test_lack_of_one_overload_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace("aten::topk:", "aten::topk.values:"))
    profile = load_profile(str(path))
    assert profile.lack_of("aten::topk.values", ("float32",), (1,)) is not None
    assert profile.lack_of("aten::topk", ("float32",), (1,)) is None


def test_storage_dtypes_move_but_do_not_compute() -> None:
    profile = load_profile("null")
    assert profile.lack_of("aten::add.Tensor", ("float8_e4m3fn",), (1,)) is not None
    assert profile.lack_of("aten::view", ("float8_e4m3fn",), (1,)) is None
    assert profile.lack_of("aten::_to_copy", ("float8_e4m3fn", "float32"), (1,)) is None
    assert profile.lack_of("day0::mxfp4_decode", ("float8_e8m0fnu",), (1,)) is None


def test_profile_without_lacks_loads_without_torch(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD[: GOOD.index("lacks:")])
    code = (
        "import sys; from day0.devices.profile import list_profiles, load_profile; "
        f"list_profiles(); load_profile({str(path)!r}); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
