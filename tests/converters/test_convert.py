"""A conversion as a whole: files, resume, refusals."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from day0.converters import companions
from day0.converters import convert as module
from day0.converters.convert import MANIFEST
from day0.converters.folder import open_folder
from day0.converters.journal import JOURNAL
from day0.converters.plan import make_plan
from day0.converters.shard import write_shard
from day0.converters.verify import verify
from day0.errors import Day0Error
from day0.records.convert import ConversionParameters


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


def many(kit: Any, count: int = 4) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for layer in range(count):
        found |= kit.gpt_oss(seed=layer, name=f"model.layers.{layer}.mlp.experts")
    return found


def test_files_of_a_result(kit: Any, tmp_path: Path) -> None:
    """Shards, an index with the true size, the config, everything else; scales may lie in another shard."""
    source = kit.write(tmp_path / "s", many(kit), shards=3)
    config = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}, "expert_dtype": "fp4"}
    (source / "config.json").write_text(json.dumps(config))
    kit.run(source, tmp_path / "t", "fp8", jobs=2)
    files = bytes_of(tmp_path / "t")
    index = json.loads(files["model.safetensors.index.json"])
    stored = {name: load_file(tmp_path / "t" / name) for name in set(index["weight_map"].values())}
    assert {name: file for file, found in stored.items() for name in found} == index["weight_map"]
    total = sum(one.nbytes for found in stored.values() for one in found.values())
    assert index["metadata"]["total_size"] == total
    made = json.loads(files["config.json"])
    assert made["quantization_config"]["weight_block_size"] == [128, 128] and made["expert_dtype"] == "fp8"
    assert files["tokenizer.json"] == b'{"a": 1}' and JOURNAL not in files and MANIFEST in files
    assert not any(name.endswith(".part") for name in files)


def test_jobs_tiers_and_repeats_give_the_same_bytes(kit: Any, tmp_path: Path) -> None:
    source = kit.write(tmp_path / "s", many(kit), shards=3)
    kit.run(source, tmp_path / "a", "fp8")
    kit.run(source, tmp_path / "b", "fp8", jobs=3, tier="auto")
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


def test_a_shard_that_was_only_scales_is_gone(kit: Any, tmp_path: Path) -> None:
    found = kit.gpt_oss()
    folder = kit.write(tmp_path / "s", found, shards=2)
    kit.run(folder, tmp_path / "t", "bf16")
    index = json.loads((tmp_path / "t" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {one.name for one in (tmp_path / "t").glob("*.safetensors")}


def test_goes_on_where_it_ended(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after two shards; what is finished is not written again, half files are not taken for whole ones."""
    source = kit.write(tmp_path / "s", many(kit), shards=3)
    kit.run(source, tmp_path / "whole", "fp8")
    real, seen = write_shard, []

    def fails_third(path: Path, *rest: Any) -> Any:
        seen.append(path.name)
        if len(seen) == 3:
            path.with_name(path.name + ".part").write_bytes(b"half")
            raise KeyboardInterrupt
        return real(path, *rest)

    monkeypatch.setattr(module, "write_shard", fails_third)
    with pytest.raises(KeyboardInterrupt):
        kit.run(source, tmp_path / "t", "fp8")
    assert (tmp_path / "t" / JOURNAL).exists() and not (tmp_path / "t" / MANIFEST).exists()
    first, seen[:] = list(seen), [""] * 10
    kit.run(source, tmp_path / "t", "fp8")
    assert set(seen[10:]).isdisjoint(first[:2]) and bytes_of(tmp_path / "t") == bytes_of(tmp_path / "whole")


def begun(kit: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A conversion to FP8 with one of two shards finished."""
    source: Path = kit.write(folder / "s", many(kit, 2), shards=2)
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_companions", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            kit.run(source, folder / "t", "fp8")
    return source


def test_other_parameters_do_not_mix(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = begun(kit, tmp_path, monkeypatch)
    with pytest.raises(Day0Error, match="with other options, was begun here") as caught:
        kit.run(source, tmp_path / "t", "bf16")
    assert "to: 'fp8-128x128' then, 'bf16' now" in caught.value.facts


def test_another_source_does_not_mix(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(kit, tmp_path, monkeypatch)
    other = kit.write(tmp_path / "other", many(kit, 3), shards=2)
    with pytest.raises(Day0Error, match="a conversion of another source"):
        kit.run(other, tmp_path / "t", "fp8")


def test_a_finished_shard_that_was_damaged_is_made_again(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = begun(kit, tmp_path, monkeypatch)
    shard = next((tmp_path / "t").glob("*.safetensors"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-10])
    kit.run(source, tmp_path / "t", "fp8")
    assert shard.read_bytes() == whole


@pytest.mark.parametrize("tail", [b"", b'{"file": "model-00002', b"garbage\n", b'{"file": 1}\n', b"\xff\xfe\n"])
def test_a_journal_with_a_torn_end(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: bytes) -> None:
    source = begun(kit, tmp_path, monkeypatch)
    path = tmp_path / "t" / JOURNAL
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + tail)
    kit.run(source, tmp_path / "t", "fp8")
    kit.run(source, tmp_path / "whole", "fp8")
    assert bytes_of(tmp_path / "t") == bytes_of(tmp_path / "whole")


def test_a_second_run_of_a_finished_one_writes_nothing(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = kit.write(tmp_path / "s", kit.gpt_oss())
    first = kit.run(source, tmp_path / "t", "fp8")
    monkeypatch.setattr(module, "write_shard", lambda *_: pytest.fail("written again"))
    assert kit.run(source, tmp_path / "t", "fp8") == first
    with pytest.raises(Day0Error, match="the result of another conversion"):
        kit.run(source, tmp_path / "t", "bf16")
    (tmp_path / "t" / "model.safetensors").unlink()
    with pytest.raises(Day0Error, match=r"model.safetensors is missing"):
        kit.run(source, tmp_path / "t", "fp8")


def test_targets_that_are_refused(kit: Any, tmp_path: Path) -> None:
    source = kit.write(tmp_path / "s", kit.gpt_oss())
    link = tmp_path / "link"
    link.symlink_to(source)
    for target, wanted in (
        (source, "it is the source"),
        (link, "it is the source"),
        (source / "inside", "within each other"),
        (tmp_path, "within each other"),
        (source / "config.json", "within each other"),
    ):
        with pytest.raises(Day0Error, match=wanted):
            kit.run(source, target, "fp8")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    with pytest.raises(Day0Error, match="holds something else already"):
        kit.run(source, tmp_path / "full", "fp8")
    with pytest.raises(Day0Error, match="there is a file of that name"):
        kit.run(source, tmp_path / "full" / "thesis.tex", "fp8")
    assert (tmp_path / "full" / "thesis.tex").read_text() == "x"


def test_a_folder_that_cannot_be_written(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = kit.write(tmp_path / "s", kit.gpt_oss())
    (tmp_path / "t").mkdir()
    monkeypatch.setattr(os, "access", lambda *_: False)  # a superuser may write anywhere
    with pytest.raises(Day0Error, match="cannot be written: Permission denied"):
        kit.run(source, tmp_path / "t", "fp8")


def test_a_disk_that_is_too_small_is_said_before(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = kit.write(tmp_path / "s", kit.gpt_oss())
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, 1000))
    with pytest.raises(Day0Error, match=r"bytes are still to be written, and 1,000 are free"):
        kit.run(source, tmp_path / "t", "fp8")
    assert not list((tmp_path / "t").glob("*.safetensors*"))


def test_a_disk_that_fills_up_leaves_no_half_file(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = kit.write(tmp_path / "s", many(kit), shards=4)
    real, left = os.pwrite, [60_000]  # in each process

    def small(file: int, data: Any, at: int) -> int:
        left[0] -= len(data)
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, data, at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", small)
        with pytest.raises(Day0Error, match="cannot be written: No space left on device") as caught:
            kit.run(source, tmp_path / "t", "fp8", jobs=2)
    assert "run the same command to go on" in caught.value.hint
    assert not list((tmp_path / "t").glob("*.part"))
    kit.run(source, tmp_path / "t", "fp8")
    kit.run(source, tmp_path / "whole", "fp8")
    assert bytes_of(tmp_path / "t") == bytes_of(tmp_path / "whole")


def test_a_source_that_becomes_shorter(kit: Any, tmp_path: Path) -> None:
    source = kit.write(tmp_path / "s", kit.gpt_oss())
    plan = make_plan(open_folder(source), ConversionParameters(to="bf16"))
    path = source / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4000])
    with pytest.raises(Day0Error, match="within model"):
        module.convert(plan, tmp_path / "t", module_tier())
    assert not list((tmp_path / "t").glob("*.safetensors*"))


def module_tier() -> Any:
    from day0.converters.tiers.load import pick_tier

    return pick_tier("eager")


def test_verify_finds_one_wrong_bit(kit: Any, tmp_path: Path) -> None:
    """In a value, in a scale, and in a tensor that was only copied."""
    source = kit.write(tmp_path / "s", kit.gpt_oss())
    report = kit.run(source, tmp_path / "t", "fp8")
    plan = make_plan(open_folder(source), ConversionParameters(to="fp8"))
    assert verify(plan, tmp_path / "t", report).wrong == ()
    path = tmp_path / "t" / "model.safetensors"
    whole = load_file(path)
    for name in whole:
        raw = whole[name].clone()
        raw.view(torch.uint8).view(-1)[3] ^= 1
        save_file({**whole, name: raw}, path)
        found = verify(plan, tmp_path / "t", report).wrong
        assert len(found) == 1 and found[0].startswith(name.removesuffix("_scale_inv")), name
    save_file({name: one for name, one in whole.items() if name != "model.norm.weight"}, path)
    assert verify(plan, tmp_path / "t", report).wrong == ("model.norm.weight: it is not in the result as it was",)


def test_large_files_are_linked_and_small_ones_copied(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = kit.write(tmp_path / "s", kit.gpt_oss())
    (source / "large.dat").write_bytes(b"x" * 100)
    monkeypatch.setattr(companions, "LINKED_FROM", 50)
    kit.run(source, tmp_path / "t", "fp8")
    assert (tmp_path / "t" / "large.dat").samefile(source / "large.dat")
    assert not (tmp_path / "t" / "tokenizer.json").samefile(source / "tokenizer.json")


def test_quantisation_under_text_config_is_replaced_there(kit: Any, tmp_path: Path) -> None:
    old = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}
    source = kit.write(tmp_path / "s", kit.packed(), "kimi_k25", text_config={"quantization_config": old, "a": 1})
    kit.run(source, tmp_path / "a", "bf16")
    assert json.loads((tmp_path / "a" / "config.json").read_text()) == {
        "model_type": "kimi_k25",
        "text_config": {"a": 1},
    }
    kit.run(source, tmp_path / "b", "fp8", scales="e8m0")
    found = json.loads((tmp_path / "b" / "config.json").read_text())["text_config"]["quantization_config"]
    assert found["quant_method"] == "fp8" and found["scale_fmt"] == "ue8m0"
    scale = load_file(tmp_path / "b" / "model.safetensors")["model.layers.0.mlp.experts.0.gate_proj.weight_scale_inv"]
    assert scale.dtype == torch.float8_e8m0fnu


def test_fp8_with_exponents_for_scales_is_copied_not_rounded(kit: Any, tmp_path: Path) -> None:
    """DeepSeek-V4's dense weights: the values are the same bytes, and the scales the same powers of two."""
    name = "layers.0.attn.wq_a.weight"
    byte = torch.randint(0, 120, (256, 128), dtype=torch.uint8, generator=kit.generator())
    tensors = {
        name: byte.view(torch.float8_e4m3fn),
        "layers.0.attn.wq_a.scale": torch.tensor([[120], [3]], dtype=torch.uint8).view(torch.float8_e8m0fnu),
    }
    source = kit.write(tmp_path / "s", tensors | kit.deepseek_v4(), "deepseek_v4")
    report = kit.run(source, tmp_path / "t", "fp8")
    assert {one.exactness for one in report.weights} == {"exact"}
    found = load_file(tmp_path / "t" / "model.safetensors")
    assert torch.equal(found[name].view(torch.uint8), byte)
    assert found["layers.0.attn.wq_a.scale"].tolist() == [[2.0**-7], [2.0**-124]]
    assert found["layers.0.ffn.experts.0.w1.scale"].dtype == torch.float32, "the family's own name for it"
    plan = make_plan(open_folder(source), ConversionParameters(to="fp8"))
    assert verify(plan, tmp_path / "t", report).wrong == ()


def test_what_is_skipped_stays_described(kit: Any, tmp_path: Path) -> None:
    """BF16 for one expert: the other is still packed, and the config says which."""
    other = {name.replace("experts.0", "experts.1"): one for name, one in kit.packed(seed=3).items()}
    old = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "ignore": ["lm_head"]}
    source = kit.write(tmp_path / "s", kit.packed() | other, "deepseek_v3", quantization_config=old)
    kit.run(source, tmp_path / "t", "bf16", skip=r"experts\.1\.")
    config = json.loads((tmp_path / "t" / "config.json").read_text())["quantization_config"]
    assert config == {**old, "ignore": ["lm_head", "model.layers.0.mlp.experts.0.gate_proj"]}
    report = kit.run(source, tmp_path / "u", "fp8", skip=r"experts\.1\.")
    assert "2 tensors stay in the narrow format" in report.notes[0]


def test_int4_with_a_shape_that_lies(kit: Any, tmp_path: Path) -> None:
    tensors = kit.int4()
    tensors["model.layers.0.mlp.down_proj.weight_shape"] = torch.tensor([256, 120])
    source = kit.write(tmp_path / "s", tensors, "deepseek_v3")
    with pytest.raises(Day0Error, match=r"weight_shape says \[256, 120\], and words and scales make \[256, 128\]"):
        kit.run(source, tmp_path / "t", "bf16", allow_bounded=True)


@pytest.mark.parametrize("to", ["fp8", "fp8-1x128", "fp8-row", "fp8-tensor", "mxfp8", "int4-g128"])
@pytest.mark.parametrize("spread", [0.0, 20.0])
def test_bounds_hold(kit: Any, tmp_path: Path, to: str, spread: float) -> None:
    """Values of a normal distribution, and with magnitudes spread over twenty powers of two."""
    weight = torch.randn(256, 256, generator=kit.generator())
    weight *= torch.exp2(spread * torch.rand(256, 256, generator=kit.generator()) - spread / 2)
    name = "model.layers.0.mlp.down_proj.weight"
    source = kit.write(tmp_path / "s", {name: weight.to(torch.bfloat16)}, "deepseek_v3")
    report = kit.run(source, tmp_path / "t", to, allow_bounded=True)
    plan = make_plan(open_folder(source), ConversionParameters(to=to, allow_bounded=True))
    assert verify(plan, tmp_path / "t", report).wrong == ()
    from day0.converters.find import find_weights
    from day0.converters.reading import Reader
    from day0.converters.verify import values64

    made = find_weights(open_folder(tmp_path / "t"), plan.architecture, plan.parameters).weights[0]
    exact = weight.to(torch.bfloat16).double()
    error = (values64(made, Reader(), 0, 0, 256) - exact).abs()
    if to == "int4-g128":
        largest = exact.abs().unflatten(1, (-1, 128)).amax(-1).repeat_interleave(128, 1)
        assert bool((error <= largest / 13.8).all())
    else:
        scale = load_file(tmp_path / "t" / "model.safetensors")
        raw = next(one for key, one in scale.items() if "_scale" in key)
        power = torch.exp2(raw.view(torch.uint8).double() - 127) if raw.dtype == torch.float8_e8m0fnu else raw.double()
        power = power.reshape(1, 1) if power.numel() == 1 else power
        wide = power.repeat_interleave(256 // power.shape[0], 0).repeat_interleave(256 // power.shape[1], 1)
        assert bool((error <= torch.maximum(exact.abs() * 2.0**-4, wide * 2.0**-10)).all())
