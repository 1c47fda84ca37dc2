"""The verdict ladder, rung by rung, each held against what the simulated device does with the same call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from day0.devices.agreement import disagreement
from day0.devices.observe import observe
from day0.devices.open import open_torch_device
from day0.devices.profile import DeviceProfile, load_profile
from day0.devices.profile_parts import Condition, Grant, Lack
from day0.devices.sim.device import open_sim
from day0.devices.verdict import Classified, classify
from day0.records import Signature
from day0.reference_ops.signatures import describe
from day0.reference_ops.torch_ops import register_operators

X = torch.ones(4, 16)
MASK = torch.ones(4, dtype=torch.bool)
INTS = torch.ones(3, dtype=torch.int64)
HALF = torch.ones(4, 16, dtype=torch.bfloat16)
EXPERTS = torch.ones(2, 16, 16, dtype=torch.bfloat16)
OFFSETS = torch.tensor([2, 4], dtype=torch.int32)
WAVE, TAPS = torch.ones(1, 8, 10), torch.ones(8, 1, 4)
FP8 = torch.ones(4, 16).to(torch.float8_e4m3fn)

Call = tuple[str, tuple[Any, ...], dict[str, Any]]

CALLS: list[Call] = [
    ("aten::mm", (X, X.t()), {}),
    ("aten::mm", (X.double(), X.double().t()), {}),
    ("aten::linear", (X, X), {}),
    ("aten::linear", (X, X, X[:, 0]), {}),
    ("aten::matmul", (X, X.t()), {}),
    ("aten::layer_norm", (X, [16]), {}),
    ("aten::rms_norm", (X, [16]), {}),
    ("aten::silu", (X,), {}),
    ("aten::silu_", (X.clone(),), {}),
    ("aten::topk", (X, 2), {}),
    ("aten::sort", (X,), {}),
    ("aten::arange", (4,), {"device": torch.device("cpu")}),
    ("aten::eye", (4,), {"device": torch.device("cpu")}),
    ("aten::zeros_like", (X,), {}),
    ("aten::mul.Scalar", (X, 2.0), {}),
    ("aten::remainder.Scalar", (INTS, 2), {}),
    ("aten::repeat", (X, [2, 1]), {}),
    ("aten::contiguous", (X.t(),), {}),
    ("aten::reshape", (X, [2, 32]), {}),
    ("aten::reshape", (FP8, [2, 32]), {}),
    ("aten::add.Tensor", (FP8, FP8), {}),
    ("aten::_to_copy", (X,), {"dtype": torch.float64}),
    ("aten::view_as_complex", (torch.ones(3, 2),), {}),
    ("aten::embedding", (X, INTS), {}),
    ("aten::_safe_softmax", (X, -1), {}),
    ("aten::_grouped_mm", (HALF, EXPERTS, OFFSETS), {}),
    ("aten::convolution", (WAVE, TAPS, None, [1], [3], [1], False, [0], 8), {}),
    ("aten::nonzero", (X,), {}),
    ("aten::item", (X[0, 0],), {}),
    ("aten::index.Tensor", (X, [MASK]), {}),
    ("aten::index.Tensor", (X, [INTS]), {}),
    ("aten::index_put", (X, [MASK], torch.tensor(1.0)), {}),
    ("aten::masked_fill.Tensor", (X, X > 2, torch.tensor(1.0)), {}),
    ("aten::repeat_interleave.Tensor", (INTS,), {}),
    ("aten::repeat_interleave.Tensor", (INTS,), {"output_size": 3}),
    ("aten::bincount", (INTS,), {}),
    ("aten::histc", (INTS.int(), 4), {}),
    ("aten::transpose.int", (X, 0, 1), {}),
    ("day0::topk_tokens", (X[None], 2), {}),
]


def _signature(call: Call) -> Signature:
    register_operators()
    return describe(*call)


def _profiles(name: str) -> tuple[DeviceProfile, DeviceProfile]:
    """Return the profile that is asked and the one that the device is opened with."""
    if name == "falls back":
        one = load_profile("sim").model_copy(update={"fallback": "cpu"})
        return one, one
    one = load_profile(name)
    if name == "s5000":
        return one, one.model_copy(update={"torch_device": "sim", "kernels": "CPU", "import_module": None})
    return one, one


@pytest.fixture(autouse=True)
def _null_again() -> Iterator[None]:
    yield
    open_sim(load_profile("null"))


@pytest.mark.parametrize("name", ["sim", "sim-strict", "falls back", "null", "s5000", "cpu"])
def test_the_verdict_is_what_happens(name: str) -> None:
    asked, opened = _profiles(name)
    device = open_torch_device(opened)
    wrong = []
    for signature in map(_signature, CALLS):
        said, seen = classify(asked, signature), observe(signature, device)
        assert seen.verdict != "not_run", f"{signature.op}: {seen.reason}"
        if fault := disagreement(said, seen):
            wrong.append(f"{signature.op}: {fault}; said: {said.reason}; seen: {seen.reason}")
    assert not wrong


def test_the_calls_above_meet_nearly_every_verdict() -> None:
    """Guards the test above, which proves nothing if everything gives the same answer."""
    found = {
        classify(_profiles(name)[0], _signature(call)).verdict
        for name in ("sim", "sim-strict", "falls back")
        for call in CALLS
    }
    assert found == {
        "native",
        "out_wrapper",
        "decomposes",
        "decomposes_with_sync",
        "leaf_missing",
        "cpu_fallback",
        "missing",
    }


def _ask(call: Call, **changes: Any) -> Classified:
    """Ask of the device with nothing missing but what `changes` says, and hold the answer against that device."""
    profile = load_profile("null").model_copy(update=changes)
    said = classify(profile, _signature(call))
    seen = observe(_signature(call), open_sim(profile))
    assert not disagreement(said, seen), f"said: {said.reason}; seen: {seen.reason}"
    return said


def test_a_registered_kernel_that_refuses_has_no_composite_in_its_place() -> None:
    # torch has a composite kernel too, but never takes it where the device has one of its own.
    layer_norm: Call = ("aten::native_layer_norm", (X, [16], None, None, 1e-5), {})
    lacks = {"aten::native_layer_norm": Lack(reason="not of floats", dtypes=("float32",))}
    said = _ask(layer_norm, lacks=lacks)
    assert (said.verdict, said.leaves) == ("missing", ())
    assert _ask(layer_norm, lacks={"aten::native_layer_norm": Lack(reason="gone")}).verdict == "decomposes"


def test_a_registered_kernel_that_refuses_does_not_fall_back() -> None:
    lacks = {"aten::tanh": Lack(reason="not of floats", dtypes=("float32",))}
    assert _ask(("aten::tanh", (X,), {}), lacks=lacks, fallback="cpu").verdict == "missing"
    assert _ask(("aten::tanh", (X,), {}), lacks={"aten::tanh": Lack(reason="gone")}, fallback="cpu").verdict == (
        "cpu_fallback"
    )


def test_a_condition_of_the_profile_holds_for_leaves_too() -> None:
    condition = Condition(argument="mat2", dim=1, multiple_of=16)
    grants = {"aten::mm": Grant(conditions=(condition,))}
    assert _ask(("aten::linear", (X, torch.ones(32, 16)), {}), operators=grants).verdict == "decomposes"
    odd = _ask(("aten::linear", (X, torch.ones(7, 16)), {}), operators=grants)
    assert odd.verdict == "leaf_missing"
    assert "mat2.shape[1] is 7, and must be divisible by 16" in odd.reason


def test_a_layout_of_the_profile_holds_for_leaves_too() -> None:
    grants = {"aten::mm": Grant(layouts=("contiguous",))}
    assert _ask(("aten::linear", (X, X), {}), operators=grants).verdict == "leaf_missing"


@pytest.mark.parametrize("effect", ["crashes", "hangs"])
def test_what_crashes_or_hangs_is_said_even_below_a_composite(effect: Any) -> None:
    lacks = {"aten::mm": Lack(reason="the driver resets", effect=effect, dtypes=("float32",))}
    assert _ask(("aten::mm", (X, X.t()), {}), lacks=lacks).verdict == "crashes"
    assert _ask(("aten::linear", (X, X), {}), lacks=lacks).verdict == "crashes"


def test_wrong_results_are_no_support_and_no_composite_helps() -> None:
    lacks = {"aten::native_layer_norm": Lack(reason="relative error 0.2", effect="wrong")}
    said = classify(
        load_profile("null").model_copy(update={"lacks": lacks}),
        _signature(("aten::native_layer_norm", (X, [16], None, None, 1e-5), {})),
    )
    assert said.verdict == "missing"
    assert said.reason == "it runs, and gives wrong results: relative error 0.2"


def test_the_first_call_that_cannot_run_decides() -> None:
    lacks = {
        "aten::pow": Lack(reason="gone"),
        "aten::rsqrt": Lack(reason="never returns", effect="hangs", dtypes=("float32",)),
    }
    assert _ask(("aten::rms_norm", (X, [16]), {}), lacks=lacks).verdict == "leaf_missing"


def test_leaves_are_at_the_bottom_with_dtypes_and_verdicts() -> None:
    said = _ask(("aten::matmul", (X, X.t()), {}))
    assert [(leaf.op, leaf.call, leaf.verdict) for leaf in said.leaves] == [
        ("aten::mm", "float32[2] float32[2]", "native")
    ]
    deep = classify(load_profile("null"), _signature(("aten::layer_norm", (X, [16]), {})))
    assert "aten::native_layer_norm" in {leaf.op for leaf in deep.leaves}


def test_a_result_that_the_device_cannot_hold_is_a_gap() -> None:
    said = classify(load_profile("sim"), _signature(("aten::view_as_complex", (torch.ones(3, 2),), {})))
    assert said.verdict == "missing"
    assert said.reason == "its result is in complex64, which sim does not hold"


def test_a_default_device_changes_no_verdict() -> None:
    for name in ("sim", "cpu"):
        profile = load_profile(name)
        signature = _signature(("aten::layer_norm", (X, [16]), {}))
        expected = classify(profile, signature)
        with torch.device("cpu"):
            assert classify(profile, signature) == expected


def test_unknown_is_said_where_nothing_is_known() -> None:
    s5000 = load_profile("s5000")
    absent = classify(s5000, Signature(op="vllm::paged_attention_v9", args=()))
    assert (absent.verdict, absent.leaves) == ("unknown", ())
    assert "import the package that brings it" in absent.reason
    library = torch.library.Library("day0_test_verdict", "DEF")
    try:
        library.define("twice(Tensor self) -> Tensor")
        library.impl("twice", lambda self: self + self, "CPU")
        call: Call = ("day0_test_verdict::twice", (X,), {})
        theirs = classify(s5000, _signature(call))
        assert theirs.verdict == "unknown", theirs.reason  # a vendor may have a kernel; nobody here can say
        assert classify(load_profile("cpu"), _signature(call)).verdict == "native"
        assert _ask(call).verdict == "missing"
        library.impl("twice", _stops, "CompositeExplicitAutograd")
        stopped = classify(load_profile("null"), _signature(call))
        assert stopped.verdict == "unknown"
        assert stopped.reason.endswith("it stopped while it was watched: out of the blue")
    finally:
        library._destroy()


def _stops(self: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("out of the blue")


def test_a_profile_without_dtypes_says_nothing() -> None:
    empty = load_profile("s5000").model_copy(update={"dtypes": (), "storage_dtypes": ()})
    said = classify(empty, _signature(("aten::mm", (X, X.t()), {})))
    assert said.verdict == "unknown"
    assert "names no dtypes" in said.reason


def test_ours_are_missing_wherever_nobody_has_written_them() -> None:
    said = classify(load_profile("s5000"), _signature(("day0::topk_tokens", (X[None], 2), {})))
    assert said.verdict == "missing"


def test_another_vendors_device_is_not_answered_by_the_simulated_one() -> None:
    # Both stand at torch's one key for devices of vendors. An operator that sim has and the CPU has not would tell.
    open_sim(load_profile("null"))
    said = classify(load_profile("s5000"), _signature(("aten::mm", (X, X.t()), {})))
    assert (said.verdict, said.evidence) == ("native", "claimed")
    assert "no PrivateUse1 kernels of musa to ask" in said.reason


def test_a_composite_is_no_better_known_than_its_leaves() -> None:
    assert classify(load_profile("s5000"), _signature(("aten::linear", (X, X), {}))).evidence == "claimed"


def test_the_comparison_notices_each_kind_of_difference() -> None:
    signature = _signature(("aten::layer_norm", (X, [16]), {}))
    sim, null = load_profile("sim"), load_profile("null")
    seen = observe(signature, open_sim(sim))
    assert not disagreement(classify(sim, signature), seen)
    assert "ran" in disagreement(classify(null, signature), seen)  # other leaves
    tanh = _signature(("aten::tanh", (X,), {}))
    gone = null.model_copy(update={"lacks": {"aten::tanh": Lack(reason="gone")}})
    assert disagreement(classify(null, tanh), observe(tanh, open_sim(gone))) == "said native, seen missing"
    assert disagreement(classify(gone, tanh), observe(tanh, open_sim(null))) == "said missing, seen native"
