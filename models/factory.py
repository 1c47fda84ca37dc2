"""`py:module:factory` and `py:path/to/file.py:factory`: find a user's function, call it, and read what it returns."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from day0.errors import Day0Error, near_names
from day0.hashing import hash_file, hash_json
from day0.models.memory import has_values
from day0.models.own import OwnModel, call_of
from day0.models.spec import ModelSpec, OwnPhase
from day0.playbook import ModelPlan

__all__ = ["open_factory"]

FORWARD = "forward"


def open_factory(plan: ModelPlan) -> ModelSpec:
    """Open the model of a user's factory, which is called with `--set` as keyword arguments.

    Once it is called on meta, where a large model costs nothing; a factory that cannot work there is called for real.
    Raises Day0Error: nothing of that name, the factory fails, or returns what is no model.
    """
    place, _, name = plan.source.removeprefix("py:").rpartition(":")
    if not place:
        place, name = name, "make_model"
    module = _imported(plan, place)
    factory = getattr(module, name, None)
    if not callable(factory):
        known = tuple(key for key, value in vars(module).items() if inspect.isfunction(value))
        hint = near_names(name, known) or "name a function in it"
        raise Day0Error(plan.source, f"'{place}' has no function '{name}'", hint=hint)
    call = _caller(plan, name, factory)
    first = _Maker(call=call, plan=plan)
    made = first.on_meta()
    if isinstance(made, ModelSpec):
        return made
    return _spec(plan, _read(plan, name, made), first, _code_hash(module))


# ------------------------------------------------------------------------------------- finding the function


def _imported(plan: ModelPlan, place: str) -> ModuleType:
    path = Path(place)
    with _guarded(plan, f"importing '{place}' fails", "run it with python to see more"):
        if path.suffix == ".py":
            return _of_file(plan, path)
        with _working_folder_on_path():
            return importlib.import_module(place)


def _of_file(plan: ModelPlan, path: Path) -> ModuleType:
    if not path.is_file():
        raise Day0Error(plan.source, f"there is no file '{path}'", hint="give the path of a Python file")
    name = f"_day0_model_{hash_file(path)[7:19]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Day0Error(plan.source, f"'{path}' is not a Python file", hint="its name has to end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and deepcopy look the module up by its name
    with _on_path(str(path.resolve().parent)):
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return module


@contextlib.contextmanager
def _on_path(folder: str) -> Iterator[None]:
    before = list(sys.path)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path[:] = before


def _working_folder_on_path() -> contextlib.AbstractContextManager[None]:
    # The `day0` command, other than `python -m day0`, does not look there.
    return _on_path(str(Path.cwd()))


def _code_hash(module: ModuleType) -> str:
    path = Path(str(getattr(module, "__file__", "")))
    return hash_file(path) if path.is_file() else ""


# -------------------------------------------------------------------------------------- calling the function


def _caller(plan: ModelPlan, name: str, factory: Callable[..., object]) -> Callable[[], object]:
    try:
        inspect.signature(factory).bind(**plan.set)
    except TypeError as error:
        what = f"'{name}' cannot be called with {', '.join(plan.set) or 'no arguments'}: {error}"
        raise Day0Error(plan.source, what, hint="--set KEY=VALUE gives it keyword arguments") from None
    except ValueError:
        pass  # some callables have no signature to ask
    return functools.partial(factory, **plan.set)


@dataclass(kw_only=True)
class _Maker:
    """Calls the factory, on meta or for real; for real only once."""

    call: Callable[[], object]
    plan: ModelPlan

    def on(self, device: str) -> object:
        """Return what the factory returns for a device; without values, what it returns then."""
        if device == "meta":
            return self.on_meta()
        return self.real if has_values() else self._without_values

    @functools.cached_property
    def _without_values(self) -> object:
        return self._made()

    def on_meta(self) -> object:
        """Return what the factory returns while new tensors are on meta, or for real where it cannot do that."""
        return self._meta if self._meta is not None else self.real

    @functools.cached_property
    def _meta(self) -> object | None:
        try:
            with torch.device("meta"):
                return self._made()
        except Day0Error:
            return None

    @functools.cached_property
    def real(self) -> object:
        """What the factory returns, with memory."""
        return self._made()

    def _made(self) -> object:
        what = f"'{self.plan.source.rpartition(':')[2]}' fails"
        with _guarded(self.plan, what, "call it yourself to see more"), torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.plan.seed)
            return self.call()


@contextlib.contextmanager
def _guarded(plan: ModelPlan, what: str, hint: str) -> Iterator[None]:
    """Run the user's code: no exit, no text on stdout where a record may go, no changed defaults left behind."""
    before = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads())
    flags = (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
    modes, default = torch._C._len_torch_function_stack(), _default_device()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except Day0Error:
        raise
    except (Exception, SystemExit) as error:
        text = f"{type(error).__name__}: {error}".strip().removesuffix(":")
        raise Day0Error(plan.source, f"{what}: {text}", facts=_line_of(error), hint=hint) from error
    finally:
        if _default_device() is not default:
            torch.set_default_device(default.device if default is not None else None)
        while torch._C._len_torch_function_stack() > modes:  # other modes that it entered and did not leave
            torch._C._pop_torch_function_stack()
        torch.set_default_dtype(before[0])
        torch.set_grad_enabled(before[1])
        torch.set_num_threads(before[2])
        torch.use_deterministic_algorithms(flags[0], warn_only=flags[1])


def _default_device() -> Any:
    """Return the context that `torch.set_default_device` leaves behind; None where nobody called it."""
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


def _line_of(error: BaseException) -> tuple[str, ...]:
    """Return the last line of the user's code that the error came through."""
    place, traceback = "", error.__traceback__
    ours = str(Path(__file__).resolve().parent)
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if (
            not file.startswith((ours, "<"))
            and "/importlib/" not in file
            and "/torch/" not in file
            and Path(__file__).name != Path(file).name
        ):
            place = f"{Path(file).name}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return (f"raised by {place}",) if place else ()


# -------------------------------------------------------------------------------------- reading what it made

SHAPES = "return a module, (module, args), (module, args, kwargs) or day0.models.own.OwnModel"


def _read(plan: ModelPlan, name: str, made: object) -> OwnModel:
    """Turn what a factory returns into an OwnModel; without phases for a causal model."""
    if isinstance(made, tuple) and 2 <= len(made) <= 3 and isinstance(made[0], nn.Module):
        return OwnModel(module=made[0], inputs={FORWARD: _tuple_inputs(plan, name, made)})
    if isinstance(made, nn.Module):
        return OwnModel(module=made, inputs={} if _vocab_size(made) else _no_inputs(plan, made))
    if not isinstance(made, OwnModel):
        raise Day0Error(plan.source, f"'{name}' returned a {type(made).__name__}, not a module", hint=SHAPES)
    if not isinstance(made.module, nn.Module):
        what = f"'{name}' returned an OwnModel whose module is a {type(made.module).__name__}"
        raise Day0Error(plan.source, what, hint="give an nn.Module")
    if not isinstance(made.inputs, Mapping) or not made.inputs:
        what = f"'{name}' returned an OwnModel without phases"
        raise Day0Error(plan.source, what, hint='for example inputs={"forward": (torch.zeros(2, 8),)}')
    bad = [key for key in made.inputs if not isinstance(key, str) or not key.isidentifier() or len(key) > 64]
    if bad:
        raise Day0Error(plan.source, f"{bad[0]!r} cannot name a phase", hint="use a short word such as denoise")
    if made.dtype is not None and not isinstance(made.dtype, torch.dtype):
        raise Day0Error(plan.source, f"its dtype is a {type(made.dtype).__name__}", hint="give torch.bfloat16 or None")
    return made


def _tuple_inputs(plan: ModelPlan, name: str, made: tuple[Any, ...]) -> Any:
    from day0.models.own import Inputs

    args, kwargs = made[1], made[2] if len(made) == 3 else {}
    if len(made) == 2 and (callable(args) or isinstance(args, (Mapping, Inputs))):
        return args
    if isinstance(args, (tuple, list)) and isinstance(kwargs, Mapping):
        return Inputs(args=tuple(args), kwargs=kwargs)
    what = f"'{name}' returned inputs of type {type(args).__name__}"
    raise Day0Error(plan.source, what, hint="give a tuple of positional arguments and a dict of named ones")


def _vocab_size(module: nn.Module) -> int:
    value = getattr(getattr(module, "config", None), "vocab_size", None)
    return value if isinstance(value, int) and value > 0 else 0


def _no_inputs(plan: ModelPlan, module: nn.Module) -> dict[str, object]:
    try:
        inspect.signature(module.forward).bind()
    except TypeError as error:
        what = f"day0 does not know what to call {type(module).__name__} with: {error}, and no config.vocab_size"
        raise Day0Error(plan.source, what, hint="return (module, args, kwargs) or day0.models.own.OwnModel") from None
    return {FORWARD: ()}


# -------------------------------------------------------------------------------------------------- the spec


def _spec(plan: ModelPlan, own: OwnModel, maker: _Maker, code: str) -> ModelSpec:
    config = getattr(own.module, "config", None)
    dtype = own.dtype or _dtype_of(own.module)
    state = {key: [list(value.shape), str(value.dtype)] for key, value in _state(plan, own.module).items()}
    facts = {"source": plan.source, "shapes": state, "code": code, "set": dict(plan.set), "seed": plan.seed}
    spec = ModelSpec(
        source=plan.source,
        overrides={key: json.dumps(value) for key, value in sorted(plan.set.items())},
        dtype=dtype,
        class_name=str(own.name) or type(own.module).__name__,
        fingerprint=hash_json({**facts, "dtype": str(own.dtype), "phases": list(own.inputs)}),
        vocab_size=_vocab_size(own.module),
        sparse_top_k=getattr(config, "index_topk", None),
        max_positions=getattr(config, "max_position_embeddings", None),
        build=functools.partial(_build, plan, maker),
        weights=lambda: "as the factory made them",
        trained=True,
    )
    return replace(spec, phases=tuple(_phase(plan, maker, name) for name in own.inputs))


def _state(plan: ModelPlan, module: nn.Module) -> dict[str, torch.Tensor]:
    with _guarded(plan, "its state_dict fails", "see the module's own state_dict"):
        return {key: value for key, value in module.state_dict().items() if isinstance(value, torch.Tensor)}


def _dtype_of(module: nn.Module) -> torch.dtype:
    values = (*module.parameters(), *module.buffers())
    return next((one.dtype for one in values if one.is_floating_point()), torch.get_default_dtype())


def _phase(plan: ModelPlan, maker: _Maker, name: str) -> OwnPhase:
    where = f"{plan.source}, phase {name}"

    def prepare(module: nn.Module, device: str) -> Callable[[], object]:
        # Inputs that were made on meta have no values: elsewhere those of the real call are taken.
        return call_of(_read(plan, name, maker.on(device)).inputs[name], where)(module, device)

    return OwnPhase(name=name, reason="inputs of the factory", prepare=prepare)


def _build(plan: ModelPlan, maker: _Maker, device: str) -> nn.Module:
    own = _read(plan, plan.source.rpartition(":")[2], maker.on(device))
    if device != "meta" and not has_values():
        return own.module.eval() if own.dtype is None else own.module.to(own.dtype).eval()
    with _guarded(plan, f"the model cannot be moved to {device}", "see the module's own `to`"):
        # Each build is its own module, or a device run would move the reference too.
        module = copy.deepcopy(own.module)
        return module.to(device=device, dtype=own.dtype).eval()
