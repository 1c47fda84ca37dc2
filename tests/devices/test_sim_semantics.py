"""What models ask of a device beside operators: random numbers, autocast, streams, compilers, torch.func, counters."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from day0.devices.sim.tensor import SimTensor

pytestmark = pytest.mark.usefixtures("null")
OpenWith = Callable[..., Any]


def _sim() -> Any:
    return torch.sim  # type: ignore[attr-defined]  # registered while running


def _generator(seed: int, device: str = "sim") -> torch.Generator:
    return torch.Generator(device=device).manual_seed(seed)


# ------------------------------------------------------------------------------------------ random numbers

DRAWS: dict[str, Callable[[str, torch.Generator], torch.Tensor]] = {
    "rand": lambda device, generator: torch.rand(5, device=device, generator=generator),
    "randn": lambda device, generator: torch.randn(5, device=device, generator=generator),
    "randint": lambda device, generator: torch.randint(9, (5,), device=device, generator=generator),
    "randperm": lambda device, generator: torch.randperm(5, device=device, generator=generator),
    "normal_": lambda device, generator: torch.empty(5, device=device).normal_(generator=generator),
    "bernoulli": lambda device, generator: torch.bernoulli(torch.full((5,), 0.5, device=device), generator=generator),
    "multinomial": lambda device, generator: torch.multinomial(torch.ones(5, device=device), 3, generator=generator),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_generator_draws_what_the_cpus_draws(draw: Callable[[str, torch.Generator], torch.Tensor]) -> None:
    generator = _generator(7)
    first, second = draw("sim", generator), draw("sim", generator)
    expected = draw("cpu", _generator(7, "cpu"))
    assert isinstance(first, SimTensor)
    assert torch.equal(first.cpu(), expected)
    generator.manual_seed(7)
    state = generator.get_state()
    assert torch.equal(draw("sim", generator).cpu(), expected)
    generator.set_state(state)
    assert torch.equal(draw("sim", generator).cpu(), expected)
    assert torch.equal(draw("sim", generator), second), "it goes on where it was"


def test_generator_knows_its_device_and_is_one() -> None:
    generator = _generator(3)
    assert generator.device == torch.device("sim", 0)
    assert generator.initial_seed() == 3
    assert isinstance(generator, torch.Generator)
    assert isinstance(torch.Generator(), torch.Generator)
    assert torch.Generator().device.type == "cpu"
    assert torch.Generator(device=None).device.type == "cpu", "as torch's own takes it"
    assert torch.Generator.manual_seed(torch.Generator(), 5).initial_seed() == 5
    assert not isinstance(3, torch.Generator)
    twin = generator.clone_state()
    assert torch.equal(torch.rand(2, device="sim", generator=twin), torch.rand(2, device="sim", generator=generator))


def test_generator_of_another_device_is_refused(open_with: OpenWith) -> None:
    with pytest.raises(RuntimeError, match="Expected a 'sim' device type for generator but found 'cpu'"):
        torch.rand(2, device="sim", generator=torch.Generator())
    open_with(devices=2)
    with pytest.raises(RuntimeError, match="generator of device sim:1 but found one of sim:0"):
        torch.rand(2, device="sim:1", generator=torch.Generator(device="sim:0"))


def test_device_has_random_numbers_of_its_own() -> None:
    torch.manual_seed(5)
    host = torch.rand(3)
    torch.manual_seed(5)
    torch.rand(100, device="sim")
    torch.dropout(torch.ones(100, device="sim"), 0.5, train=True)
    assert torch.equal(torch.rand(3), host), "what the device draws does not move the CPU on"
    _sim().manual_seed(11)
    first = torch.rand_like(torch.ones(3, device="sim"))
    assert _sim().initial_seed() == 11
    assert torch.equal(torch.rand(3, device="cpu", generator=_generator(11, "cpu")), first.cpu())
    _sim().manual_seed_all(11)
    state = _sim().get_rng_state()
    again = torch.dropout(torch.ones(64, device="sim"), 0.5, train=True)
    _sim().set_rng_state(state)
    assert torch.equal(torch.dropout(torch.ones(64, device="sim"), 0.5, train=True), again)


def test_fork_rng_and_checkpoint_keep_the_state() -> None:
    torch.manual_seed(3)
    expected = torch.randn(4, device="sim")
    torch.manual_seed(3)
    with torch.random.fork_rng(device_type="sim"):
        _sim().manual_seed(99)
        torch.randn(40, device="sim")
    assert torch.equal(torch.randn(4, device="sim"), expected)
    x = torch.ones(64, device="sim", requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(lambda a: torch.dropout(a, 0.5, train=True), x, use_reentrant=False)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach()), "the forward that runs again drops the same"


# ------------------------------------------------------------------------------------------------ autocast


def test_autocast_narrows_products_and_widens_what_needs_it() -> None:
    x_RC = torch.rand(4, 4, device="sim")
    half_RC = x_RC.bfloat16()
    with torch.autocast("sim", dtype=torch.bfloat16):
        for product in (x_RC @ x_RC, torch.mm(x_RC, x_RC), torch.nn.functional.linear(x_RC, x_RC)):
            assert product.dtype == torch.bfloat16
        for wide in (half_RC.exp(), torch.softmax(half_RC, -1), torch.nn.functional.layer_norm(half_RC, (4,))):
            assert wide.dtype == torch.float32
        assert (x_RC + x_RC).dtype == torch.float32
        assert (half_RC + half_RC).dtype == torch.bfloat16
        assert torch.cat([x_RC, half_RC]).dtype == torch.float32
        assert (x_RC.double() @ x_RC.double()).dtype == torch.float64
        with torch.autocast("sim", enabled=False):
            assert (x_RC @ x_RC).dtype == torch.float32
    assert (x_RC @ x_RC).dtype == torch.float32


def test_autocast_computes_what_casting_by_hand_does() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)).to("sim")
    x_RC = torch.rand(3, 4, device="sim")
    with torch.autocast("sim", dtype=torch.bfloat16):
        got = module(x_RC)
        loss = got.float().square().sum()
    parts: Any = module
    first, norm, last = parts
    by_hand = torch.nn.functional.linear(x_RC.bfloat16(), first.weight.bfloat16(), first.bias.bfloat16())
    by_hand = norm(by_hand.float()).bfloat16()
    by_hand = torch.nn.functional.linear(by_hand, last.weight.bfloat16(), last.bias.bfloat16())
    assert torch.equal(got, by_hand)
    loss.backward()
    assert {one.grad.dtype for one in module.parameters() if one.grad is not None} == {torch.float32}


def test_autocast_takes_only_what_the_device_holds(open_with: OpenWith) -> None:
    open_with(dtypes=("bool", "int64", "bfloat16", "float32"))
    assert _sim().get_amp_supported_dtype() == [torch.bfloat16]
    with pytest.warns(UserWarning, match="Disabling autocast"), torch.autocast("sim", dtype=torch.float16):
        assert (torch.ones(2, 2, device="sim") @ torch.ones(2, 2, device="sim")).dtype == torch.float32


# ---------------------------------------------------------------------------------------- streams and events


def test_streams_keep_order_and_are_current_in_turn() -> None:
    default, stream = _sim().default_stream(), _sim().Stream()
    x = torch.zeros(2, device="sim")
    assert _sim().current_stream() is default
    assert isinstance(stream, torch.Stream)
    with _sim().stream(stream):
        assert _sim().current_stream() is stream
        x.add_(1)
        with _sim().Stream() as inner:
            assert _sim().current_stream() is inner
        assert _sim().current_stream() is stream
    stream.wait_stream(default)
    stream.wait_event(default.record_event())
    assert stream.query()
    assert _sim().current_stream() is default
    _sim().reset_counters()
    stream.synchronize()
    assert _sim().counters().host_syncs == 1
    assert x.tolist() == [1.0, 1.0]
    with _sim().stream(None):
        assert _sim().current_stream() is default


def test_events_read_simulated_time(open_with: OpenWith) -> None:
    open_with(launch_us=10.0, bandwidth_gb_s=1e6)
    x = torch.ones(2, device="sim")
    first, last = _sim().Event(enable_timing=True), _sim().Event(enable_timing=True)
    with pytest.raises(ValueError, match="recorded"):
        first.elapsed_time(last)
    first.record()
    for _ in range(3):
        x.add_(1)
    _sim().reset_counters()
    x.add_(1)
    last.record()
    assert last.query()
    assert first.elapsed_time(last) == pytest.approx(4 * 10e-3, rel=1e-3), "counting anew does not stop the clock"
    with pytest.raises(ValueError, match="enable_timing"):
        _sim().Event().elapsed_time(last)


def test_torchs_own_streams_take_the_device() -> None:
    stream = torch.Stream(device="sim")
    event = stream.record_event()
    assert event.query()
    stream.synchronize()
    assert torch.accelerator.current_stream().device.type == "sim"


# ------------------------------------------------------------------------------------------- torch.compile


def _double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.fixture
def _compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_compiler")
@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_compiling_for_the_device_is_refused(backend: str) -> None:
    module = torch.compile(torch.nn.Linear(2, 2).to("sim"), backend=backend)
    with pytest.raises(
        RuntimeError, match=f"sim device has no compiler, and backend '{backend}' cannot compile aten::"
    ):
        module(torch.ones(1, 2, device="sim"))


@pytest.mark.usefixtures("_compiler")
def test_eager_backend_runs_forward_and_backward() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU()).to("sim")
    x_RC = torch.ones(1, 2, device="sim")
    compiled = torch.compile(module, backend="eager")
    assert torch.equal(compiled(x_RC), module(x_RC))
    compiled(x_RC).sum().backward()
    assert module[0].weight.grad is not None
    assert torch.compile(_double, backend="eager")(torch.ones(2)).tolist() == [2.0, 2.0], (
        "the host's tensors are compiled as ever"
    )


def test_fake_tensors_are_refused() -> None:
    with torch._subclasses.FakeTensorMode(), pytest.raises(TypeError, match="takes no part in tracing"):
        torch.ones(2, device="sim").detach()


# ------------------------------------------------------------------------------------- autograd and torch.func


def test_in_place_mistakes_are_refused_as_on_any_device() -> None:
    leaf = torch.ones(4, device="sim", requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        leaf.add_(1)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable"):
        leaf[:2].mul_(2)
    saved = leaf * 2
    loss = (saved * saved).sum()
    saved.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with pytest.raises(RuntimeError, match="refers to a single memory location"):
        torch.ones(1, device="sim").expand(3).add_(1)


def test_views_share_versions_and_gradients() -> None:
    x = torch.zeros(4, device="sim")
    view = x.view(2, 2)
    assert view._base is x
    view[0].fill_(1)
    assert x._version == view._version == 1
    leaf = torch.arange(6.0, device="sim", requires_grad=True)
    inner = leaf * 1
    inner.view(2, 3)[0].mul_(3)
    inner.register_hook(lambda grad: grad * 10)
    inner.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [30.0, 30.0, 30.0, 10.0, 10.0, 10.0]
    assert torch.autograd.gradcheck(
        lambda a: (a.view(-1)[1:] * a.sum()).exp(),
        torch.rand(2, 2, dtype=torch.float64, device="sim", requires_grad=True),
    )


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.parametrize(
    "transform",
    [
        lambda x: torch.func.vmap(lambda a: a * 2 + a.sum())(x.view(1, -1)),
        lambda x: torch.func.vmap(torch.func.grad(lambda a: a**3))(x),
        lambda x: torch.func.jacrev(torch.func.jacrev(lambda a: (a**3).sum()))(x),
        lambda x: torch.func.jacfwd(torch.sin)(x),
        lambda x: torch.func.grad(lambda a: torch.func.jvp(torch.sin, (a,), (x,))[1].sum())(x),
        lambda x: torch.func.functionalize(lambda a: a.add(1).mul_(2))(x),
    ],
)
def test_transforms_equal_the_cpus(transform: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.rand(3)
    got = transform(x.to("sim"))
    assert isinstance(got, SimTensor)
    assert torch.allclose(got.cpu(), transform(x))


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_forward_over_backward_is_refused() -> None:
    """It would end the process."""
    with pytest.raises(NotImplementedError, match="forward mode over backward"):
        torch.func.hessian(lambda a: (a**3).sum())(torch.ones(2, device="sim"))


# ------------------------------------------------------------------------------------------------ counters


@pytest.mark.parametrize(
    ("make", "calls"),
    [
        (lambda: torch.empty(4, device="sim"), {"aten::empty.memory_format": 1}),
        (lambda: torch.ones(4, device="sim"), {"aten::empty.memory_format": 1, "aten::fill_.Scalar": 1}),
        (lambda: torch.zeros(4, device="sim"), {"aten::empty.memory_format": 1, "aten::zero_": 1}),
        (lambda: torch.arange(4, device="sim"), {"aten::empty.memory_format": 1, "aten::arange.start_out": 1}),
        (lambda: torch.tril_indices(2, 2, device="sim"), {"aten::tril_indices": 1}),
        (lambda: torch.rand(4, device="sim"), {"aten::empty.memory_format": 1, "aten::uniform_": 1}),
        (lambda: torch.ones(4).to("sim"), {"aten::_to_copy": 1}),
        (lambda: torch.tensor([1.0], device="sim"), {"aten::_to_copy": 1, "aten::lift_fresh": 1}),
    ],
)
def test_each_kernel_of_a_factory_counts_once(make: Callable[[], torch.Tensor], calls: dict[str, int]) -> None:
    _sim().reset_counters()
    make()
    found = _sim().counters()
    assert found.calls == calls
    assert found.seconds.keys() <= found.calls.keys(), "what takes time is counted"
