"""`day0 convert` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from day0.cli.app import app
from day0.converters.convert import MANIFEST

NAME = "model.layers.0.mlp.experts.down_proj"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    tensors = {
        NAME + "_blocks": torch.randint(0, 256, (2, 128, 4, 16), dtype=torch.uint8, generator=generator),
        NAME + "_scales": torch.randint(118, 127, (2, 128, 4), dtype=torch.uint8, generator=generator),
        "model.norm.weight": torch.ones(128),
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}')
    return folder


def day0(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["convert", *(str(one) for one in arguments)])
    return done.exit_code, done.stdout, done.stderr


def spoil(folder: Path, *, byte: int) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[NAME + "_scales"][1, 3, 2] = byte
    save_file(tensors, folder / "model.safetensors")


def test_plan_then_do_then_compare(source: Path, tmp_path: Path) -> None:
    code, said, _ = day0(source, tmp_path / "t", "--to", "fp8", "--dry-run")
    assert code == 0 and "would convert 1 weight to fp8-128x128" in said and not (tmp_path / "t").exists()
    code, said, _ = day0(source, tmp_path / "t", "--to", "fp8", "--verify", "--jobs", "1")
    assert code == 0 and "converted 1 weight" in said and "and 1 other tensor: as reported" in said
    assert load_file(tmp_path / "t" / "model.safetensors")[NAME].dtype == torch.float8_e4m3fn


def test_json_is_the_record_and_the_manifest(source: Path, tmp_path: Path) -> None:
    code, said, talk = day0(source, tmp_path / "t", "--to", "bf16", "--json")
    assert code == 0 and "converted 1 weight" in talk
    document = json.loads(said)
    assert document["schema"] == "day0.convert/1" and document["body"]["weights"][0]["exactness"] == "exact"
    assert said == (tmp_path / "t" / MANIFEST).read_text()


def test_what_is_not_exact_is_refused_with_the_way_on(source: Path, tmp_path: Path) -> None:
    spoil(source, byte=100)
    code, said, talk = day0(source, tmp_path / "t", "--to", "fp8", "--dry-run")
    assert code == 2 and "bounded" in said and "1 of 1 weights cannot be converted exactly" in talk
    code, _, talk = day0(source, tmp_path / "t", "--to", "fp8")
    assert code == 2 and "--finer" in talk and not (tmp_path / "t").exists()
    code, said, _ = day0(source, tmp_path / "t", "--to", "fp8", "--allow-bounded", "--verify")
    assert code == 0 and "a value changes by at most 2^-18.5" in said and "as reported" in said


def test_nan_is_named_by_tensor_expert_and_row(source: Path, tmp_path: Path) -> None:
    spoil(source, byte=255)
    code, said, talk = day0(source, tmp_path / "t", "--to", "mxfp8", "--dry-run")
    assert code == 2 and "refused" in said and f"{NAME}: scale byte 255 (NaN) in expert 1, row 3, group 2" in talk
    code, said, _ = day0(source, tmp_path / "t", "--to", "bf16", "--keep-nan", "--verify")
    assert code == 0 and "32 values are NaN, as they were" in said


def test_a_comparison_that_fails_is_exit_code_1(source: Path, tmp_path: Path) -> None:
    day0(source, tmp_path / "t", "--to", "bf16")
    tensors = load_file(tmp_path / "t" / "model.safetensors")
    tensors[NAME][0, 0, 0] += 1
    size = (tmp_path / "t" / "model.safetensors").stat().st_size
    save_file(tensors, tmp_path / "t" / "model.safetensors", metadata={"format": "pt"})
    code, said, talk = day0(source, tmp_path / "t", "--to", "bf16", "--verify")
    if size == (tmp_path / "t" / "model.safetensors").stat().st_size:
        assert code == 1 and "1 values differ, and the report says 0" in said
    else:  # the library pads its header otherwise: then the size says it
        assert code == 2 and "has another size" in talk


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--to", "fp9"], "did you mean fp8"),
        (["--to", "fp8", "--scales", "f16"], "--scales f16: there is no such choice"),
        (["--to", "fp8", "--tier", "fast"], "there is no such tier"),
        (["--to", "fp8", "--architecture", "gptoss"], "there is no such architecture"),
        (["--to", "fp8-1x128", "--transpose"], "a transposed matrix would cut across"),
        (["--to", "int4"], "cannot be converted exactly"),
        (["--to", "bf16", "--only", "nothing"], "there is nothing to convert"),
    ],
)
def test_mistakes(source: Path, tmp_path: Path, arguments: list[str], wanted: str) -> None:
    code, _, talk = day0(source, tmp_path / "t", *arguments)
    assert code == 2 and wanted in talk and not (tmp_path / "t").exists()


def test_no_such_folder_and_the_source_itself(source: Path, tmp_path: Path) -> None:
    assert "there is no such folder" in day0(tmp_path / "x", tmp_path / "t", "--to", "fp8")[2]
    assert "it is the source" in day0(source, source, "--to", "fp8")[2]


def test_lists() -> None:
    code, said, _ = day0("formats")
    assert code == 0
    for word in ("gpt-oss-mxfp4", "nvfp4", "fp8-128x128", "int4-g128", "kimi", "always exact"):
        assert word in said
    code, said, _ = day0("formats", "--json")
    assert code == 0 and len(json.loads(said)["pairs"]) == 70


def test_names_that_would_talk_to_the_terminal(source: Path, tmp_path: Path) -> None:
    tensors = load_file(source / "model.safetensors")
    tensors["evil\x1b[31m[red]"] = torch.ones(1)
    save_file(tensors, source / "model.safetensors")
    code, _, talk = day0(source, tmp_path / "t", "--to", "fp8")
    assert code == 2 and "\x1b" not in talk and "[red]" in talk
