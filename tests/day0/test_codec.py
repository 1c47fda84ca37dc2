from __future__ import annotations

import json

import pytest

from day0.codec import SCHEMAS, body_hash, decode, encode
from day0.errors import Day0Error
from day0.hashing import hash_json
from day0.records import (
    CaseResult,
    Identity,
    Lock,
    LockEntry,
    ModelInfo,
    NumericsReport,
    PhaseInfo,
    Signature,
    TensorValue,
    Trace,
    TraceEntry,
)

LOCK = Lock(
    device="sim",
    namespace="base",
    model="sha256:00",
    entries=(
        LockEntry(
            operator="aten::topk",
            dtypes=("float32",),
            signatures=("aa",),
            identity=Identity(operator="aten::topk", contract=1, namespace="base", id="sort", version="1.0"),
            kind="decomposition",
            source_hash="sha256:11",
            origin="kernels/torch/topk.py",
            decisions=(),
        ),
    ),
)

MODEL = ModelInfo(
    source="toy", dtype="float32", class_name="Toy", parameters=1, parameter_bytes=4, fingerprint="sha256:0"
)


def _text() -> str:
    return encode(LOCK, inputs={"trace": "sha256:22"}, environment={"torch": "2.13.0"})


def test_a_record_comes_back_as_it_was_written() -> None:
    found = decode(Lock, _text(), where="ops.lock", remake="day0 register")
    assert found.record == LOCK
    assert found.inputs == {"trace": "sha256:22"}
    assert found.digest == body_hash(LOCK)


def test_the_text_is_stable_and_ends_in_a_newline() -> None:
    assert _text() == _text()
    assert _text().endswith("}\n")


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_a_truncated_record_names_the_file_and_what_to_run(keep: float) -> None:
    text = _text()
    with pytest.raises(Day0Error) as caught:
        decode(Lock, text[: int(len(text) * keep)], where="runs/a/ops.lock", remake="day0 register --run runs/a")
    assert caught.value.where == "runs/a/ops.lock"
    assert "cut off" in caught.value.what or "not JSON" in caught.value.what
    assert "day0 register --run runs/a" in caught.value.hint


def test_a_newer_schema_is_refused_with_both_versions() -> None:
    text = _text().replace("day0.lock/1", "day0.lock/7")
    with pytest.raises(Day0Error, match=r"day0\.lock/7.*up to /1"):
        decode(Lock, text, where="ops.lock", remake="day0 register")


def test_another_kind_of_record_is_refused() -> None:
    with pytest.raises(Day0Error, match=r"expected a record of schema day0\.trace/1"):
        decode(Trace, _text(), where="trace.json", remake="day0 trace")


def test_a_changed_body_is_noticed() -> None:
    text = _text().replace('"stable"', '"x"').replace("kernels/torch/topk.py", "kernels/torch/evil.py")
    with pytest.raises(Day0Error, match="changed after it was written"):
        decode(Lock, text, where="ops.lock", remake="day0 register")


def test_a_missing_field_is_named_by_its_path() -> None:
    document = json.loads(_text())
    del document["body"]["entries"][0]["identity"]["version"]
    with pytest.raises(Day0Error, match=r"body\.entries\.0\.identity\.version"):
        decode(Lock, json.dumps(document), where="ops.lock", remake="day0 register")


def test_an_unknown_optional_field_of_a_later_writer_is_ignored() -> None:
    document = json.loads(_text())
    document["body"]["written_by_a_later_day0"] = True
    document["sha256"] = hash_json(document["body"])
    assert decode(Lock, json.dumps(document), where="ops.lock", remake="day0 register").record == LOCK


def test_a_record_written_before_an_optional_field_was_there_loads() -> None:
    trace = Trace(model=MODEL, mode="meta", mode_reason="asked for", device="meta", phases=(), entries=())
    document = json.loads(encode(trace, inputs={}, environment={}))
    del document["body"]["calls"], document["body"]["parallel"]
    document["sha256"] = hash_json(document["body"])
    assert decode(Trace, json.dumps(document), where="trace.json", remake="day0 trace").record == trace


def test_a_field_that_came_later_does_not_make_an_earlier_file_a_changed_one() -> None:
    document = json.loads(_text())
    del document["body"]["gaps"]
    document["sha256"] = hash_json(document["body"])
    assert decode(Lock, json.dumps(document), where="ops.lock", remake="day0 register").record.gaps == ()


@pytest.mark.parametrize("text", ["[1, 2]", "null", '"x"', "[" * 100_000])
def test_other_json_is_refused_without_a_traceback(text: str) -> None:
    with pytest.raises(Day0Error):
        decode(Lock, text, where="ops.lock", remake="day0 register")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("day0.lock/1", "day0.lock/\u00b2"),
        ("day0.lock/1", "day0.lock/" + "9" * 5000),
        ('"body": {', '"body": {"x": ' + "9" * 5000 + ","),
        ('"body": {', '"body": {"x": "\\ud800",'),
        ('"body": {', '"body": {"x": ' + "[" * 900 + "]" * 900 + ","),
    ],
)
def test_numbers_and_text_that_python_cannot_take_are_refused(old: str, new: str) -> None:
    text = _text()
    assert old in text
    with pytest.raises(Day0Error):
        decode(Lock, text.replace(old, new, 1), where="ops.lock", remake="day0 register")


ENTRY = TraceEntry(
    id="a",
    signature=Signature(op="aten::neg", args=(TensorValue(shape=(2, 3), dtype="float32", stride=(3, 1)),)),
    outputs=(),
    counts={"prefill": 1},
)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("flops",), 10**400),
        (("bytes",), -1),
        (("counts",), {"prefill": -5}),
        (("sites",), [{"number": 0, "classes": "", "counts": {}, "inputs": {"x": 1}}]),
        (("signature", "args", 0, "shape"), [-2, 3]),
        (("signature", "args", 0, "shape"), [10**12, 10**12]),
        (("signature", "args", 0, "stride"), []),
        (("signature", "args", 0, "stride"), [-3, 1]),
        (("signature", "args", 0, "offset"), -9),
    ],
)
def test_figures_that_no_trace_has_are_refused(path: tuple[str | int, ...], value: object) -> None:
    trace = Trace(model=MODEL, mode="meta", mode_reason="", device="meta", phases=(), entries=(ENTRY,))
    document = json.loads(encode(trace, inputs={}, environment={}))
    *parents, last = path
    place = document["body"]["entries"][0]
    for key in parents:
        place = place[key]
    place[last] = value
    document["sha256"] = hash_json(document["body"])
    with pytest.raises(Day0Error, match=r"body\.entries\.0"):
        decode(Trace, json.dumps(document), where="trace.json", remake="day0 trace")


def test_infinity_and_nan_are_valid_json_and_come_back() -> None:
    case = CaseResult(
        case="a",
        signature="a",
        op="aten::mm",
        shapes="",
        implementation="native",
        regime="ordinary",
        seed=0,
        status="fail",
        rule="relative_l2",
        reason="",
        error=float("inf"),
        yardstick=float("nan"),
    )
    report = NumericsReport(device="sim", lock="x", seed=0, cases=(case,))
    text = encode(report, inputs={}, environment={})
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    found = decode(NumericsReport, text, where="numerics.json", remake="day0 check").record.cases[0]
    assert found.error == float("inf")
    assert found.yardstick != found.yardstick


def test_every_record_has_its_own_schema() -> None:
    names = [name for name, _ in SCHEMAS.values()]
    assert len(set(names)) == len(names) == 12


def test_a_trace_with_every_kind_of_value_comes_back() -> None:
    signature = Signature(op="aten::relu", args=(TensorValue(shape=(2, 0), dtype="float32", stride=(1, 1)),))
    trace = Trace(
        model=MODEL,
        mode="meta",
        mode_reason="asked for",
        device="meta",
        phases=(PhaseInfo(name="prefill", batch=1, tokens=2, context=0, calls=1),),
        entries=(TraceEntry(id="aa", signature=signature, outputs=signature.args, counts={"prefill": 1}),),
    )
    text = encode(trace, inputs={}, environment={})
    assert decode(Trace, text, where="trace.json", remake="day0 trace").record == trace
