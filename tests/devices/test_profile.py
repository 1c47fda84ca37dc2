"""Profiles: the shipped ones load, and a mistake in one of your own says file, line, field and what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from day0.devices.profile import list_profiles, load_profile
from day0.devices.profile_parts import DTYPES, Condition, Details, Grant, Lack, layout_of
from day0.errors import Day0Error

SHIPPED = ("cpu", "cuda", "h200", "null", "s5000", "sim", "sim-small", "sim-strict")

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


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles_load_under_their_own_name(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.source
    assert set(profile.storage_dtypes) <= set(profile.dtypes)


def test_list_names_every_shipped_profile() -> None:
    assert list_profiles() == SHIPPED


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
        ("memory_gib: 1", "memory_gib: 1.0e+308", 9, "memory_gib"),
        ("memory_gib: 1", "memory_gb: 1", 9, "there is no such field 'memory_gb'"),
        ("name: mine", "name: [mine", 3, "malformed YAML"),
        ("day0.device/1", "day0.device/2", 1, "schema"),
        ("storage_dtypes: [float8_e4m3fn]", "storage_dtypes: [float16]", 8, "not among the dtypes"),
        (
            "source: a test",
            "source: a test\nfallback: maybe",
            7,
            "input should be 'raise' or 'cpu', got the str 'maybe'",
        ),
        ("source: a test", "source: a test\nsubnormals: lost", 7, "input should be 'keep' or 'flush'"),
        ("source: a test", "source: a test\nforward_refuses: [items]", 7, "input should be 'item', 'nonzero' or 'to'"),
        ("source: a test", "source: a test\ndevices: 0", 7, "greater than or equal to 1, got the int 0"),
        (
            "source: a test",
            "source: a test\nbasis: {memory: {evidence: claimed, source: x}}",
            7,
            "no such field 'memory'",
        ),
        ("source: a test", "source: a test\ntflops: {float33: 1}", 7, "not a dtype; dtypes are: bool, uint8"),
        ("source: a test", "source: a test\nmatmul: {float32: {inputs: tf32}}", 7, "'exact', 'tfloat32', 'bfloat16'"),
        ("reason: no selection", "reason: x, unless: [{argument: k}]", 12, "needs one of: multiple_of, at_least"),
        ("reason: no selection", "reason: x, unless: [{argument: kk, at_most: 4}]", 12, "has no argument 'kk'"),
        (
            "reason: no selection",
            "reason: x, layouts: [channels]",
            12,
            "'contiguous', 'transposed', 'broadcast' or 'strided'",
        ),
        ("{reason: no selection}", "{raeson: no selection}", 12, "there is no such field 'raeson'"),
        ("lacks:", "operators: {aten::mmm: {ranks: [2]}}\nlacks:", 11, "'aten::mmm' is not an operator of torch"),
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


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ("reason: no selection", "raeson: no selection", "did you mean reason?"),
        ("reason: no selection", "zzz: no selection", "fields are: reason, dtypes, ranks, layouts, unless"),
        ("reason: no selection", "reason: x, unless: [{argument: kk, at_most: 4}]", "arguments are: dim, indices, k"),
        (
            "source: a test",
            "source: a test\nbasis: {memory: {evidence: claimed, source: x}}",
            "did you mean memory_gib?",
        ),
        ("source: a test", "source: a test\nmatmul: {float32: {input: exact}}", "did you mean inputs?"),
    ],
)
def test_mistakes_come_with_what_is_accepted(tmp_path: Path, old: str, new: str, hint: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(Day0Error) as caught:
        load_profile(str(path))
    told = "\n".join((caught.value.hint, *caught.value.facts))
    assert hint in told or hint in str(caught.value)


def test_schema_for_editors_is_current_and_named_in_every_profile() -> None:
    from day0.devices.schema import profile_schema

    folder = Path(load_profile.__code__.co_filename).with_name("profiles")
    assert (folder / "schema.json").read_text(encoding="utf-8") == profile_schema(), (
        "write it anew: day0 device schema > devices/profiles/schema.json"
    )
    for path in folder.glob("*.yaml"):
        assert path.read_text().startswith("# yaml-language-server: $schema=schema.json\n")


def test_every_figure_of_the_s5000_is_a_claim_with_its_source() -> None:
    profile = load_profile("s5000")
    said = {"schema_", "name", "title", "evidence", "source", "lacks", "basis"}
    assert profile.model_fields_set - said == set(profile.basis)
    assert {one.evidence for one in profile.basis.values()} == {"claimed"}
    assert {one.evidence for one in profile.lacks.values()} == {"claimed"}
    assert all(one.source for one in profile.basis.values())
    assert all(one.source for one in profile.lacks.values())


def test_grant_says_what_it_takes() -> None:
    grant = Grant(
        dtypes=("bfloat16",),
        ranks=(2,),
        layouts=("contiguous",),
        conditions=(Condition(argument="self", dim=-1, multiple_of=16),),
    )
    fits = Details(layouts=("contiguous", "contiguous"), sizes={"self": (4, 32), "mat2": (32, 8)})
    assert grant.refusal(("bfloat16", "bfloat16"), (2, 2), fits) is None
    odd = Details(layouts=fits.layouts, sizes={"self": (4, 24)})
    for dtypes, ranks, details, says in (
        (("float32",), (2,), fits, "it takes bfloat16 only"),
        (("bfloat16",), (3,), fits, "it takes tensors with 2 dimensions only"),
        (("bfloat16",), (2,), Details(layouts=("transposed",)), "it takes contiguous tensors only"),
        (("bfloat16",), (2,), odd, "self.shape[-1] is 24, and must be divisible by 16"),
    ):
        refusal = grant.refusal(dtypes, ranks, details)
        assert refusal is not None
        assert refusal.reason == says


@pytest.mark.parametrize(
    ("shape", "stride", "name"),
    [
        ((2, 3), (3, 1), "contiguous"),
        ((2, 3), (1, 2), "transposed"),
        ((2, 3), (0, 1), "broadcast"),
        ((2, 3), (6, 2), "strided"),
        ((1, 3), (99, 1), "contiguous"),
        ((0, 3), (1, 1), "contiguous"),
        ((), (), "contiguous"),
    ],
)
def test_layouts_have_names(shape: tuple[int, ...], stride: tuple[int, ...], name: str) -> None:
    assert layout_of(shape, stride) == name


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
