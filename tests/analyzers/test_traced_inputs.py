"""The public text of traced inputs: every feature, back byte for byte; hostile text is refused with its place."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from day0.analyzers.recorder import Recorder
from day0.analyzers.traced_inputs.document import MAX_COUNT, MAX_FILE_BYTES, MAX_LINES, parse_lines, read_inputs
from day0.analyzers.traced_inputs.exporting import export_trace
from day0.analyzers.traced_inputs.grammar import MAX_DEPTH, contiguous_stride
from day0.analyzers.traced_inputs.importing import import_trace
from day0.analyzers.traced_inputs.tokens import MAX_LINE, MAX_TOKENS
from day0.analyzers.traced_inputs.writing import call_line, operator_name, qualified_name
from day0.codec import decode, encode
from day0.errors import Day0Error
from day0.records import ListValue, ScalarValue, Signature, TensorValue, Trace, TraceEntry, Value
from day0.reference_ops.signatures import signature_id, tensor_values

FEATURES = Path(__file__).parent / "every_feature.txt"


def take(text: str) -> Trace:
    return import_trace(text, "in.txt", source="inputs:in.txt")


def call(arguments: str, op: str = "aten.add.Tensor") -> str:
    return f"Operator: {op}\ncnt: 1, {arguments}\n"


def first(text: str) -> Signature:
    (line,) = [one for one in parse_lines(text, "in.txt") if one.call is not None]
    assert line.call is not None
    return Signature(op=qualified_name(line.op), args=line.call.args, kwargs=line.call.kwargs)


def refusal(text: str) -> Day0Error:
    with pytest.raises(Day0Error) as caught:
        take(text)
    return caught.value


def test_every_feature_comes_back_byte_for_byte_through_the_record_on_disk() -> None:
    text = read_inputs(FEATURES)
    assert text.encode() == FEATURES.read_bytes()
    written = encode(take(text), inputs={}, environment={})
    again = decode(Trace, written, where="trace.json", remake="").record
    assert export_trace(again).text.encode() == FEATURES.read_bytes()


def test_the_usual_spelling_is_written_from_the_signatures_and_not_kept() -> None:
    made = take(read_inputs(FEATURES))
    assert made.imported is not None
    from_signature = [number for number, one in enumerate(made.imported.lines, start=1) if one.text is None]
    assert from_signature == [4, 5, 6, 7, 8, 9, 10, 11, 17, 19, 22, 25, 27, 30, 33, 37, 39, 40, 57]
    # Nothing is dropped: what is no entry says why.
    refused = {one.refused for one in made.imported.lines if one.refused}
    assert len(refused) == 4 and any("aten.no_such_operator.here" in one for one in refused)
    assert sum(1 for one in made.imported.lines if one.refused) == 4


def test_what_each_feature_means() -> None:
    made = take(read_inputs(FEATURES))
    assert made.imported is not None
    by_id = {entry.id: entry for entry in made.entries}

    def of(number: int) -> TraceEntry:
        assert made.imported is not None
        return by_id[made.imported.lines[number - 1].entry]

    plain = of(4)
    assert plain.signature.op == "aten::add.Tensor"
    assert plain.counts == {"imported": 3 + 2 + 2}, "three spellings of one call are one entry"
    strided = of(5).signature.args[0]
    assert isinstance(strided, TensorValue) and strided.stride == (1, 2) and strided.dtype == "bfloat16"
    assert of(6).counts == {"imported": 0}
    assert [value.value for value in _scalars(of(9).signature)] == ["(1-2j)"]
    assert of(22).signature.op == "aten::sum.dim_IntList", "what older logs call SymInt"
    assert [value.type for value in _scalars(of(27).signature)] == ["dtype", "layout", "device"]
    assert {value.type for number in (28, 29, 31) for value in _scalars(of(number).signature)} >= {"device", "dtype"}
    assert [value.value for value in _scalars(of(35).signature)] == ["tanh'"]
    looked_up = of(25).signature.args[1]
    assert isinstance(looked_up, ListValue) and isinstance(looked_up.items[1], TensorValue)
    assert looked_up.items[1].range == (0, 4), "the second dimension has five"
    extended = list(tensor_values(of(44).signature))
    assert [(one.offset, one.alias) for one in extended] == [(4, 0), (4, 0)]
    assert next(value.range for value in tensor_values(of(46).signature) if value.range) == (0, 4)


def _scalars(signature: Signature) -> list[ScalarValue]:
    return [one for one in (*signature.args, *signature.kwargs.values()) if isinstance(one, ScalarValue)]


@pytest.mark.parametrize("value", ["(1-0j)", "(-0-0j)", "-0j", "(inf-nanj)", "(nan+infj)", "1e-05j"])
def test_complex_numbers_keep_the_signs_of_their_zeros(value: str) -> None:
    (found,) = first(call(f"(({value},), {{}})")).args
    assert found == ScalarValue(type="complex", value=repr(complex(value.strip("()"))))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (2, 3, 0), (0, 0, 4), (5, 1, 4), (7,)])
def test_strides_that_are_not_written_are_those_of_torch(shape: tuple[int, ...]) -> None:
    assert contiguous_stride(shape) == torch.empty(shape).stride()


def test_an_imported_call_knows_its_cost_and_its_results() -> None:
    (entry,) = take(call("((T([2, 3], f32), T([3, 5], f32)), {})", "aten.mm.default")).entries
    assert entry.flops == 2 * 2 * 3 * 5
    assert entry.bytes == 4 * (6 + 15 + 10)
    assert isinstance(entry.outputs[0], TensorValue) and entry.outputs[0].shape == (2, 5)
    (entry,) = take(call("((T([2, 3], f32), T([3], f32)), {})", "aten.add_.Tensor")).entries
    assert entry.mutates == ("self",)


@pytest.mark.parametrize(
    ("line", "column", "what"),
    [
        ("cnt: 1, ((T([2], f32),), {}", 28, "expected ')', got the end of the line"),
        ("cnt: 1, ((T([2], f32)), {})", 10, "no tuple"),
        ("cnt: 1, ((T([2], f31),), {})", 18, "'f31' is no dtype"),
        ("cnt: 1, ((T([-2], f32),), {})", 11, "not negative"),
        ("cnt: 1, ((T([s0, 4], f32),), {})", 14, "symbolic"),
        ("cnt: 1, ((T([2, 3], f32, stride=(1,)),), {})", 11, "1 strides for 2 dimensions"),
        ("cnt: 1, ((T([2], f32, stride=(-1,)),), {})", 11, "not negative"),
        ("cnt: 1, ((T([2], f32, colour=3),), {})", 23, "a tensor has no 'colour'"),
        ("cnt: 1, ((T([2], f32, offset=1, offset=2),), {})", 40, "given twice"),
        ("cnt: 1, ((T([4611686018427387904], i8),), {})", 11, "more than any machine"),
        ("cnt: 1, ((T([3000000000, 3000000000], i8),), {})", 11, "more than any machine"),
        ("cnt: 1, ((T([2, 3], f32, stride=(4611686018427387904, 1)),), {})", 11, "more than any machine"),
        ("cnt: 1, ((T([99999999999999999999999], i8),), {})", 14, "64 bits"),
        ("cnt: 1, ((T([2], f32, range=(0, 1)),), {})", 11, "integer tensor"),
        ("cnt: 1, ((1 + 2,), {})", 13, "not computed"),
        ("cnt: 1, ((__import__('os'),), {})", 11, "is not known"),
        ("cnt: 1, ((torch.load('x'),), {})", 11, "is not known"),
        ("cnt: 1, ((007,), {})", 11, "begins with a zero"),
        ("cnt: 1, (('\\ud800',), {})", 12, "no character"),
        ("cnt: 1, (('\\q',), {})", 12, "escape"),
        ("cnt: 1, (('abc,), {})", 11, "does not end"),
        ("cnt: 1, ((f32,), {'a': 1, 'a': 2})", 27, "twice"),
        ("cnt: 1, ((f32,), {'a b': 1})", 19, "no name"),
        ("cnt: 1, ((f32,), {a: 1})", 19, "quoted name"),
        ("cnt: 1, (({},), {})", 11, "expected a value"),
        ("cnt: 1, ((f32,), {}) # why", 22, "no meaning"),
        ("cnt: 1, ((f32,), {}) 7", 22, "after the arguments"),
        ("cnt: -1, ((f32,), {})", 1, "a call is"),
        ("cnt: 9999999999999999, ((f32,), {})", 6, "a count"),
        ("Operator: import os", 11, "no operator"),
        ("Operator: aten", 11, "no operator"),
        ("nonsense", 1, "neither an operator nor a call"),
        ("cnt: 1, ((\x1b[31m,), {})", 11, "control character"),
        ("cnt: 1, ((ST([2], f32, 1, True),), {})", 14, "layout"),
        ("cnt: 1, ((ST([2], f32, torch.sparse_coo, 1),), {})", 14, "True or False"),
    ],
)
def test_what_is_not_of_the_grammar_is_refused_with_line_and_column(line: str, column: int, what: str) -> None:
    error = refusal(f"Operator: aten.relu.default\n{line}\n")
    assert error.where == f"in.txt:2:{column}", (error.where, error.what)
    assert what in error.what
    assert error.hint


def test_hostile_sizes_end_at_once() -> None:
    deep = "[" * 50_000 + "]" * 50_000
    assert "nested" in refusal(call(f"(({deep},), {{}})")).what
    brackets = "(" * 100_000
    assert "nested" in refusal(call(f"(({brackets}")).what
    dims = ", ".join(["1"] * 100)
    assert "64" in refusal(call(f"((T([{dims}], f32),), {{}})")).what
    assert "more than" in refusal(call("((" + "1," * MAX_TOKENS + "), {})")).what
    assert "characters" in refusal(call("((" + " " * MAX_LINE + "1,), {})")).what
    assert "number" in refusal(call("((" + "1" * 5000 + ",), {})")).what
    assert "lines" in refusal("\n" * MAX_LINES).what
    assert refusal("").what == "there is no call in it"
    assert MAX_DEPTH < 100 and MAX_COUNT < 2**53


@pytest.mark.parametrize(
    ("op", "arguments", "why"),
    [
        ("aten.from_file.default", "(('/etc/hostname', False, 8), {})", "opens a file"),
        ("profiler._record_function_enter.default", "(('x', None), {})", "namespace profiler"),
        ("aten.add.Tensor", "((T([2], f32),), {})", "lacks the argument 'other'"),
        ("aten.add.Tensor", "((T([2], f32), 1, 2, 3), {})", "takes 2 positional arguments, not 4"),
        ("aten.add.Tensor", "((T([2], f32), 1), {'beta': 2})", "has no argument 'beta'"),
        ("aten.add.Tensor", "((T([2], f32), 1), {'other': 2})", "twice"),
        ("aten.__class__.mro", "((), {})", "no operator"),
    ],
)
def test_calls_that_this_torch_does_not_have_are_named_and_stay_in_the_text(op: str, arguments: str, why: str) -> None:
    assert any(why in fact for fact in refusal(call(arguments, op)).facts)
    text = call("((T([2], f32),), {})", "aten.relu.default") + call(arguments, op)
    made = take(text)
    assert len(made.entries) == 1
    assert made.imported is not None and why in made.imported.lines[3].refused
    assert export_trace(made).text == text


def test_calls_that_would_loop_for_as_long_as_a_text_says_are_not_run() -> None:
    lines = [
        call("((T([1000000000000], i8), 1), {})", "aten.split.Tensor"),
        call("((T([1000000000000], i8),), {})", "aten.unbind.int"),
        call("((T([10], f32), 1000000000000), {})", "aten.diff.default"),
        call("(([1000000000000],), {})", "aten.zeros.default"),
    ]
    made = take("".join(lines))
    assert [entry.outputs for entry in made.entries] == [()] * 4


def test_a_trace_goes_out_and_comes_in_with_the_same_signatures() -> None:
    made = _recorded()
    out = export_trace(made)
    assert out.losses == {
        "phases, modules, source lines, results, FLOPs and bytes": 8,
        "shared storage": 2,
        "storage offsets": 1,
        "strides of dimensions of size one": 1,
        "value ranges": 2,
        "device arguments (written as 'cuda')": 1,
    }
    back = {entry.id for entry in take(out.text).entries}
    lost = {entry.signature.op for entry in made.entries if entry.id not in back}
    # Shared storage, offset, odd stride, and the dtype without a name; ranges are no part of a signature's id.
    assert lost == {"aten::mm", "aten::mul.Tensor", "aten::exp", "aten::_to_copy"}
    assert len(out.left_out) == 1 and "float8_e4m3fn" in next(iter(out.left_out.values()))

    full = export_trace(made, extended=True)
    again = take(full.text)
    assert {entry.id: entry.signature for entry in again.entries} == {e.id: e.signature for e in made.entries}
    assert set(full.losses) == {next(iter(out.losses)), "device arguments (written as 'cuda')"}
    assert not full.left_out


def _recorded() -> Trace:
    recorder = Recorder()
    recorder.phase = "prefill"
    x, base = torch.zeros(4, 6), torch.zeros(10)
    with torch.no_grad(), recorder:
        x.t() @ x
        x.sum(dim=(0, 1), keepdim=True, dtype=torch.float64)
        base[2:5] * base[2:5]
        torch.exp(torch.zeros(8).as_strided((1, 3), (99, 1)))
        torch.nn.functional.embedding(torch.tensor([1, 3]), x)
        x.to(torch.float8_e4m3fn)
    made = take(call("((T([2], f32),), {})", "aten.relu.default"))
    plain = [one for one in recorder.entries() if "slice" not in one.signature.op and "as_str" not in one.signature.op]
    return made.model_copy(update={"imported": None, "entries": tuple(plain)})


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, what in ((tmp_path, "folder"), (tmp_path / "no", "no such file"), (Path("/dev/zero"), "pipe")):
        with pytest.raises(Day0Error, match=what):
            read_inputs(path)
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"# fine\n# ab\xff\n")
    with pytest.raises(Day0Error) as caught:
        read_inputs(bad)
    assert caught.value.where == f"{bad}:2:5"
    with bad.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(Day0Error, match="MiB"):
        read_inputs(bad)


# ------------------------------------------------------------------------------------------------- fuzz

FLOATS = st.floats().map(lambda value: ScalarValue(type="float", value=repr(value)))
SCALARS = st.one_of(
    st.just(ScalarValue(type="none", value="None")),
    st.booleans().map(lambda value: ScalarValue(type="bool", value=str(value))),
    st.integers(-(2**63), 2**64 - 1).map(lambda value: ScalarValue(type="int", value=str(value))),
    FLOATS,
    st.complex_numbers().map(lambda value: ScalarValue(type="complex", value=repr(value))),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20).map(
        lambda value: ScalarValue(type="str", value=value)
    ),
    st.sampled_from(["float16", "bool", "complex32", "float8_e5m2"]).map(
        lambda value: ScalarValue(type="dtype", value=value)
    ),
    st.sampled_from(["strided", "sparse_csr"]).map(lambda value: ScalarValue(type="layout", value=value)),
    st.sampled_from(["channels_last", "preserve_format"]).map(
        lambda value: ScalarValue(type="memory_format", value=value)
    ),
)


@st.composite
def tensors(draw: st.DrawFn) -> TensorValue:
    shape = tuple(draw(st.lists(st.integers(0, 2**10), max_size=5)))
    stride = contiguous_stride(shape)
    if draw(st.booleans()):
        stride = tuple(draw(st.lists(st.integers(0, 2**20), min_size=len(shape), max_size=len(shape))))
    return TensorValue(
        shape=shape,
        dtype=draw(st.sampled_from(["float16", "int64", "bool", "float8_e4m3fn", "uint8"])),
        stride=stride,
        offset=draw(st.integers(0, 2**40)),
        alias=draw(st.none() | st.integers(0, 9)),
    )


VALUES: st.SearchStrategy[Value] = st.recursive(
    SCALARS | tensors(),
    lambda inner: st.lists(inner, max_size=4).map(lambda one: ListValue(items=tuple(one))),
    max_leaves=8,
)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,12}", fullmatch=True)
SIGNATURES = st.builds(
    Signature,
    op=st.builds("{}::{}".format, NAMES, NAMES)
    | st.builds("{}::{}.{}".format, NAMES, NAMES, NAMES.filter(lambda name: name != "default")),
    args=st.lists(VALUES, max_size=4).map(tuple),
    kwargs=st.dictionaries(NAMES, VALUES, max_size=3),
)


@given(SIGNATURES, st.integers(0, MAX_COUNT))
def test_fuzz_what_is_written_is_read_as_the_same_signature(signature: Signature, count: int) -> None:
    line = call_line(signature, count, extended=True)
    found = first(f"Operator: {operator_name(signature.op)}\n{line}")
    assert found == signature
    assert call_line(found, count, extended=True) == line
    # Without extensions the text loses offsets and aliases, and writes again what it read.
    plain = call_line(signature, count)
    assert call_line(first(f"Operator: {operator_name(signature.op)}\n{plain}"), count) == plain


ALPHABET = [
    *"()[]{},:=+-'\"\\ \t\r\n0123456789.eEjJTSxu#_",
    "T([",
    "ST([",
    "f16",
    "torch.",
    "device(",
    "inf",
    "nan",
    "cnt: ",
    "Operator: ",
    "stride=",
    "range=",
    "None",
    "\x00",
    "\ufeff",
    "é",
    "9" * 25,
    "((" * 20,
]


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """Cut some lines of the features' file and change, drop, repeat or insert pieces of them."""
    lines = FEATURES.read_text(encoding="utf-8").split("\n")
    start = draw(st.integers(0, len(lines) - 1))
    text = "\n".join(["Operator: aten.add.Tensor", *lines[start : start + draw(st.integers(1, 5))]])
    for _ in range(draw(st.integers(1, 6))):
        at, until = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        until = min(until, at + draw(st.integers(0, 12)))
        text = text[:at] + draw(st.sampled_from(["", text[at:until] * 2, *ALPHABET])) + text[until:]
    return text


@settings(max_examples=400)
@given(mutated())
@example("Operator: aten.add.Tensor\ncnt: 1, ((1j-infj,), {})")
@example("Operator: aten.add.Tensor\ncnt: 1, ((-,), {})")
@example('Operator: aten.add.Tensor\ncnt: 1, "')
@example("\ufeffOperator: aten.sin.default\ncnt: 1, ((T([2], f32),), {})")
def test_fuzz_a_changed_text_is_read_and_given_back_or_refused(text: str) -> None:
    try:
        made = take(text)
    except Day0Error as error:
        assert error.where.startswith("in.txt") and error.hint
        return
    assert export_trace(made).text == text
    assert all(entry.id == signature_id(entry.signature) for entry in made.entries)
    assert decode(Trace, encode(made, inputs={}, environment={}), where="t", remake="").record == made


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("utf-8", "replace")))
def test_fuzz_any_text_at_all_is_read_or_refused(text: str) -> None:
    for head in ("", "Operator: aten.add.Tensor\ncnt: 1, ", "Operator: aten.add.Tensor\ncnt: 1, (("):
        try:
            made = take(head + text)
        except Day0Error:
            continue
        assert export_trace(made).text == head + text


def test_fuzz_bytes_in_a_file_are_read_or_refused(tmp_path: Path) -> None:
    chance, path = random.Random(0), tmp_path / "in.txt"  # noqa: S311 - a fuzz test, no secret
    data = FEATURES.read_bytes()
    for _ in range(150):
        cut = bytearray(data[: chance.randrange(len(data))])
        for _ in range(chance.randrange(4)):
            if cut:
                cut[chance.randrange(len(cut))] = chance.randrange(256)
        path.write_bytes(bytes(cut))
        try:
            text = read_inputs(path)
            assert export_trace(take(text)).text.encode() == bytes(cut)
        except Day0Error:
            continue
