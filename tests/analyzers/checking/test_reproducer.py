"""Reproducers: what is written comes back as it was; what is damaged or hostile is refused and never run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from day0.analyzers.cases.case import Case
from day0.analyzers.cases.fill import make_inputs
from day0.analyzers.checking.case import Bench, judge_case
from day0.analyzers.checking.limits import Limits
from day0.analyzers.checking.outcome import Outcome
from day0.analyzers.checking.reproducer import judge, present_files, read, read_inputs, with_present_sources, write
from day0.analyzers.checking.setting import Loaded
from day0.devices.profile import load_profile
from day0.errors import Day0Error
from day0.playbook import CheckPlan
from day0.records import Lock
from day0.reference_ops.signatures import describe, signature_id, tensors_in

CPU = torch.device("cpu")
EMPTY = Lock(device="cpu", namespace="base", model="x", entries=())


def _written(folder: Path, **changes: Any) -> Case:
    base = torch.zeros(6, 8)
    signature = describe("aten::add.Tensor", (base[1:5, ::2], base[1:5, 1::2].t().contiguous().t()), {"alpha": 2.0})
    case = Case(signature_id=signature_id(signature), signature=signature, regime="ordinary", seed=3)
    loaded = Loaded(device=CPU, lock=EMPTY, implementations=(), cases={}, limits=Limits())
    result = judge_case(case, Bench(device=CPU, active=None, lock=EMPTY))
    extra = {
        "profile": load_profile("cpu").model_dump(mode="json", by_alias=True),
        "plan": CheckPlan().model_dump(mode="json"),
        "files": [],
        "without": [],
        "plants": [],
        "golden": True,
        **changes,
    }
    assert write(folder, case, result, loaded, extra) == ""
    return case


def test_inputs_come_back_with_strides_offsets_and_values(tmp_path: Path) -> None:
    case = _written(tmp_path)
    about = read(tmp_path)
    assert about.made_case("x") == case
    made, again = make_inputs(case, None), read_inputs(tmp_path, about)
    assert describe("x", again.args, again.kwargs) == describe("x", made.args, made.kwargs)  # type: ignore[union-attr]  # it can be filled
    pairs = zip(tensors_in(again.args), tensors_in(made.args), strict=True)  # type: ignore[union-attr]  # as above
    assert all(torch.equal(a, b) for a, b in pairs)
    assert judge(tmp_path, Bench(device=CPU, active=None, lock=EMPTY)).status == "pass"
    golden = safetensors.torch.load_file(tmp_path / "golden.safetensors")
    assert golden["golden_0"].dtype == torch.float64


def test_the_script_is_python_and_says_how_to_run_it(tmp_path: Path) -> None:
    _written(tmp_path)
    text = (tmp_path / "repro.py").read_text()
    compile(text, "repro.py", "exec")
    assert "day0 repro ." in text


def test_a_hostile_reason_does_not_end_the_docstring(tmp_path: Path) -> None:
    case = _written(tmp_path)
    said = 'a""" ; import os; os.abort() \\'
    loaded = Loaded(device=CPU, lock=EMPTY, implementations=(), cases={}, limits=Limits())
    about = read(tmp_path)
    extra = {"profile": about.profile.model_dump(mode="json", by_alias=True), "plan": {}, "files": [], "without": []}
    write(tmp_path, case, Outcome(case=case).crashed(said), loaded, {**extra, "plants": [], "golden": False})
    tree = compile((tmp_path / "repro.py").read_text(), "repro.py", "exec")
    assert "abort" not in tree.co_names


def _case(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def act(folder: Path) -> None:
        path = folder / "case.json"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return act


def _set(document: dict[str, Any], value: object, *path: str | int) -> None:
    for part in path[:-1]:
        document = document[part]  # type: ignore[index]  # strings and ints, as JSON has them
    document[path[-1]] = value  # type: ignore[index]  # as above


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing there": (lambda f: (f / "case.json").unlink(), "there is no reproducer here"),
    "half a file": (lambda f: (f / "case.json").write_text((f / "case.json").read_text()[:200]), "cannot be read"),
    "not text": (lambda f: (f / "case.json").write_bytes(b"\xff\xfe"), "cannot be read"),
    "nested without end": (lambda f: (f / "case.json").write_text("[" * 100_000), "cannot be read"),
    "of a later day0": (_case(lambda d: _set(d, "day0.repro/2", "schema")), "expected schema day0.repro/1"),
    "a field is missing": (_case(lambda d: d.pop("lock")), "lock: field required"),
    "a field too many": (_case(lambda d: _set(d, 1, "run")), "run: extra inputs"),
    "fields that cases do not have": (_case(lambda d: _set(d, 1, "case", "code")), "unexpected keyword"),
    "a shape beyond its memory": (_case(lambda d: _set(d, [9999, 9999], "args", 0, "shape")), "reaches beyond"),
    "an offset beyond its memory": (_case(lambda d: _set(d, 1 << 40, "args", 0, "offset")), "reaches beyond"),
    "a negative stride": (_case(lambda d: _set(d, [-4, 1], "args", 0, "stride")), "reaches beyond"),
    "a storage that is not there": (_case(lambda d: _set(d, 7, "args", 0, "storage")), "do not fit"),
    "a dtype that is none": (_case(lambda d: _set(d, "__import__", "args", 0, "dtype")), ""),
    "no inputs": (lambda f: (f / "inputs.safetensors").unlink(), "cannot be read"),
    "half of the inputs": (lambda f: (f / "inputs.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{"), "cannot be read"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_folder_is_refused_by_name(tmp_path: Path, name: str) -> None:
    _written(tmp_path)
    damage, said = DAMAGE[name]
    damage(tmp_path)
    with pytest.raises(Day0Error) as caught:
        about = read(tmp_path)
        about.made_case(str(tmp_path))
        read_inputs(tmp_path, about)
    assert said in str(caught.value)


def test_code_that_comes_with_a_folder_is_not_run(tmp_path: Path) -> None:
    inside = tmp_path / "evil.py"
    inside.write_text("raise SystemExit")
    for path in (str(inside), "evil.py", f"{tmp_path}/sub/../evil.py"):
        _written(tmp_path, files=[{"path": path, "sha256": "sha256:0"}])
        with pytest.raises(Day0Error, match="code that comes with it is not run"):
            present_files(tmp_path, read(tmp_path))


def test_a_kernel_file_that_is_gone_is_named(tmp_path: Path) -> None:
    _written(tmp_path, files=[{"path": "/nowhere/kernel.py", "sha256": "sha256:0"}])
    with pytest.raises(Day0Error, match=r"/nowhere/kernel\.py is not there") as caught:
        present_files(tmp_path, read(tmp_path))
    assert caught.value.hint == "give it with --with FILE"


def test_inputs_that_are_too_large_are_left_out(tmp_path: Path) -> None:
    signature = describe("aten::abs", (torch.zeros(1).expand(3),), {})
    value = signature.args[0].model_copy(update={"shape": (5_000, 5_000), "stride": (5_000, 1)})
    signature = signature.model_copy(update={"args": (value,)})
    case = Case(signature_id="x", signature=signature, regime="ordinary", seed=0)
    loaded = Loaded(device=CPU, lock=EMPTY, implementations=(), cases={}, limits=Limits())
    said = write(tmp_path / "new", case, Outcome(case=case).crashed("x"), loaded, {})
    assert said == "its inputs take 95 MiB, more than 64"
    assert not (tmp_path / "new").exists()


def test_entries_of_other_operators_whose_kernels_are_gone_do_not_matter(tmp_path: Path) -> None:
    _written(tmp_path)
    setting, notes = with_present_sources(read(tmp_path), ())
    assert setting.lock.entries == ()
    assert notes == ()
