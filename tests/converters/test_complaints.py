"""What users of other converters report (by its number in the notes on peers), on the smallest input that shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from day0.converters.folder import open_folder
from day0.converters.plan import make_plan
from day0.converters.reading import Reader
from day0.converters.tables import E4M3, fp8_table
from day0.converters.tiers import eager
from day0.converters.verify import values64
from day0.errors import Day0Error
from day0.records.convert import ConversionParameters, ConvertReport

VALUES = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6])
LAYER = "model.layers.0.mlp.experts"


def out(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def values(folder: Path, name: str = f"{LAYER}.down_proj") -> torch.Tensor:
    """Decode FP8 in blocks by plain arithmetic; for one matrix, rows first."""
    found = out(folder)
    weight, scale = found[name].float(), found[f"{name}_scale_inv"].float()
    rows, columns = weight.shape[-2:]
    wide = scale.repeat_interleave(128, -2).repeat_interleave(128, -1)[..., :rows, :columns]
    return weight * wide


def stack(codes: torch.Tensor, scales: torch.Tensor) -> dict[str, torch.Tensor]:
    """[E, R, C] codes one by one and [E, R, G] scale bytes."""
    packed = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return {
        f"{LAYER}.down_proj_blocks": packed.unflatten(-1, (-1, 16)).to(torch.uint8).contiguous(),
        f"{LAYER}.down_proj_scales": scales.to(torch.uint8),
    }


def refused(kit: Any, folder: Path, tensors: dict[str, torch.Tensor], to: str = "fp8", **options: Any) -> Day0Error:
    with pytest.raises(Day0Error) as caught:
        kit.run(kit.write(folder / "s", tensors), folder / "t", to, **options)
    return caught.value


def test_1_scale_byte_134_is_128_and_255_is_nan(kit: Any, tmp_path: Path) -> None:
    codes, scales = torch.full((1, 2, 32), 2), torch.tensor([[[134], [255]]])
    error = refused(kit, tmp_path, stack(codes, scales), "bf16")
    assert "scale byte 255 (NaN) in expert 0, row 1, group 0" in error.facts[0]
    kit.run(tmp_path / "s", tmp_path / "t", "bf16", keep_nan=True)
    found = out(tmp_path / "t")[f"{LAYER}.down_proj"]
    assert found[0, :, 0].tolist() == [128.0] * 32 and bool(found[0, :, 1].isnan().all())


def test_2_a_byte_beside_fp8_is_an_exponent_and_f32_beside_codes_is_refused(kit: Any, tmp_path: Path) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    byte = torch.full((32, 32), 0x38, dtype=torch.uint8).view(torch.float8_e4m3fn)
    tensors = {name: byte, f"{name}_scale": torch.full((32, 1), 120, dtype=torch.uint8)}
    kit.run(kit.write(tmp_path / "s", tensors, "deepseek_v3"), tmp_path / "t", "bf16")
    assert out(tmp_path / "t")[name].unique().tolist() == [2.0**-7]
    packed = kit.packed() | {f"{LAYER}.0.gate_proj.weight_scale": torch.ones(256, 4)}
    with pytest.raises(Day0Error, match="does not fit it"):
        make_plan(open_folder(kit.write(tmp_path / "f", packed, "deepseek_v3")), ConversionParameters(to="bf16"))


@pytest.mark.parametrize("order", ["low_first", "split"])
def test_3_nibbles_in_both_orders(kit: Any, tmp_path: Path, order: str) -> None:
    """One group holds the codes 0 to 15 twice; random data cannot show a wrong order."""
    low = torch.tensor([number % 16 for number in range(32)])
    packed = low[0::2] | (low[1::2] << 4) if order == "low_first" else low[:16] | (low[16:] << 4)
    name = f"{LAYER}.0.up_proj.weight"
    tensors = {
        f"{name}_packed": packed.to(torch.uint8).view(1, 16),
        f"{name}_scale": torch.full((1, 1), 127, dtype=torch.uint8),
    }
    source = kit.write(tmp_path / "s", tensors, "deepseek_v3")
    kit.run(source, tmp_path / "t", "bf16", nibbles=order)
    wanted = torch.cat((VALUES, -VALUES)).repeat(2)
    assert out(tmp_path / "t")[name][0].tolist() == wanted.tolist()
    kit.run(source, tmp_path / "other", "mxfp4", nibbles=order, order="split")
    kit.run(tmp_path / "other", tmp_path / "back", "mxfp4", nibbles="split", order=order)
    assert torch.equal(out(tmp_path / "back")[f"{name}_packed"], tensors[f"{name}_packed"])


def test_4_square_down_proj_is_transposed_where_the_family_is(kit: Any, tmp_path: Path) -> None:
    codes = torch.zeros(1, 64, 64, dtype=torch.int64)
    codes[0, 3, 40] = 2
    source = kit.write(tmp_path / "s", stack(codes, torch.full((1, 64, 2), 127)))
    for to, options, place in (
        ("bf16", {}, (40, 3)),
        ("fp8", {}, (40, 3)),
        ("bf16", {"transpose": False}, (3, 40)),
        ("fp8", {"transpose": False}, (3, 40)),
        ("mxfp8", {}, (3, 40)),
    ):
        target = tmp_path / f"{to}{options}"
        kit.run(source, target, to, **options)
        found = out(target)[f"{LAYER}.down_proj"].float()
        assert found[0].nonzero().tolist() == [list(place)], (to, options)


@pytest.mark.parametrize("to", ["bf16", "fp8"])
def test_5_gate_and_up_in_either_order(kit: Any, tmp_path: Path, to: str) -> None:
    """Each row holds its own number in its codes; 300 rows, so that the halves do not end with a block of 128."""
    rows = torch.arange(300)
    codes = torch.stack([(rows >> shift) & 7 for shift in (0, 3, 6)], dim=-1).repeat_interleave(32, -1)[None]
    tensors = {
        f"{LAYER}.gate_up_proj{name.removeprefix(f'{LAYER}.down_proj')}": one
        for name, one in stack(codes, torch.full((1, 300, 3), 127)).items()
    }
    tensors[f"{LAYER}.gate_up_proj_bias"] = rows.to(torch.bfloat16)[None]
    source = kit.write(tmp_path / "s", tensors)

    def numbers(found: torch.Tensor) -> list[int]:
        picked = found[..., [0, 32, 64]].double()
        index = (picked.unsqueeze(-1) == VALUES.double()).to(torch.int64).argmax(-1)
        return (index[..., 0] + 8 * index[..., 1] + 64 * index[..., 2]).tolist()

    def read(folder: Path, name: str) -> list[int]:
        if to == "fp8":
            return numbers(values(folder, name))
        return numbers(out(folder)[name])

    kit.run(source, tmp_path / "keep", to, transpose=False)
    assert read(tmp_path / "keep", f"{LAYER}.gate_up_proj")[0] == rows.tolist()  # type: ignore[comparison-overlap]
    sorted_rows = [*range(0, 300, 2), *range(1, 300, 2)]
    kit.run(source, tmp_path / "sorted", to, transpose=False, gate_up="concatenated")
    assert read(tmp_path / "sorted", f"{LAYER}.gate_up_proj")[0] == sorted_rows  # type: ignore[comparison-overlap]
    assert out(tmp_path / "sorted")[f"{LAYER}.gate_up_proj_bias"][0].tolist() == [
        float(torch.tensor(float(one)).to(torch.bfloat16)) for one in sorted_rows
    ]
    kit.run(source, tmp_path / "split", to, experts="split")
    assert read(tmp_path / "split", f"{LAYER}.0.gate_proj.weight") == list(range(0, 300, 2))
    assert read(tmp_path / "split", f"{LAYER}.0.up_proj.weight") == list(range(1, 300, 2))
    assert out(tmp_path / "split")[f"{LAYER}.0.up_proj.bias"].shape == (150,)


def test_6_large_scales_do_not_overflow_a_shift(kit: Any, tmp_path: Path) -> None:
    source = kit.write(tmp_path / "s", stack(torch.full((1, 1, 32), 2), torch.full((1, 1, 1), 200)))
    kit.run(source, tmp_path / "t", "fp32")
    assert out(tmp_path / "t")[f"{LAYER}.down_proj"].unique().tolist() == [2.0**73]


def test_7_nan_codes_of_fp8_are_nan(kit: Any, tmp_path: Path) -> None:
    tensors = kit.fp8(128, 128, power_of_two=True)
    name = next(one for one in tensors if not one.endswith("_inv"))
    tensors[name].view(torch.uint8)[2, 5] = 0x7F
    tensors[name].view(torch.uint8)[3, 5] = 0xFF
    source = kit.write(tmp_path / "s", tensors, "deepseek_v3")
    with pytest.raises(Day0Error, match="cannot be converted exactly") as caught:
        kit.run(source, tmp_path / "t", "bf16")
    assert "a NaN in row 2, column 5" in caught.value.facts[0]
    report: ConvertReport = kit.run(source, tmp_path / "t", "bf16", keep_nan=True)
    assert report.weights[0].nan == 2 and out(tmp_path / "t")[name].isnan().nonzero().tolist() == [[2, 5], [3, 5]]


def test_8_subnormals_of_e4m3() -> None:
    """0.5 * 2^k is normal at -5, subnormal down to -8, and gone at -9."""
    codes = torch.full((5, 16), 0x11, dtype=torch.uint8)
    rows = torch.tensor([-5, -6, -7, -8, -9]).add(16).to(torch.uint8)
    made = torch.zeros((5, 16), dtype=torch.int16)
    eager.decode(codes, rows, fp8_table(E4M3), made)
    found = made.view(torch.uint8).view(5, -1)[:, 0].view(torch.float8_e4m3fn).float()
    assert found.tolist() == [2.0**-6, 2.0**-7, 2.0**-8, 2.0**-9, 0.0]


def test_9_lossless_is_checked(kit: Any, tmp_path: Path) -> None:
    """A span of 17 is refused, then finer, then bounded; each says what it did."""
    codes = torch.randint(0, 16, (1, 128, 128), generator=kit.generator())
    scales = torch.full((1, 128, 4), 127)
    scales[0, 64, 0] = 110
    error = refused(kit, tmp_path, stack(codes, scales))
    assert "1 of 1 weights cannot be converted exactly" in error.what
    assert "21 of 16,384 values would change by up to 2^-18.5 of the largest" in error.facts[0]
    assert "--finer" in error.hint and "--allow-bounded" in error.hint
    source = tmp_path / "s"
    report = kit.run(source, tmp_path / "finer", "fp8", finer=True, transpose=False)
    assert (report.weights[0].target, report.weights[0].exactness) == ("mxfp8", "exact") and report.notes
    report = kit.run(source, tmp_path / "bounded", "fp8", allow_bounded=True)
    weight = make_plan(open_folder(source), ConversionParameters(to="bf16")).items()[0].weight
    assert weight is not None
    exact = values64(weight, Reader(), 0, 0, 128)
    differ = (values(tmp_path / "bounded")[0].t().double() - exact).abs()
    assert int((differ > 0).sum()) == report.weights[0].changed and float(differ.max()) <= 6 * 2.0**-18.5


def test_9b_finer_finds_the_first_that_is_exact(kit: Any, tmp_path: Path) -> None:
    codes = torch.full((1, 128, 256), 7)
    scales = torch.full((1, 128, 8), 127)
    scales[0, :, 4:] = 100
    scales[0, 64] = 90
    source = kit.write(tmp_path / "s", stack(codes, scales))
    report = kit.run(source, tmp_path / "t", "fp8", finer=True, transpose=False)
    assert report.weights[0].target == "fp8-1x128"
    assert out(tmp_path / "t")[f"{LAYER}.down_proj_scale_inv"].shape == (1, 128, 2)


def test_11_scales_that_are_missing(kit: Any, tmp_path: Path) -> None:
    tensors = kit.gpt_oss()
    alone = {name: one for name, one in tensors.items() if name.endswith("_blocks")}
    assert "has no scales beside it" in refused(kit, tmp_path / "a", alone).what
    orphan = {name: one for name, one in tensors.items() if name.endswith("_scales")}
    for unknown in (False, True):
        error = refused(kit, tmp_path / f"b{unknown}", orphan, keep_unknown=unknown)
        assert "a scale whose weight is missing" in error.what
    short = {**tensors, f"{LAYER}.down_proj_scales": torch.zeros(2, 256, 5, dtype=torch.uint8)}
    assert "do not fit" in refused(kit, tmp_path / "c", short).what
    fp8 = {name: one for name, one in kit.fp8().items() if not name.endswith("_inv")}
    with pytest.raises(Day0Error, match="is FP8 and has no scale beside it"):
        make_plan(open_folder(kit.write(tmp_path / "d", fp8, "deepseek_v3")), ConversionParameters(to="bf16"))


@pytest.mark.parametrize(("rows", "columns"), [(160, 96), (64, 2880), (1, 32), (129, 160)])
@pytest.mark.parametrize("to", ["fp8", "fp8-1x128", "fp8-row", "mxfp8", "fp8-tensor"])
def test_20_sizes_that_128_does_not_divide(kit: Any, tmp_path: Path, rows: int, columns: int, to: str) -> None:
    source = kit.write(tmp_path / "s", kit.packed(rows, columns), "deepseek_v3")
    report = kit.run(source, tmp_path / "t", to)
    assert report.weights[0].exactness == "exact"
    if to == "fp8":
        scale = out(tmp_path / "t")[f"{LAYER}.0.gate_proj.weight_scale_inv"]
        assert scale.shape == (-(-rows // 128), -(-columns // 128)) and bool(report.notes)


def test_21_names_without_weight(kit: Any, tmp_path: Path) -> None:
    """Fused experts have none; a BF16 model's are converted too."""
    name = f"{LAYER}.gate_up_proj"
    source = kit.write(tmp_path / "s", {name: torch.randn(2, 256, 128).to(torch.bfloat16)}, "deepseek_v3")
    kit.run(source, tmp_path / "t", "fp8", allow_bounded=True)
    assert out(tmp_path / "t")[name].dtype == torch.float8_e4m3fn


def test_24_and_27_format_and_config_are_written(kit: Any, tmp_path: Path) -> None:
    from safetensors import safe_open

    source = kit.write(tmp_path / "s", kit.gpt_oss(), quantization_config={"quant_method": "mxfp4"})
    kit.run(source, tmp_path / "t", "bf16")
    assert "quantization_config" not in json.loads((tmp_path / "t" / "config.json").read_text())
    with safe_open(tmp_path / "t" / "model.safetensors", framework="pt") as opened:
        assert opened.metadata() == {"format": "pt"}


def test_29_tied_tensors_are_two_copies(kit: Any, tmp_path: Path) -> None:
    """A file has no ties: both names are there, and both are kept."""
    tensors = kit.gpt_oss() | {"lm_head.weight": torch.ones(4, 4), "model.embed_tokens.weight": torch.ones(4, 4)}
    kit.run(kit.write(tmp_path / "s", tensors), tmp_path / "t", "bf16")
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= set(out(tmp_path / "t"))


def test_30_f4_and_e8m0_dtypes(kit: Any, tmp_path: Path) -> None:
    """The library's own tensors of four bits, which it cannot slice."""
    name = "layers.0.ffn.experts.0.w2.weight"
    codes = kit.codes(128, 64)
    tensors = {
        name: codes.view(torch.float4_e2m1fn_x2),
        "layers.0.ffn.experts.0.w2.scale": kit.scale_bytes(128, 4).view(torch.float8_e8m0fnu),
    }
    source = kit.write(tmp_path / "s", tensors, "deepseek_v4")
    kit.run(source, tmp_path / "t", "mxfp4")
    assert torch.equal(out(tmp_path / "t")[f"{name}_packed"], codes)


def test_no_subnormal_flushes_only_with_leave(kit: Any, tmp_path: Path) -> None:
    """Span 13 is exact with subnormals; for a device that flushes them it is not."""
    codes = torch.full((1, 128, 64), 1)
    codes[0, :, :32] = 7
    scales = torch.full((1, 128, 2), 127)
    scales[0, :, 1] = 114
    source = kit.write(tmp_path / "s", stack(codes, scales))
    report = kit.run(source, tmp_path / "a", "fp8")
    assert (report.weights[0].exactness, report.weights[0].subnormal) == ("exact_with_subnormals", 4096)
    with pytest.raises(Day0Error, match="cannot be converted exactly") as caught:
        kit.run(source, tmp_path / "b", "fp8", no_subnormal=True)
    assert "4,096 of 8,192 values would be subnormal" in caught.value.facts[0]
    report = kit.run(source, tmp_path / "b", "fp8", no_subnormal=True, allow_bounded=True)
    assert (report.weights[0].exactness, report.weights[0].changed) == ("bounded", 4096)
    assert int((out(tmp_path / "b")[f"{LAYER}.down_proj"].float() == 0).sum()) == 4096


def test_keep_unknown(kit: Any, tmp_path: Path) -> None:
    tensors = kit.gpt_oss() | {"model.layers.0.surprise": torch.ones(3)}
    error = refused(kit, tmp_path, tensors)
    assert "does not know 1 of its tensors" in error.what and error.facts == ("model.layers.0.surprise",)
    kit.run(tmp_path / "s", tmp_path / "t", "fp8", keep_unknown=True)
    assert out(tmp_path / "t")["model.layers.0.surprise"].tolist() == [1, 1, 1]


def test_only_and_skip(kit: Any, tmp_path: Path) -> None:
    tensors = kit.packed() | {name.replace("experts.0", "experts.1"): one for name, one in kit.packed(seed=3).items()}
    source = kit.write(tmp_path / "s", tensors, "deepseek_v3")
    kit.run(source, tmp_path / "t", "bf16", skip=r"experts\.1\.")
    found = out(tmp_path / "t")
    assert found[f"{LAYER}.0.gate_proj.weight"].dtype == torch.bfloat16
    assert torch.equal(found[f"{LAYER}.1.gate_proj.weight_packed"], tensors[f"{LAYER}.1.gate_proj.weight_packed"])
    with pytest.raises(Day0Error, match="no regular expression"):
        kit.run(source, tmp_path / "x", "bf16", only="(")


def test_infinite_and_negative_scales_are_refused(kit: Any, tmp_path: Path) -> None:
    for bad in (float("inf"), float("nan"), -1.0):
        tensors = kit.fp8()
        name = next(one for one in tensors if one.endswith("_inv"))
        tensors[name][0, 0] = bad
        source = kit.write(tmp_path / f"s{bad}", tensors, "deepseek_v3")
        with pytest.raises(Day0Error, match="negative, infinite or NaN"):
            kit.run(source, tmp_path / f"t{bad}", "fp32", allow_bounded=True)


def test_modelopt_multiplies_where_compressed_tensors_divides(kit: Any, tmp_path: Path) -> None:
    tensors = kit.nvfp4()
    stem = "model.layers.0.mlp.down_proj.weight"
    other = {
        stem: tensors[f"{stem}_packed"],
        f"{stem}_scale": tensors[f"{stem}_scale"],
        f"{stem}_scale_2": 1 / tensors[f"{stem}_global_scale"],
        "model.layers.0.mlp.down_proj.input_scale": torch.ones(1),
    }
    for name, found in (("a", tensors), ("b", other)):
        report = kit.run(kit.write(tmp_path / name, found, "deepseek_v3"), tmp_path / f"{name}t", "bf16")
        assert report.weights[0].exactness == "exact", "six bits times a power of two"
    assert torch.equal(out(tmp_path / "at")[stem], out(tmp_path / "bt")[stem])
    assert report.dropped == ("model.layers.0.mlp.down_proj.input_scale",)


def test_save_file_is_not_needed(tmp_path: Path) -> None:
    """The tests write with the library, the converters never do."""
    import day0.converters

    folder = Path(day0.converters.__path__[0])
    assert not [
        one.name
        for one in folder.rglob("*.py")
        # A recording of routing is small, and no conversion.
        if one.parent.name != "online"
        and ("import safetensors" in one.read_text() or "from safetensors" in one.read_text())
    ]
    assert callable(save_file)
