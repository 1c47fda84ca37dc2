"""Module by module on a model of a few lines: who is named, where NaN begins, and what is no fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from day0.analyzers.modules.compare import Compared, compare_modules, contained
from day0.analyzers.modules.passes import Call, Pass
from day0.analyzers.modules.places import CPU, Models
from day0.records.modules import ModuleError, ModuleResult

WIDTH, TOKENS, EXPERTS = 16, 24, 6

Hook = Callable[[nn.Module, Any, Any], Any]


class Router(nn.Module):
    """Two of six experts for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, chosen = (x @ self.weight.t()).topk(2, dim=-1)
        return torch.softmax(values, dim=-1), chosen


class Experts(nn.Module):
    """Each a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        out = torch.einsum("bsd,edf->bsef", x, self.weight)
        picked = out.gather(2, chosen[..., None].expand(*chosen.shape, WIDTH))
        return (picked * weights[..., None]).sum(dim=2)


class Layer(nn.Module):
    """A product over tokens and a mixture, each with a sum around it."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.gate, self.experts = nn.Linear(WIDTH, WIDTH), Router(), Experts()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + torch.tanh(self.mix(x.cumsum(dim=1) / TOKENS))
        routed: torch.Tensor = self.experts(x, *self.gate(x))
        return x + routed


class Model(nn.Module):
    """Three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def made(dtype: torch.dtype) -> Model:
    torch.manual_seed(3)
    return Model().to(dtype).requires_grad_(False)


def given(seed: int = 0) -> Pass:
    x = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
    return (Call(name="call", run=lambda model, device, _: model(x.to(next(model.parameters()).dtype))),)


def compared(
    change: Callable[[Model], Any] = lambda _: None, dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> Compared:
    device = made(dtype)
    change(device)
    models = Models(golden=made(torch.float64), same=made(dtype), device=device, where=CPU)
    return compare_modules(models, given(seed), dtype)


def replaced(path: str, change: Callable[[Any], Any]) -> Callable[[Model], Any]:
    """Let one module on the device return something else."""
    return lambda model: model.get_submodule(path).register_forward_hook(lambda _, __, output: change(output))


def test_equal_models_do_not_diverge() -> None:
    for seed in range(3):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            found = compared(seed=seed, dtype=dtype)
            assert (found.first_divergent, found.reason, found.non_finite) == ("", "", None)


def test_the_first_wrong_module_is_named_and_later_ones_are_not_blamed() -> None:
    found = compared(replaced("layers.1.mix", lambda x: x * 4.0))
    assert found.first_divergent == "layers.1.mix (Linear) in call"
    alone = {one.module for one in found.modules if one.fresh.status == "fail"}
    assert alone == {"layers.1.mix", "layers.1"}, "what follows gets the golden's inputs"
    built_up = {one.module for one in found.modules if one.cumulative.status == "fail"}
    assert {"layers.1.mix", "layers.1", "layers.2"} <= built_up and "layers.0" not in built_up


def test_what_a_layer_does_itself_is_the_layers() -> None:
    found = compared(replaced("layers.2", lambda x: x + 0.1))
    assert found.first_divergent == "layers.2 (Layer) in call"


def test_errors_too_small_for_each_module_but_not_for_all_of_them() -> None:
    def drift(model: Model) -> None:
        for layer in model.layers:
            layer.register_forward_hook(lambda _, __, x: x * (1.0 + 1.4e-6))

    found = compared(drift, dtype=torch.float32)
    assert found.first_divergent
    assert "no module alone is wrong, but what has built up" in found.reason
    assert not any(one.fresh.status == "fail" for one in found.modules)


def test_the_first_maker_of_nan_is_named() -> None:
    def spoil(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[0, 5, 2] = float("nan")
        return x

    found = compared(replaced("layers.1.mix", spoil))
    assert found.non_finite is not None
    assert (found.non_finite.module, found.non_finite.elements, found.non_finite.also_on_cpu) == (
        "layers.1.mix",
        1,
        False,
    )
    assert found.first_divergent == "layers.1.mix (Linear) in call"


def test_infinity_that_is_made_between_modules_is_the_layers_and_not_the_next_modules() -> None:
    found = compared(replaced("layers.0", lambda x: x * float("inf")))
    assert found.non_finite is not None and found.non_finite.module == "layers.0"


def test_an_overflow_of_the_dtype_itself_is_said_and_no_fault_of_the_device() -> None:
    """vllm-ascend 5144: half precision cannot hold it; the CPU in the same dtype makes infinity too."""
    device, same, golden = (made(dtype) for dtype in (torch.float16, torch.float16, torch.float64))
    for model in (device, same, golden):
        model.get_parameter("layers.1.experts.weight").mul_(3e5 if model is golden else 1.0)
    for model in (device, same):
        model.get_parameter("layers.1.experts.weight").copy_(
            golden.get_parameter("layers.1.experts.weight").clamp(-6e4, 6e4)
        )
    golden.get_parameter("layers.1.experts.weight").copy_(same.get_parameter("layers.1.experts.weight"))
    found = compare_modules(Models(golden=golden, same=same, device=device, where=CPU), given(), torch.float16)
    assert found.non_finite is not None
    assert found.non_finite.also_on_cpu and found.non_finite.module == "layers.1.experts"
    assert found.first_divergent == ""


def test_a_router_that_chooses_otherwise_is_named_and_a_near_tie_is_not() -> None:
    def tie(model: Model) -> None:
        # The weights of all experts but one are a hair apart from it: rounding decides.
        gate = model.get_parameter("layers.0.gate.weight")
        gate.copy_(gate[:1].expand_as(gate) * (1.0 + 1e-3 * torch.arange(EXPERTS)[:, None]))

    def other_tie(model: Model) -> None:
        tie(model)
        model.get_parameter("layers.0.gate.weight").mul_(1.0 - 1e-3 * torch.arange(EXPERTS)[:, None].to(torch.bfloat16))

    device, same, golden = (made(dtype) for dtype in (torch.bfloat16, torch.bfloat16, torch.float64))
    tie(golden)
    for model in (device, same):
        model.get_parameter("layers.0.gate.weight").copy_(golden.get_parameter("layers.0.gate.weight"))
    other_tie(device)
    found = compare_modules(Models(golden=golden, same=same, device=device, where=CPU), given(), torch.bfloat16)
    assert found.moved > 0
    assert (found.wrong, found.first_divergent) == (0, "")
    wrong = compared(
        lambda model: model.get_parameter("layers.0.gate.weight").copy_(
            model.get_parameter("layers.0.gate.weight").flip(0)
        )
    )
    assert wrong.first_divergent == "layers.0.gate (Router) in call"
    assert wrong.wrong > 0


def test_choices_by_another_operator_cannot_be_followed_and_blame_nobody_after_them() -> None:
    def by_sorting(model: Model) -> None:
        def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            values, chosen = (x @ gate.weight.t()).sort(dim=-1, descending=True)
            return torch.softmax(values[..., :2], dim=-1), chosen[..., :2]

        gate: Any = model.get_submodule("layers.1.gate")
        gate.forward = forward

    found = compared(by_sorting)
    assert found.lost
    assert found.first_divergent == ""


def _found(module: str, status: str) -> ModuleResult:
    own, built_up = ModuleError(status="pass"), ModuleError(status=status, reason="far off")
    return ModuleResult(phase="prefill", module=module, class_name="M", call=0, fresh=own, cumulative=built_up)


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        # Rows in another order inside of experts that are right.
        (("fail", "pass", "pass", "pass"), ("not_comparable", "pass", "pass", "pass")),
        # The experts themselves are wrong, and the layer with them: that is the model's own result.
        (("fail", "fail", "fail", "fail"), ("fail", "fail", "fail", "fail")),
        # Two levels inside of a layer that is right.
        (("fail", "fail", "pass", "pass"), ("not_comparable", "not_comparable", "pass", "pass")),
        # What was not compared excuses nothing.
        (("fail", "not_comparable", "fail", "fail"), ("fail", "not_comparable", "fail", "fail")),
        # Nor does the whole model, whose limits are wider.
        (("fail", "fail", "fail", "pass"), ("fail", "fail", "fail", "pass")),
    ],
)
def test_what_the_enclosing_module_puts_right_is_left_aside(
    statuses: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    paths = ("layers.1.mlp.experts.act_fn", "layers.1.mlp.experts", "layers.1", "")
    found = contained([_found(path, status) for path, status in zip(paths, statuses, strict=True)], frozenset({""}))
    assert tuple(one.cumulative.status for one in found) == expected
