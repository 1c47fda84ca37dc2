"""Files that somebody made to hurt, and folders that two people use at one time."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from day0.cli import show_convert
from day0.cli.failures import message_of
from day0.converters import convert as module
from day0.converters.convert import MANIFEST
from day0.converters.folder import open_folder
from day0.converters.header import read_header
from day0.converters.journal import JOURNAL, Journal
from day0.converters.online.fp8_workspace import Fp8Workspace, Matrix
from day0.converters.online.routing import read_routing, routing_of
from day0.converters.online.simulate import simulate
from day0.converters.online.slots import Plan
from day0.converters.plan import make_plan
from day0.converters.shard import write_shard
from day0.converters.tiers.load import pick_tier
from day0.converters.verify import verify
from day0.errors import Day0Error
from day0.records.convert import ConversionParameters

NAME = "model.layers.0.mlp.down_proj.weight"


def header(folder: Path, text: str, data: bytes = b"") -> Path:
    path = folder / "x.safetensors"
    path.write_bytes(len(text.encode()).to_bytes(8, "little") + text.encode() + data)
    return path


def entry(shape: str, size: int, dtype: str = '"U8"') -> str:
    return f'{{"dtype": {dtype}, "shape": {shape}, "data_offsets": [0, {size}]}}'


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f'{{"a": {entry("[1]", 1, "[1]")}}}', "does not know its dtype"),
        (f'{{"a": {entry("[1]", 1, "{}")}}}', "does not know its dtype"),
        (f'{{"\\ud800": {entry("[1]", 1)}}}', "surrogates not allowed"),
        ("{" + ",".join(f'"a{number}": 1' for number in range(60_000)) + ', "a59999": 1}', "'a59999' stands twice"),
    ],
)
def test_headers(tmp_path: Path, text: str, wanted: str) -> None:
    """A dtype that cannot be looked up, half a character, a name twice among very many."""
    with pytest.raises(Day0Error, match=wanted):
        read_header(header(tmp_path, text, b"x"))


def test_a_header_in_another_encoding(tmp_path: Path) -> None:
    text = json.dumps({"a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}).encode("utf-16")
    (tmp_path / "x.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(Day0Error, match="can't decode byte 0xff"):
        read_header(tmp_path / "x.safetensors")


def test_a_pipe_is_not_opened(kit: Any, tmp_path: Path) -> None:
    """To open one waits for whoever writes into it: for ever."""
    for name in ("config.json", "model.safetensors.index.json"):
        source = kit.write(tmp_path / name.split(".")[0], kit.gpt_oss())
        (source / name).unlink(missing_ok=True)
        os.mkfifo(source / name)
        with pytest.raises(Day0Error, match="it is a pipe or a device"):
            open_folder(source)
    for name in (MANIFEST, JOURNAL):
        source = kit.write(tmp_path / f"s{name}", kit.gpt_oss())
        (tmp_path / name).mkdir()
        os.mkfifo(tmp_path / name / name)
        with pytest.raises(Day0Error, match=r"pipe or a device|it is no file"):
            kit.run(source, tmp_path / name, "bf16")


def test_links_to_nowhere_and_to_themselves(kit: Any, tmp_path: Path) -> None:
    for name, place in (("config.json", "nowhere"), ("config.json", "config.json")):
        source = kit.write(tmp_path / place / "s", kit.gpt_oss())
        (source / name).unlink()
        (source / name).symlink_to(place)
        with pytest.raises(Day0Error, match="cannot be read"):
            open_folder(source)
    source = kit.write(tmp_path / "s", kit.gpt_oss())
    (tmp_path / "t").symlink_to("t")
    with pytest.raises(Day0Error, match="a link to nowhere"):
        kit.run(source, tmp_path / "t", "bf16")


def test_a_shard_that_was_not_fetched_is_not_left_out(kit: Any, tmp_path: Path) -> None:
    """Without an index nothing else says that half the model is missing: a hub cache links to a blob that is not there."""
    source = kit.write(tmp_path / "s", kit.gpt_oss())
    (source / "model.safetensors").rename(source / "model-1.safetensors")
    (source / "model-2.safetensors").symlink_to("../blobs/abc")
    with pytest.raises(Day0Error, match=r"1 of its 2 safetensors files are no files: model-2"):
        open_folder(source)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"a": "\\ud800"}', "half a character"),
        ('{"\\udfff": 1}', "half a character"),
        ('{"a": ' + "[" * 300 + "]" * 300 + "}", "nested more than 100 levels"),
    ],
)
def test_a_config_that_could_not_be_written_again(kit: Any, tmp_path: Path, text: str, wanted: str) -> None:
    source = kit.write(tmp_path / "s", kit.gpt_oss())
    (source / "config.json").write_text(text)
    with pytest.raises(Day0Error, match=wanted):
        open_folder(source)


def test_infinity_in_a_config_stays(kit: Any, tmp_path: Path) -> None:
    """Configs of state-space models hold one."""
    source = kit.write(tmp_path / "s", kit.gpt_oss(), limit=[0.0, float("inf")], name="\N{GREEK SMALL LETTER ALPHA}")
    kit.run(source, tmp_path / "t", "bf16")
    assert json.loads((tmp_path / "t" / "config.json").read_text())["limit"] == [0.0, float("inf")]


def test_names_that_are_no_text(kit: Any, tmp_path: Path) -> None:
    source = kit.write(tmp_path / "s", kit.gpt_oss())
    Path(os.fsdecode(os.fsencode(source) + b"/caf\xe9.txt")).write_text("x")
    report = kit.run(source, tmp_path / "t", "bf16")
    assert report.left == (r"caf\xe9.txt",)


def test_no_values_may_claim_any_number_of_experts(kit: Any, tmp_path: Path) -> None:
    """A shape with a zero in it takes no bytes, so nothing else limits it."""
    huge = f"[{1 << 40}, 0, 4, 16]"
    for name, shape, wanted in (
        ("model.layers.0.mlp.experts.down_proj_blocks", huge, "without a value in it"),
        (NAME.replace("down_proj", "gate_proj"), f"[{1 << 40}, 0]", "nothing to convert"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text('{"model_type": "deepseek_v3"}')
        header(folder, f'{{"{name}": {entry(shape, 0)}}}'.replace('"U8"', '"BF16"' if "gate" in name else '"U8"'))
        with pytest.raises(Day0Error, match=wanted):
            make_plan(open_folder(folder), ConversionParameters(to="fp8", keep_unknown=True))


def test_a_weight_without_values_stays_as_it_is(kit: Any, tmp_path: Path) -> None:
    tensors = kit.fp8() | {NAME.replace("down", "up"): torch.zeros(4, 0, dtype=torch.bfloat16)}
    source = kit.write(tmp_path / "s", tensors, "deepseek_v3")
    report = kit.run(source, tmp_path / "t", "mxfp8", allow_bounded=True)
    plan = make_plan(open_folder(source), ConversionParameters(to="mxfp8", allow_bounded=True))
    assert verify(plan, tmp_path / "t", report).wrong == ()


def test_a_recording_of_no_experts(tmp_path: Path) -> None:
    """2^40 rows of nothing take no bytes in the file, and would each be a list."""
    facts = '"__metadata__": {"format": "day0.routing/1", "layers": "1", "experts": "1"}'
    text = (
        f'{{{facts}, "chosen": {{"dtype": "I32", "shape": [{1 << 40}, 0], "data_offsets": [0, 0]}}, '
        '"calls": {"dtype": "I32", "shape": [0, 3], "data_offsets": [0, 0]}}'
    )
    with pytest.raises(Day0Error, match="no experts"):
        read_routing(header(tmp_path, text))


def test_a_recording_of_more_experts_than_anybody_has(tmp_path: Path) -> None:
    facts = '"__metadata__": {"format": "day0.routing/1", "layers": "4096", "experts": "65536"}'
    with pytest.raises(Day0Error, match="4,096 layers of 65,536 experts are more than"):
        read_routing(header(tmp_path, f"{{{facts}}}"))


def test_slots_that_stay_empty_cost_nothing() -> None:
    """A million of them took minutes to look through; the figures are those of a slot for every expert."""
    generator = torch.Generator().manual_seed(0)
    calls = [(step, layer, torch.randint(0, 6, (2, 2), generator=generator)) for step in range(8) for layer in range(2)]
    routing = routing_of(calls, layers=2, experts=6)
    for split in ("layer", "shared"):
        many = simulate(routing, Plan(layers=2, slots=1 << 30, scratch=1 << 30, split=split))
        assert many.plan.slots == 1 << 30
        all_ = simulate(routing, Plan(layers=2, slots=12, scratch=4, split=split))
        assert (many.hits, many.misses, many.rounds) == (all_.hits, all_.misses, all_.rounds)
        assert many.evictions == many.unkept == 0


def test_more_slots_than_memory() -> None:
    """A host promises any amount of memory, and ends the process that uses it."""
    with pytest.raises(Day0Error, match=r"1,048,576 slots take .* bytes on cpu, and .* are free"):
        Fp8Workspace((Matrix(rows=4096, columns=4096),), 1 << 20, decode=pick_tier("eager").decode)


def test_int4_with_columns_in_another_order(kit: Any, tmp_path: Path) -> None:
    """The order was copied along as an unknown tensor, and the weight decoded as if there were none."""
    tensors = kit.int4() | {f"{NAME}_g_idx": torch.zeros(128, dtype=torch.int32)}
    source = kit.write(tmp_path / "s", tensors, "deepseek_v3")
    with pytest.raises(Day0Error, match=r"columns in another order \(weight_g_idx\)"):
        kit.run(source, tmp_path / "t", "bf16", keep_unknown=True, allow_bounded=True)


def test_int4_that_lost_its_zero_points(kit: Any, tmp_path: Path) -> None:
    """The config says that there are some, and none is there: decoded as symmetric, every value was wrong."""
    source = kit.write(tmp_path / "s", kit.int4(), "deepseek_v3")
    path = source / "config.json"
    config = json.loads(path.read_text())

    def said(*symmetric: bool) -> None:
        weights = [{"num_bits": 4, "group_size": 32, "symmetric": one} for one in symmetric]
        groups = {f"group_{number}": {"weights": one} for number, one in enumerate(weights)}
        config["quantization_config"] = {"quant_method": "compressed-tensors", "config_groups": groups}
        path.write_text(json.dumps(config))

    said(False)
    with pytest.raises(Day0Error, match="have no zero points"):
        kit.run(source, tmp_path / "t", "bf16", allow_bounded=True)
    said(False, True)
    kit.run(source, tmp_path / "u", "bf16", allow_bounded=True)


@pytest.mark.parametrize("to", ["mxfp8", "fp8", "fp8-row", "bf16", "mxfp4"])
def test_every_scale_byte_is_read_again(kit: Any, tmp_path: Path, to: str) -> None:
    """NaN that was kept as a scale byte was refused when the result was read, and 2^127 was infinite there."""
    stem = "model.layers.0.mlp.experts.0.gate_proj.weight"
    tensors = {f"{stem}_packed": kit.codes(64, 64), f"{stem}_scale": torch.arange(256, dtype=torch.uint8).view(64, 4)}
    source = kit.write(tmp_path / "s", tensors, "deepseek_v3")
    options = {"keep_nan": True, "allow_bounded": True}
    report = kit.run(source, tmp_path / "t", to, **options)
    plan = make_plan(open_folder(source), ConversionParameters(to=to, **options))
    assert verify(plan, tmp_path / "t", report).wrong == () and report.weights[0].nan == (32 if to != "mxfp4" else 0)


# ---------------------------------------------------------------------------------------------------- the target


def stopped(kit: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A conversion with all of its shards finished, and nothing else."""
    tensors = kit.gpt_oss(1, name="model.layers.0.mlp.experts") | kit.gpt_oss(1, name="model.layers.1.mlp.experts")
    source: Path = kit.write(folder / "s", tensors, shards=2)
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_companions", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            kit.run(source, folder / "t", "bf16")
    return source


def test_two_at_one_time(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one took the first one's half file away, and the first then gave its name to the second one's."""
    source = kit.write(tmp_path / "s", kit.gpt_oss())

    def also(path: Path, *rest: Any) -> Any:
        with pytest.raises(Day0Error, match="another day0 is converting into it"):
            kit.run(source, tmp_path / "t", "bf16")
        return write_shard(path, *rest)

    monkeypatch.setattr(module, "write_shard", also)
    kit.run(source, tmp_path / "t", "bf16")
    monkeypatch.setattr(module, "write_shard", lambda *_: pytest.fail("written again"))
    kit.run(source, tmp_path / "t", "bf16")


def test_nobody_is_kept_out_after_a_failure(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = stopped(kit, tmp_path, monkeypatch)
    with pytest.raises(Day0Error, match="with other options"):
        kit.run(source, tmp_path / "t", "fp8")
    kit.run(source, tmp_path / "t", "bf16")


def test_a_source_of_the_same_size_that_was_written_since(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its headers are the same, its values are not: what was made of it is made again, and nothing else."""
    source = stopped(kit, tmp_path, monkeypatch)
    path = min(source.glob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(0, 12345))
    seen: list[str] = []

    def watched(path: Path, *rest: Any) -> Any:
        seen.append(path.name)
        return write_shard(path, *rest)

    monkeypatch.setattr(module, "write_shard", watched)
    report = kit.run(source, tmp_path / "t", "bf16")
    plan = make_plan(open_folder(source), ConversionParameters(to="bf16"))
    assert verify(plan, tmp_path / "t", report).wrong == () and seen == [path.name]


def test_a_source_that_is_written_meanwhile(kit: Any, tmp_path: Path) -> None:
    source = kit.write(tmp_path / "s", kit.gpt_oss())
    plan = make_plan(open_folder(source), ConversionParameters(to="bf16"))
    os.utime(source / "model.safetensors", ns=(0, 12345))
    with pytest.raises(Day0Error, match="it was written while it was converted"):
        module.convert(plan, tmp_path / "t", pick_tier("eager"))
    kit.run(source, tmp_path / "t", "bf16")


@pytest.mark.parametrize(
    "verdict",
    [{}, {"changed": "x"}, {"changed": -1}, {"nan": None}, {"bound": 1}, {"more": 1}, 7],
)
def test_a_journal_that_was_written_by_hand(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: Any
) -> None:
    """What we would not have written says nothing; the file it speaks of is made again."""
    source = stopped(kit, tmp_path, monkeypatch)
    path = tmp_path / "t" / JOURNAL
    first, *lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        document = json.loads(line)
        for one in document["verdicts"]:
            old = document["verdicts"][one]
            document["verdicts"][one] = {**old, **verdict} if isinstance(verdict, dict) and verdict else verdict
        lines[number] = json.dumps(document)
    path.write_text("\n".join([first, *lines, ""]))
    report = kit.run(source, tmp_path / "t", "bf16")
    assert all(one.changed == 0 for one in report.weights)


def test_a_journal_is_not_written_through_a_link(kit: Any, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / JOURNAL).symlink_to(tmp_path / "precious")
    with pytest.raises(Day0Error, match="cannot be written"):
        kit.run(kit.write(tmp_path / "s", kit.gpt_oss()), tmp_path / "t", "bf16")
    assert (tmp_path / "precious").read_text() == ""


def test_bytes_that_are_no_text_do_not_move_the_end_of_a_journal(tmp_path: Path) -> None:
    Journal(tmp_path, {"a": 1}).close()
    path = tmp_path / JOURNAL
    whole = path.read_bytes() + b"\xff\xff\xff\n"
    path.write_bytes(whole + b"half")
    Journal(tmp_path, {"a": 1}).close()
    assert path.read_bytes() == whole


def test_a_finished_result_that_lost_something(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = stopped(kit, tmp_path, monkeypatch)
    kit.run(source, tmp_path / "t", "bf16")
    for name in ("config.json", "model.safetensors.index.json"):
        text = (tmp_path / "t" / name).read_text()
        (tmp_path / "t" / name).unlink()
        with pytest.raises(Day0Error, match=f"{name} is missing"):
            kit.run(source, tmp_path / "t", "bf16")
        (tmp_path / "t" / name).write_text(text)
    document = json.loads((tmp_path / "t" / MANIFEST).read_text())
    (tmp_path / "t" / MANIFEST).write_bytes(b"\xff")
    with pytest.raises(Day0Error, match="no text in UTF-8"):
        kit.run(source, tmp_path / "t", "bf16")
    assert document["schema"] == "day0.convert/1"


def test_the_record_of_a_source_is_not_the_results(kit: Any, tmp_path: Path) -> None:
    kit.run(kit.write(tmp_path / "s", kit.gpt_oss()), tmp_path / "t", "bf16")
    report = kit.run(tmp_path / "t", tmp_path / "u", "fp8", only=".", allow_bounded=True)
    assert MANIFEST not in {one.name for one in report.files}


# ---------------------------------------------------------------------------------------------------- the screen


def test_a_name_cannot_speak_for_us(kit: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line break in a name, and then a line that looks like a hint."""
    evil = "evil\nhint: run this"
    save_file({evil: torch.ones(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "deepseek_v3"}')
    with pytest.raises(Day0Error) as caught:
        make_plan(open_folder(tmp_path), ConversionParameters(to="fp8"))
    lines = message_of(caught.value).splitlines()
    assert [one for one in lines if one.startswith("hint:")] == [f"hint: {caught.value.hint}"]
    assert "\n" not in show_convert.safe(evil) and "\x1b" not in show_convert.safe("\x1b[2J")
