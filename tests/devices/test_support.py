"""The static answer and what the simulated device really does must be the same."""

import pytest
import torch

from day0.devices.profile import DeviceProfile, load_profile
from day0.devices.sim.device import open_sim
from day0.devices.support import supports
from day0.reference_ops.signatures import dtype_name, resolve

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.float8_e4m3fn)
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn)

ONE_TENSOR = [
    "aten::neg",
    "aten::abs",
    "aten::rsqrt",
    "aten::exp",
    "aten::sigmoid",
    "aten::silu",
    "aten::sum.dim_IntList|[0]",
    "aten::mean.dim|[0]",
    "aten::_softmax|0,False",
    "aten::cumsum|0",
    "aten::topk|2",
    "aten::sort|0",
    "aten::argmax|0",
    "aten::max.dim|0",
    "aten::tril|0",
    "aten::pow.Tensor_Scalar|2",
    "aten::view|[-1]",
    "aten::t",
    "aten::slice.Tensor|0,0,2",
    "aten::select.int|0,0",
    "aten::clone",
    "aten::expand|[2,3,4]",
    "aten::unsqueeze|0",
    "aten::histc|4,0.0,1.0",
    "aten::nonzero",
    "aten::flip|[0]",
    "aten::zero_",
    "aten::fill_.Scalar|1",
    "aten::_to_copy",
    "aten::detach",
    "aten::t_",
    "aten::squeeze_.dim|0",
    "aten::native_layer_norm|[4],None,None,1e-5",
]
TWO_TENSORS = [
    "aten::add.Tensor",
    "aten::mul.Tensor",
    "aten::div.Tensor",
    "aten::eq.Tensor",
    "aten::ge.Tensor",
    "aten::maximum",
    "aten::copy_",
    "aten::add_.Tensor",
    "aten::mul_.Tensor",
    "aten::mm",
    "aten::where.self",
]
FLOAT_ONLY = {"aten::mean.dim", "aten::_softmax", "aten::silu", "aten::native_layer_norm"}


def _calls() -> list[tuple[str, torch.dtype, int]]:
    cases = []
    for text, count in [(text, 1) for text in ONE_TENSOR] + [(text, 2) for text in TWO_TENSORS]:
        # Integers into these are the model's mistake, not the device's gap: CPU kernels refuse them one by one.
        dtypes = FLOATS if text.partition("|")[0] in FLOAT_ONLY else DTYPES
        cases += [(text, dtype, count) for dtype in dtypes]
    return cases


def _arguments(text: str, dtype: torch.dtype, count: int) -> tuple[str, list[object]]:
    op, _, rest = text.partition("|")
    shape = (4, 4) if op == "aten::mm" else (3, 4)
    tensors: list[object] = [torch.ones(shape).to(dtype).to("sim") for _ in range(count)]
    if op == "aten::where.self":
        tensors.insert(0, torch.ones(shape, dtype=torch.bool, device="sim"))
    scalars: list[object] = list(eval(f"({rest},)")) if rest else []  # noqa: S307 - the table above
    return op, tensors + scalars


@pytest.mark.parametrize(("text", "dtype", "count"), _calls())
@pytest.mark.parametrize("name", ["null", "sim"])
def test_verdict_is_what_happens(name: str, text: str, dtype: torch.dtype, count: int) -> None:
    profile = load_profile(name)
    open_sim(profile)
    if dtype_name(dtype) not in profile.dtypes:
        assert not supports(profile, text.partition("|")[0], (dtype_name(dtype),) * count, (2,) * count).supported
        with pytest.raises(TypeError, match=f"does not hold {dtype_name(dtype)}"):
            torch.ones(2, device="sim", dtype=dtype)
        return
    op, arguments = _arguments(text, dtype, count)
    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
    dtypes = tuple(dtype_name(one.dtype) for one in tensors)
    verdict = supports(profile, op, dtypes, tuple(one.dim() for one in tensors))
    assert _runs_natively(op, arguments) == verdict.supported, verdict.reason


def _runs_natively(op: str, arguments: list[object]) -> bool:
    if not torch._C._dispatch_has_kernel_for_dispatch_key(op, "PrivateUse1"):
        return False
    try:
        resolve(op)(*arguments)
    except NotImplementedError:
        return False
    return True


def test_most_cases_are_supported_and_some_are_not() -> None:
    """Guards the test above: it proves nothing if everything gives the same answer."""
    profile = load_profile("sim")
    answers = [
        supports(profile, text.partition("|")[0], (dtype_name(dtype),), (2,)).supported for text, dtype, _ in _calls()
    ]
    assert 0.3 < sum(answers) / len(answers) < 0.9


def test_missing_operator_gives_the_profiles_reason() -> None:
    support = supports(load_profile("sim"), "aten::topk", ("float32",), (2,))
    assert not support.supported
    assert support.reason == "no selection kernel yet"


def test_out_form_is_covered_by_the_operators_name() -> None:
    assert not supports(load_profile("sim"), "aten::topk.values", ("float32",), (2,)).supported


def test_composite_only_operator_has_no_kernel() -> None:
    support = supports(load_profile("null"), "aten::_grouped_mm", ("bfloat16", "bfloat16", "int32"), (2, 3, 1))
    assert not support.supported
    assert "no CPU kernel is registered" in support.reason


def test_ranks_count() -> None:
    changed = {"lacks": {"aten::mm": load_profile("sim").lacks["aten::topk"].model_copy(update={"ranks": (2,)})}}
    profile: DeviceProfile = load_profile("null").model_copy(update=changed)
    assert not supports(profile, "aten::mm", ("float32", "float32"), (2, 2)).supported
    assert supports(profile, "aten::mm", ("float32", "float32"), (3, 3)).supported


def test_absent_device_is_answered_by_claim() -> None:
    if torch._C._dispatch_has_kernel_for_dispatch_key("aten::mm", "CUDA"):
        pytest.skip("this build of torch has CUDA kernels, so it can be asked")
    cuda = load_profile("cuda")
    assert supports(cuda, "aten::mm", ("bfloat16", "bfloat16"), (2, 2)).evidence == "probed"
    unprobed = cuda.model_copy(update={"operators": {}})
    support = supports(unprobed, "aten::mm", ("bfloat16", "bfloat16"), (2, 2))
    assert support.supported
    assert support.evidence == "claimed"
    assert "this build of torch has no CUDA kernels" in support.reason


def test_own_operator_is_supported_when_somebody_has_registered_it() -> None:
    library = torch.library.Library("day0_test_support", "DEF")
    library.define("twice(Tensor self) -> Tensor")
    null = load_profile("null")
    assert not supports(null, "day0_test_support::twice", ("float32",), (1,)).supported
    library.impl("twice", lambda self: self + self, "PrivateUse1")
    assert supports(null, "day0_test_support::twice", ("float32",), (1,)).supported
    library._destroy()
