"""Kernels in C++, CUDA C, Triton and TileLang register the same way; each says why where it cannot run."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from day0.analyzers.kernel_check import Call, check_kernel
from day0.errors import Day0Error
from day0.implementation import Implementation
from day0.kernels.load import load_implementation_file
from day0.reference_ops.signatures import describe
from day0.registry.collect import collect
from day0.registry.resolve import refusal

FOLDER = Path(__file__).resolve().parents[2] / "playbooks" / "examples" / "front_doors"
FILES = {path.stem.removesuffix("_rms_norm"): path for path in sorted(FOLDER.glob("*_rms_norm.py"))}
CALLS: list[Call] = [((torch.randn(3, 256), torch.ones(256), 1e-6), {})]

needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")


def loaded(name: str) -> Implementation:
    (one,) = load_implementation_file(FILES[name])
    return one


def test_all_of_them_register_at_once_and_import_nothing_of_theirs() -> None:
    before = set(sys.modules)
    found = collect(tuple(FILES.values()))
    mine = {
        Path(one.origin.partition(":")[0]).stem.removesuffix("_rms_norm") for one in found if FOLDER.name in one.origin
    }
    assert mine == set(FILES) == {"cpp", "cuda_c", "tilelang", "triton"}
    heavy = {"triton", "tilelang", "tvm", "torch.utils.cpp_extension"}
    assert not heavy & (set(sys.modules) - before)


@needs_compiler
def test_cpp_is_right_and_a_fault_in_it_is_seen(tmp_path: Path) -> None:
    checks = check_kernel(loaded("cpp"))
    assert {check.status for check in checks} == {"pass", "skipped"}
    assert {check.reason for check in checks if check.status == "skipped"} == {
        "takes bfloat16, float32, not float16 (x)"
    }
    broken = tmp_path / "broken.py"
    broken.write_text(FILES["cpp"].read_text().replace("sum / features) + eps", "sum / features) - eps"))
    (one,) = load_implementation_file(broken)
    assert "fail" in {check.status for check in check_kernel(one)}


def test_a_kernel_that_does_not_build_is_a_crash_with_the_compilers_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("c++") is not None:
        broken = tmp_path / "broken.py"
        broken.write_text(FILES["cpp"].read_text().replace("double sum = 0.0;", "double sum = ;"))
        (one,) = load_implementation_file(broken)
        (check,) = check_kernel(one, calls=CALLS)
        assert check.status == "crashed" and "it does not build" in check.reason
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Day0Error, match="takes none of the 1 calls") as caught:
        check_kernel(loaded("cpp"), calls=CALLS)
    assert "there is no C++ compiler" in str(caught.value.facts)


@pytest.mark.parametrize(
    ("name", "module", "reason"),
    [
        ("triton", "triton", "triton is not installed"),
        ("tilelang", "tilelang", "TileLang is not installed"),
        ("cuda_c", "", "built without CUDA"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_chosen(name: str, module: str, reason: str) -> None:
    there = importlib.util.find_spec(module) if module else torch.version.cuda
    signature = describe("day0::rms_norm", *CALLS[0])
    assert "runs on cuda, not on cpu" in refusal(loaded(name), signature, "cpu")
    said = refusal(loaded(name), signature, "cuda")
    assert reason in said if not there else said == "", said


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_triton_is_right_in_its_interpreter() -> None:
    command = [sys.executable, str(FOLDER / "check_all.py"), "--device", "cpu", "--interpret", "--expect", "triton"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "triton: right on cpu" in done.stdout, done.stdout + done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_what_is_installed_is_right_on_cuda() -> None:
    names = ["cuda_c", *(name for name in ("triton", "tilelang") if importlib.util.find_spec(name))]
    command = [sys.executable, str(FOLDER / "check_all.py"), "--device", "cuda", "--expect", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_compiler
def test_the_script_says_right_and_refused(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("check_all", FOLDER / "check_all.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_all"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    assert module.main(["--device", "cpu", "--expect", "cpp"]) == 0
    text = capsys.readouterr().out
    assert "cpp: right on cpu" in text and "24 calls, ran 24 times" in text
    assert "cuda_c: refused on cpu" in text and "runs on cuda, not on cpu" in text
    del sys.modules["check_all"]
