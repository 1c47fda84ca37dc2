"""`export:` sources: programs of torch.export, read as data."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._export.serde.schema import ScalarType

from day0.analyzers.trace import trace_model
from day0.errors import Day0Error
from day0.models import exported
from day0.models.exported_archive import DTYPES
from day0.models.exported_sizes import size_of
from day0.models.own import Inputs, call_of
from day0.models.source import open_model
from day0.models.spec import ModelSpec, OwnPhase
from day0.models.workload import plan_phases
from day0.playbook import ModelPlan, WorkloadPlan
from day0.records import Trace


class Tiny(nn.Module):
    """Embedding, a view that shares its weight, a mask, an attention, several outputs, a part without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: torch.Tensor
        self.table = nn.Embedding(23, 16)
        self.layers = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])
        self.norm = nn.LayerNorm(16)
        self.register_buffer("steps", torch.arange(4))
        self.register_buffer("bias", torch.ones(16), persistent=False)

    def forward(self, ids: torch.Tensor, scale: float = 1.0, *, mask: torch.Tensor | None = None) -> Any:
        x_BSM = self.table(ids)
        for layer in self.layers:
            x_BSM = layer(x_BSM) * scale + self.bias
        if mask is not None:
            x_BSM = x_BSM.masked_fill(~mask[..., None], 0.0)
        best, where = x_BSM.topk(3, dim=-1)
        with torch.no_grad():
            count = torch.zeros(4, device=ids.device).scatter_(0, self.steps, 1.0)
        mixed = nn.functional.scaled_dot_product_attention(x_BSM, x_BSM, x_BSM)
        return {"mixed": self.norm(mixed), "best": best, "where": where, "parts": mixed.chunk(2, dim=-1), "n": count}


def _inputs(tokens: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 23, (2, tokens)), torch.ones(2, tokens, dtype=torch.bool)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    torch.manual_seed(0)
    model = Tiny().eval()
    ids, mask = _inputs()
    tokens = torch.export.Dim("tokens", min=4, max=64)
    shapes = {"ids": {1: tokens}, "scale": None, "mask": {1: tokens}}
    program = torch.export.export(model, (ids, 0.5), {"mask": mask}, dynamic_shapes=shapes)
    path = tmp_path_factory.mktemp("exported") / "tiny.pt2"
    torch.export.save(program, path)
    return path, model


def _open(path: Path, **changes: Any) -> ModelSpec:
    return open_model(ModelPlan(source=f"export:{path}", **changes))


def _trace(spec: ModelSpec, mode: str = "auto") -> Trace:
    return trace_model(spec, plan_phases(spec, WorkloadPlan()), mode=mode)


def _rewritten(path: Path, target: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """Copy an archive with changed entries; an entry for which `change` returns None is left out."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            data = change(info.filename, old.read(info.filename))
            if data is not None:
                new.writestr(info.filename, data)
    return target


def _with_graph(path: Path, target: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    def edit(name: str, data: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return data
        document = json.loads(data)
        change(document)
        return json.dumps(document).encode()

    return _rewritten(path, target, edit)


def test_a_program_computes_what_the_model_does(saved: tuple[Path, nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    path, model = saved
    spec = _open(path)
    made: list[torch.Tensor] = []
    before = exported._input

    def kept(*args: Any) -> torch.Tensor:
        made.append(before(*args))
        return made[-1]

    monkeypatch.setattr(exported, "_input", kept)
    got: Any = spec.phases[0].prepare(spec.build("cpu"), "cpu")()
    expected = model(made[0], 0.5, mask=made[1])
    assert made[0].max() > 0
    assert made[1].all()
    flat = [expected["mixed"], expected["best"], expected["where"], *expected["parts"], expected["n"]]
    assert len(got) == len(flat)
    assert all(torch.equal(one, other) for one, other in zip(got, flat, strict=True))


def _calls(trace: Trace) -> dict[tuple[str, str], int]:
    calls: dict[tuple[str, str], int] = {}
    for entry in trace.entries:
        key = (entry.signature.op, entry.module)
        calls[key] = calls.get(key, 0) + sum(entry.counts.values())
    return calls


@pytest.mark.parametrize("mode", ["meta", "real"])
def test_the_trace_has_the_modules_classes_and_lines_of_the_model(saved: tuple[Path, nn.Module], mode: str) -> None:
    trace = _trace(_open(saved[0]), mode)
    products = [entry for entry in trace.entries if entry.signature.op == "aten::addmm"]
    assert {(entry.module, entry.module_class) for entry in products} <= {
        ("layers.0", "Linear"),
        ("layers.1", "Linear"),
    }
    assert sum(entry.modules for entry in products) == 2
    assert all(entry.source.startswith("models/test_exported.py:") for entry in products)
    assert trace.model.class_name == "Tiny"
    assert trace.model.parameters == sum(one.numel() for one in saved[1].parameters())
    assert trace.phases[0].reason == "ids.1 = 8 (as exported)"


def test_a_trace_of_the_program_is_that_of_the_model(saved: tuple[Path, nn.Module]) -> None:
    path, _ = saved
    ids, mask = _inputs()
    spec = _open(path)
    phase = OwnPhase(name="forward", reason="", prepare=call_of(Inputs(args=(ids, 0.5), kwargs={"mask": mask}), "here"))
    direct = replace(spec, build=lambda device: Tiny().to(device).eval(), phases=(phase,))
    wanted = {"aten::addmm", "aten::topk", "aten::masked_fill.Scalar", "aten::native_layer_norm", "aten::embedding"}

    def shapes(trace: Trace) -> set[tuple[str, str]]:
        return {(e.id, e.module) for e in trace.entries if e.signature.op in wanted}

    assert shapes(_trace(spec, "meta")) == shapes(_trace(direct, "meta"))


@pytest.mark.parametrize("name", ["ids.1", "mask.1"])
def test_set_gives_a_dynamic_size(saved: tuple[Path, nn.Module], name: str) -> None:
    trace = _trace(_open(saved[0], set={name: 50}))
    assert trace.phases[0].reason == "ids.1 = 50 (asked for)"
    shapes = {entry.outputs[0].shape for entry in trace.entries if entry.signature.op == "aten::embedding"}  # type: ignore[union-attr]
    assert shapes == {(2, 50, 16)}


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("ids.1", 65, "65 is not allowed: 4 to 64"),
        ("ids.1", 3, "3 is not allowed: 4 to 64"),
        ("ids.0", 3, "the program has no such size"),
        ("hidden_size", 3, "the program has no such size"),
        ("ids.1", "many", "'many' is no size"),
        ("ids.1", -1, "-1 is no size"),
        ("ids.1", True, "True is no size"),
    ],
)
def test_a_size_that_cannot_be_is_refused(saved: tuple[Path, nn.Module], key: str, value: Any, text: str) -> None:
    with pytest.raises(Day0Error) as caught:
        _open(saved[0], set={key: value})
    assert text in caught.value.what


def test_our_numbers_of_dtypes_are_those_of_torch() -> None:
    names = {
        "BYTE": torch.uint8,
        "CHAR": torch.int8,
        "SHORT": torch.int16,
        "INT": torch.int32,
        "LONG": torch.int64,
        "HALF": torch.float16,
        "FLOAT": torch.float32,
        "DOUBLE": torch.float64,
        "BOOL": torch.bool,
        "BFLOAT16": torch.bfloat16,
        "UINT16": torch.uint16,
        "FLOAT8E4M3FN": torch.float8_e4m3fn,
        "FLOAT8E5M2": torch.float8_e5m2,
    }
    assert {name: DTYPES[ScalarType[name].value] for name in names} == names


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_pickles_in_the_archive_are_not_opened(saved: tuple[Path, nn.Module], tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    bomb = pickle.dumps(Bomb(proof))
    path = _rewritten(
        saved[0], tmp_path / "bomb.pt2", lambda name, data: bomb if name.endswith("sample_inputs/model.pt") else data
    )
    assert _trace(_open(path), "real").phases[0].calls > 0
    assert not proof.exists()
    # What this guards against: torch's own loader opens them. When it no longer does, docs/sources.md says too much.
    with pytest.raises(RuntimeError):
        torch.export.load(path)
    assert proof.exists()


def test_a_weight_that_is_a_pickle_is_refused(saved: tuple[Path, nn.Module], tmp_path: Path) -> None:
    def edit(name: str, data: bytes) -> bytes:
        return data.replace(b'"use_pickle": false', b'"use_pickle": true', 1) if name.endswith("_config.json") else data

    with pytest.raises(Day0Error, match="unpickling can run any code"):
        _open(_rewritten(saved[0], tmp_path / "pickled.pt2", edit))


HOSTILE = "__import__('pathlib').Path('ran').touch()"


def test_the_text_of_a_size_is_not_evaluated(
    saved: tuple[Path, nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def edit(document: dict[str, Any]) -> None:
        sizes = document["graph_module"]["graph"]["tensor_values"]["ids"]["sizes"]
        sizes[1] = {"as_expr": {"expr_str": HOSTILE, "hint": {"as_int": 8}}}

    spec = _open(_with_graph(saved[0], tmp_path / "text.pt2", edit))
    with pytest.raises(Day0Error, match="is no arithmetic"):
        _trace(spec)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Integer(3)", 3),
        ("Symbol('s0', positive=True, integer=True)", 10),
        ("Add(Mul(Integer(2), Symbol('s0')), Integer(-1))", 19),
        ("FloorDiv(Symbol('s0'), Integer(4))", 2),
        ("Mod(Symbol('s0'), Integer(4))", 2),
        ("Max(Integer(1), Min(Symbol('s0'), Integer(7)))", 7),
        ("Pow(Symbol('s0'), Integer(3))", 1000),
    ],
)
def test_arithmetic_on_sizes(text: str, value: int) -> None:
    assert size_of("here", {"as_expr": {"expr_str": text}}, {"s0": 10}) == value


@pytest.mark.parametrize(
    "text",
    [
        HOSTILE,
        "Pow(Integer(10), Integer(10000))",
        "Pow(Pow(Integer(99), Integer(64)), Integer(64))",
        "FloorDiv(Integer(1), Integer(0))",
        "Symbol('s9')",
        "Integer(-3)",
        "(" * 3000,
        "Add(" * 500 + "Integer(1)" + ")" * 500,
        "x" * 20_000,
        "Max()",
        "Integer",
        "[1]",
        "1.5",
        "",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(Day0Error):
        size_of("here", {"as_expr": {"expr_str": text}}, {"s0": 10})


def _node(target: str) -> Callable[[dict[str, Any]], object]:
    def edit(document: dict[str, Any]) -> None:
        document["graph_module"]["graph"]["nodes"][0]["target"] = target

    return edit


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("torch.os.system", "is no operator of torch"),
        ("torch.ops.load_library", "is no operator of torch"),
        ("torch.serialization.load", "is no operator of torch"),
        ("torch.ops.aten.embedding.__class__", "has no operator aten::embedding.__class__"),
        ("torch.ops.aten.no_such.default", "has no operator aten::no_such.default"),
        ("_operator.attrgetter", "is no operator of torch"),
        ("math.factorial", "is no operator of torch"),
        ("torch.ops.higher_order.cond", "higher-order operator cond"),
        ("os.system", "is no operator of torch"),
        ("", "is no operator of torch"),
    ],
)
def test_a_graph_calls_operators_only(saved: tuple[Path, nn.Module], tmp_path: Path, target: str, text: str) -> None:
    path = _with_graph(saved[0], tmp_path / "call.pt2", _node(target))
    with pytest.raises(Day0Error) as caught:
        _trace(_open(path))
    assert text in caught.value.what


def _drop(*keys: str) -> Callable[[dict[str, Any]], object]:
    def edit(document: dict[str, Any]) -> None:
        for key in keys[:-1]:
            document = document[key]
        del document[keys[-1]]

    return edit


@pytest.mark.parametrize(
    "change",
    [
        _drop("graph_module"),
        _drop("graph_module", "graph"),
        _drop("graph_module", "graph", "nodes"),
        _drop("graph_module", "graph", "outputs"),
        _drop("graph_module", "graph", "tensor_values"),
        _drop("graph_module", "signature"),
        lambda document: document["graph_module"]["graph"].update(nodes=[3]),
        lambda document: document["graph_module"]["graph"].update(nodes=[{"target": "torch.ops.aten.relu.default"}]),
        lambda document: document["graph_module"]["graph"].update(nodes="text"),
        lambda document: document["graph_module"]["graph"]["nodes"].reverse(),
        lambda document: document["graph_module"]["signature"].update(input_specs=[{}]),
        lambda document: document["graph_module"]["signature"].update(input_specs=[{"user_input": {"arg": {}}}]),
        lambda document: document["graph_module"]["graph"]["tensor_values"]["ids"].update(sizes=3),
        lambda document: document["graph_module"]["graph"]["tensor_values"]["ids"].update(dtype=99),
        lambda document: document.update(range_constraints=[]),
        lambda document: document.update(schema_version={"major": 99}),
        lambda document: document.update(schema_version=None),
    ],
)
def test_a_graph_of_another_form_is_refused(
    saved: tuple[Path, nn.Module], tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    path = _with_graph(saved[0], tmp_path / "damaged.pt2", change)
    with pytest.raises(Day0Error) as caught:
        _trace(_open(path))
    assert caught.value.hint


def test_a_file_that_is_cut_off_or_something_else_is_refused(saved: tuple[Path, nn.Module], tmp_path: Path) -> None:
    whole = saved[0].read_bytes()
    other = tmp_path / "other.pt2"
    for data in (b"", b"text", whole[: len(whole) // 2], whole[:-100]):
        other.write_bytes(data)
        with pytest.raises(Day0Error, match=r"no archive of torch\.export\.save|holds no program"):
            _open(other)
    with pytest.raises(Day0Error, match="there is no such file"):
        _open(tmp_path / "gone.pt2")


def test_archives_without_a_graph_are_told_apart(tmp_path: Path) -> None:
    for entry, text in (
        ("serialized_exported_program.json", "torch 2.7 or older"),
        ("m/data/aotinductor/model/model.so", "compiled code"),
        ("hello.txt", "it holds no program"),
    ):
        path = tmp_path / "other.pt2"
        with zipfile.ZipFile(path, "w") as made:
            made.writestr(entry, "{}")
        with pytest.raises(Day0Error, match=text):
            _open(path)


def test_a_small_entry_that_unfolds_to_a_large_one_is_refused(saved: tuple[Path, nn.Module], tmp_path: Path) -> None:
    path = tmp_path / "packed.pt2"
    with zipfile.ZipFile(saved[0]) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info.filename))
    with pytest.raises(Day0Error, match="is compressed"):
        _open(path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sizes": [{"as_int": 10**9}, {"as_int": 16}]}, "it needs 64,000,000,000 bytes"),
        ({"sizes": [{"as_int": -1}, {"as_int": 16}]}, "no list of whole numbers"),
        ({"strides": [{"as_int": 10**15}, {"as_int": 1}]}, "it needs"),
        ({"storage_offset": {"as_int": 10**6}}, "it needs"),
        ({"dtype": 77}, "does not know its dtype"),
    ],
)
def test_a_weight_that_reaches_beyond_its_bytes_is_refused(
    saved: tuple[Path, nn.Module], tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    def edit(name: str, data: bytes) -> bytes:
        if not name.endswith("model_weights_config.json"):
            return data
        document = json.loads(data)
        document["config"]["table.weight"]["tensor_meta"].update(changes)
        return json.dumps(document).encode()

    with pytest.raises(Day0Error, match=text):
        _open(_rewritten(saved[0], tmp_path / "reach.pt2", edit))


def test_inputs_keep_the_layout_that_was_exported(tmp_path: Path) -> None:
    class Sum(nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return image + 1

    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    path = tmp_path / "image.pt2"
    torch.export.save(torch.export.export(Sum(), (image,)), path)
    for mode in ("meta", "real"):
        (entry,) = _trace(_open(path), mode).entries
        assert entry.signature.args[0].stride == image.stride()  # type: ignore[union-attr]


def test_operators_of_a_library_are_found_by_its_name(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with torch.library._scoped_library("day0test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")

        class Twice(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                made: torch.Tensor = torch.ops.day0test.twice(x)
                return made

        torch.export.save(torch.export.export(Twice(), (torch.ones(3),)), buffer)
        path = tmp_path / "twice.pt2"
        path.write_bytes(buffer.getvalue())
        assert any(entry.signature.op == "day0test::twice" for entry in _trace(_open(path)).entries)
    with pytest.raises(Day0Error, match="has no operator day0test::twice"):
        _trace(_open(path))


def test_transformers_with_experts_export_and_trace(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(
        "qwen3_moe",
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        moe_intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
        vocab_size=64,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.model(input_ids=ids, use_cache=False).logits
            return logits

    ids = torch.randint(0, 64, (1, 6))
    path = tmp_path / "moe.pt2"
    torch.export.save(torch.export.export(Wrapped(), (ids,)), path)
    spec = _open(path)
    trace = _trace(spec, "real")
    assert any(entry.module == "model.model.layers.0.mlp.gate" for entry in trace.entries)
    assert any("modeling_qwen3_moe.py:" in entry.source for entry in trace.entries)
