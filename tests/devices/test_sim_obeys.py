"""The simulated device does what its profile says: conditions, products, tiny results, nothing that waits in forward."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from day0.devices.leaves import details_of
from day0.devices.probe import ProbeOptions, probe
from day0.devices.probe_profile import probed_profile
from day0.devices.profile import DeviceProfile, load_profile
from day0.devices.profile_parts import Condition, Grant, MatmulRule
from day0.devices.sim.device import open_sim
from day0.devices.verdict import classify
from day0.reference_ops.signatures import describe
from tests.started import quick_starts

OpenWith = Callable[..., DeviceProfile]
K_OF_16 = (Condition(argument="self", dim=-1, multiple_of=16),)


def test_condition_on_a_size_is_refused_with_the_size(open_with: OpenWith) -> None:
    open_with(lacks={"aten::mm": {"unless": K_OF_16, "reason": "tiles of 16"}})
    ones = torch.ones(4, 32, device="sim")
    assert (ones @ ones.t())[0, 0].item() == 32
    with pytest.raises(RuntimeError, match="mm: the sim device does not take this call: tiles of 16"):
        ones[:, :24] @ ones[:, :24].t()


def test_condition_on_a_number(open_with: OpenWith) -> None:
    open_with(operators={"aten::topk": Grant(conditions=(Condition(argument="k", at_most=4),))})
    x = torch.arange(8.0, device="sim")
    assert torch.topk(x, 4).values[0].item() == 7
    with pytest.raises(RuntimeError, match="k is 5, and must be at most 4"):
        torch.topk(x, 5)


def test_layouts_are_refused(open_with: OpenWith) -> None:
    open_with(lacks={"aten::mm": {"layouts": ("transposed",)}})
    x = torch.ones(4, 8, device="sim")
    assert torch.mm(x, torch.ones(8, 4, device="sim")).shape == (4, 4)
    with pytest.raises(RuntimeError, match="mm: the sim device does not take transposed tensors"):
        torch.mm(x, x.t())


def test_grant_by_dtype_and_rank(open_with: OpenWith) -> None:
    open_with(operators={"aten::cumsum": Grant(dtypes=("float32",), ranks=(1,))})
    assert torch.ones(3, device="sim").cumsum(0)[-1].item() == 3
    with pytest.raises(NotImplementedError, match="\"cumsum_sim\" not implemented for 'Half'"):
        torch.ones(3, device="sim", dtype=torch.float16).cumsum(0)
    with pytest.raises(RuntimeError, match="cumsum: the sim device does not take tensors with 2 dimensions"):
        torch.ones(3, 3, device="sim").cumsum(0)


def test_verdict_sees_sizes_and_layouts_too(open_with: OpenWith) -> None:
    profile = open_with(lacks={"aten::mm": {"unless": K_OF_16}})
    fits = describe("aten::mm", (torch.ones(4, 32), torch.ones(32, 4)), {})
    odd = describe("aten::mm", (torch.ones(4, 24), torch.ones(24, 4)), {})
    assert details_of(odd).sizes["self"] == (4, 24)
    assert classify(profile, fits).verdict == "native"
    assert classify(profile, odd).verdict == "missing"


def test_what_crashes_is_a_verdict_and_no_crash_here(open_with: OpenWith) -> None:
    profile = open_with(lacks={"aten::tanh": {"dtypes": ("float32",), "effect": "crashes", "reason": "it died"}})
    with pytest.raises(
        RuntimeError, match="tanh: on the device that this profile describes, this call crashes: it died"
    ):
        torch.ones(2, device="sim").tanh()
    found = classify(profile, describe("aten::tanh", (torch.ones(2),), {}))
    assert (found.verdict, found.reason) == ("crashes", "it died")


def _product(open_with: OpenWith, value: torch.Tensor, other: torch.Tensor, **rule: object) -> torch.Tensor:
    name = str(value.dtype).removeprefix("torch.")
    open_with(matmul={name: MatmulRule.model_validate(rule)})
    return torch.mm(value.to("sim"), other.to("sim")).cpu()


@pytest.mark.parametrize(("kind", "kept"), [("exact", 23), ("tfloat32", 10), ("bfloat16", 7)])
def test_factors_are_rounded(open_with: OpenWith, kind: str, kept: int) -> None:
    eye = torch.eye(16)
    for bits in (kept, kept + 1):
        value = torch.full((16, 16), 1.0 + 2.0**-bits)
        same = torch.equal(_product(open_with, value, eye, inputs=kind), value)
        assert same == (kind == "exact" or bits == kept)


def test_tfloat32_rounds_half_to_even_and_keeps_infinities(open_with: OpenWith) -> None:
    value = torch.tensor([[1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 3 * 2.0**-11, float("inf")]]).t().contiguous()
    got = _product(open_with, value, torch.ones(1, 1), inputs="tfloat32").flatten()
    assert got.tolist() == [1.0, 1 + 2.0**-9, -1 - 2.0**-9, float("inf")]


@pytest.mark.parametrize(("name", "stops"), [("bfloat16", 256.0), ("float16", 2048.0)])
def test_narrow_sums_stand_still(open_with: OpenWith, name: str, stops: float) -> None:
    dtype = getattr(torch, name)
    ones = torch.ones(2, 4096, dtype=dtype)
    assert _product(open_with, ones, ones.t(), accumulate=name, step=1)[0, 0].item() == stops
    assert _product(open_with, ones, ones.t(), accumulate="float32")[0, 0].item() == 4096


def test_sums_round_toward_zero(open_with: OpenWith) -> None:
    row, column = torch.tensor([[1.0, 2.0**-24, 2.0**-24]]), torch.ones(3, 1)
    exact = 1.0 + 2.0**-23
    assert _product(open_with, row, column, accumulate="float64").item() == exact
    assert _product(open_with, row, column, accumulate="float32", rounding="toward_zero", step=1).item() == 1.0
    assert _product(open_with, -row, column, accumulate="float32", rounding="toward_zero", step=3).item() == -exact


@pytest.mark.parametrize("kind", ["addmm", "bmm", "baddbmm", "out", "mv", "linear"])
def test_every_product_follows_the_rule(open_with: OpenWith, kind: str) -> None:
    open_with(matmul={"float32": MatmulRule(inputs="bfloat16")})
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(3, 8, generator=generator), torch.randn(8, 5, generator=generator)
    add = torch.randn(3, 5, generator=generator)
    expected = a.to(torch.bfloat16).float() @ b.to(torch.bfloat16).float()
    assert not torch.allclose(expected, a @ b, atol=1e-4)
    at, bt, on = a.to("sim"), b.to("sim"), add.to("sim")
    got: torch.Tensor
    match kind:
        case "addmm":
            got, expected = torch.addmm(on, at, bt, beta=0.5, alpha=2), 0.5 * add + 2 * expected
        case "bmm":
            got, expected = torch.bmm(at[None], bt[None]), expected[None]
        case "baddbmm":
            got, expected = torch.baddbmm(on[None], at[None], bt[None]), (add + expected)[None]
        case "out":
            got = torch.mm(at, bt, out=torch.empty(0, device="sim").resize_(3, 5))
        case "mv":
            got, expected = torch.mv(at, bt[:, 0]), expected[:, 0]
        case _:
            got = torch.nn.functional.linear(at, bt.t())
    assert torch.allclose(got.cpu(), expected, atol=1e-6)


def test_other_dtypes_multiply_as_the_cpu_does(open_with: OpenWith) -> None:
    open_with(matmul={"float16": MatmulRule(accumulate="float16")})
    a = torch.randn(8, 64)
    assert torch.equal((a.to("sim") @ a.to("sim").t()).cpu(), a @ a.t())


def test_subnormals_flush_where_something_computes(open_with: OpenWith) -> None:
    tiny = torch.tensor([2.0**-130, -(2.0**-130), 1.0, 0.0])
    open_with(subnormals="flush")
    x = tiny.to("sim")
    assert torch.equal(x.cpu(), tiny), "copies keep bits"
    assert torch.equal(x.view(2, 2).t().cpu(), tiny.view(2, 2).t()), "views keep bits"
    assert (x * 1).tolist() == [0.0, -0.0, 1.0, 0.0]
    assert torch.signbit(x * 1).tolist() == [False, True, False, False]
    x.mul_(1)
    assert x.tolist() == [0.0, 0.0, 1.0, 0.0]
    assert (torch.tensor([2.0**-20], dtype=torch.float16).to("sim") + 0).item() == 0.0
    open_with(subnormals="keep")
    assert (tiny.to("sim") * 1)[0].item() == 2.0**-130


class _Waits(torch.nn.Module):
    def __init__(self, act: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.act(x)
        return x + 1


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda x: x.sum().item(), r"\.item\(\) inside forward \(_Waits\).*read back"),
        (lambda x: bool((x > 0).all()), r"\.item\(\) inside forward"),
        (lambda x: torch.equal(x, x), r"\.item\(\) inside forward"),
        (lambda x: x.nonzero(), "nonzero inside forward.*size of the result depends on values"),
        (lambda x: x[x > 0], "nonzero inside forward"),
        (lambda x: x.cpu(), r"\.to\(\) inside forward.*copied between host and device"),
        (lambda x: torch.ones(2).to(x.device), r"\.to\(\) inside forward"),
        (lambda x: x.copy_(torch.ones(2)), r"\.to\(\) inside forward"),
    ],
)
def test_strict_device_refuses_what_waits(act: Callable[[torch.Tensor], object], says: str) -> None:
    open_sim(load_profile("sim-strict"))
    x = torch.ones(2, device="sim")
    act(x)  # outside a forward everything is as on `sim`
    with pytest.raises(RuntimeError, match=says):
        _Waits(act)(x)
    act(x)  # and after one that was refused
    open_sim(load_profile("sim"))
    _Waits(act)(x)


def test_strict_device_runs_what_does_not_wait() -> None:
    open_sim(load_profile("sim-strict"))
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).to("sim")
    with torch.no_grad():
        y = module(torch.ones(2, 4, device="sim").to(torch.bfloat16).float())
    assert y.shape == (2, 4)
    assert y.cpu().isfinite().all()


def test_probe_finds_products_and_subnormals(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    text = Path(load_profile.__code__.co_filename).with_name("profiles").joinpath("null.yaml").read_text()
    path.write_text(
        f"{text}subnormals: flush\nmatmul:\n  float32: {{inputs: tfloat32}}\n  float16: {{accumulate: float16, step: 1}}\n"
    )
    base = load_profile(str(path))
    with quick_starts():
        found = probe(base, (), ProbeOptions(rates=False))
    made = probed_profile(base.model_copy(update={"subnormals": "keep", "matmul": {}}), found, date="2026-01-01")
    assert made.subnormals == "flush"
    assert made.matmul["float32"].inputs == "tfloat32"
    assert made.matmul["float16"].accumulate == "float16"
    assert set(made.matmul) == {"float32", "float16"}
