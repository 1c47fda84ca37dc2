"""The two ways into SGLang's operator classes, its hooks for functions, and the questions that tell whether they took.

An out-of-tree platform asks `register_oot_forward` and never `forward_plugin`; every platform that SGLang has itself
asks `forward_plugin` and never the other. The wrong one is silent, so each class is asked which it takes, and again
every layer of a loaded model. What an adapter knows of one release stands in the adapter.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from day0.registry.export.runtime.core import BETWEEN, Bundle
from day0.registry.export.runtime.spec import Target, TargetError, find_target

__all__ = ["Plugin", "Port", "Thunk", "install"]

Thunk = Callable[[], Any]
Port = Callable[..., Thunk | str]
"""From the bundle, an instance and the arguments of its call: what to run, or why the engine's own has to."""

_FUSED = "sglang.kernels.fused_op"
_RUNNER = "sglang.srt.model_executor.model_runner"


@dataclass(kw_only=True, slots=True)
class Plugin:
    """What this process has put where."""

    bundle: Bundle
    ports: Mapping[str, Port]
    key: str | None
    """Dispatch key of an out-of-tree platform; None on one that SGLang has itself."""
    classes: dict[type, Target] = field(default_factory=dict)
    functions: dict[str, tuple[Target, Callable[..., Any], Callable[..., Any]]] = field(default_factory=dict)
    """By dotted path: the target, SGLang's function and ours."""
    foreign: list[str] = field(default_factory=list)
    """Models in this process that the lock was not made for."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Plugin:
        """Return itself: a layer that is copied stays with its plugin."""
        return self

    def target_of(self, layer: Any) -> Target | None:
        """Return the target whose class a layer is an instance of."""
        return next((self.classes[one] for one in type(layer).__mro__ if one in self.classes), None)

    def owns(self, function: Any) -> bool:
        """Say whether a function or method is one that this plugin made."""
        return str(self.bundle.folder) in getattr(function, "day0_folders", ())


def install(bundle: Bundle, targets: tuple[Target, ...], ports: Mapping[str, Port]) -> Plugin:
    """Put our forward on every target by the route of the active platform, and watch what models are loaded.

    Raises TargetError: a target is not there as tested, has another owner, or does not take what was put there.
    """
    platform = importlib.import_module("sglang.srt.platforms").current_platform
    key = platform.get_dispatch_key_name() if platform.is_out_of_tree() else None
    plugin = Plugin(bundle=bundle, ports=ports, key=key)
    for target in targets:
        found = find_target(target)
        (_claim if target.hook else _replace)(plugin, target, found)
    _watch_loading(plugin)
    return plugin


def _claim(plugin: Plugin, target: Target, base: Any) -> None:
    """Give a class and the subclasses that compute the same our forward, and ask each whether it will be taken."""
    plugin.classes[base] = target
    for one in dict.fromkeys((base, *_below(base))):
        if one.forward_native is not base.forward_native:
            continue
        _route(plugin, target, one)
        taken, why = _taken(plugin, _blank(one))
        if not taken:
            raise TargetError(f"{target.path}: our forward is in place on {one.__name__} and not taken: {why}")


def _below(cls: Any) -> list[Any]:
    subs: list[Any] = cls.__subclasses__()
    return [one for sub in subs for one in (sub, *_below(sub))]


def _blank(cls: Any) -> Any:
    """Return an instance that no constructor has run on: enough to ask how a call will be resolved."""
    layer = cls.__new__(cls)
    importlib.import_module("torch").nn.Module.__init__(layer)
    layer._forward_method = None
    return layer


def _route(plugin: Plugin, target: Target, cls: Any) -> None:
    (_in_tree if plugin.key is None else _out_of_tree)(plugin, target, cls)


def _out_of_tree(plugin: Plugin, target: Target, cls: Any) -> None:
    key = str(plugin.key)
    owner = cls._oot_forward_registry.get(key, {}).get(cls)
    if plugin.owns(owner):
        return
    if owner is not None and not hasattr(owner, "day0_folders"):
        _refuse_second(plugin, f"{cls.__name__} on {key}", owner)
    cls.register_oot_forward(cls, _forward(plugin, target, owner), key)


def _in_tree(plugin: Plugin, target: Target, cls: Any) -> None:
    """Set `forward_plugin`, declare and prefer it, and let our constraints decide call by call. Subclasses inherit."""
    known = importlib.import_module(_FUSED)
    mine = known.KernelBackend.PLUGIN
    if not plugin.owns(cls.forward_plugin):
        owner = cls.forward_plugin if cls.forward_plugin is not known.BaseFusedOp.forward_plugin else None
        if owner is not None and not hasattr(owner, "day0_folders"):
            _refuse_second(plugin, cls.__name__, owner)
        cls.forward_plugin = _forward(plugin, target, owner)
        cls.backend_eligible = _gate(plugin, target, cls.backend_eligible, mine)
    # Copies: what a class above declares for others stays as it is.
    cls.capabilities = {**cls.capabilities, mine: frozenset()}
    cls.priority = (mine, *(one for one in cls.priority if one is not mine))


def _refuse_second(plugin: Plugin, what: str, owner: Any) -> None:
    code = getattr(owner, "__code__", None)
    place = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    name = f"{getattr(owner, '__module__', '?')}.{getattr(owner, '__qualname__', repr(owner))}"
    raise TargetError(
        f"{what} of SGLang has two owners: {name}{place} has taken it, and {plugin.bundle.title} wants to. Uninstall "
        "one of them, or export again with --skip for the operators that the other one serves."
    )


def _forward(plugin: Plugin, target: Target, other: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return the forward that becomes a method of the class; SGLang's own trace shows the namespace in its name.

    `other` is that of another plugin of day0's, which has the layers that are not ours.
    """

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if other is not None and self.__dict__.get("_day0_plugin") is not plugin:
            return other(self, *args, **kwargs)
        decided = _decide(plugin, target, self, args, kwargs)
        if callable(decided):
            return decided()
        if not self._day0_meant:
            plugin.bundle.note(self._day0_site, "", decided)
        return self._day0_own(*args, **kwargs)

    forward.__name__ = f"forward_{plugin.bundle.namespace}"
    forward.__qualname__ = f"{plugin.bundle.namespace}.{target.name}.forward"
    folders = (str(plugin.bundle.folder), *getattr(other, "day0_folders", ()))
    forward.day0_folders = folders  # type: ignore[attr-defined]
    return forward


def _gate(plugin: Plugin, target: Target, before: Callable[..., bool], mine: Any) -> Callable[..., bool]:
    """Return `backend_eligible`: what we do not take goes to the backend that comes next, written down."""

    @functools.wraps(before)
    def backend_eligible(self: Any, backend: Any, *args: Any, **kwargs: Any) -> bool:
        others = hasattr(before, "day0_gate") and self.__dict__.get("_day0_plugin") is not plugin
        if backend is not mine or others:
            return before(self, backend, *args, **kwargs)
        decided = _decide(plugin, target, self, args, kwargs)
        if not callable(decided) and not self._day0_meant:
            plugin.bundle.note(self._day0_site, "", decided)
        return callable(decided)

    backend_eligible.day0_gate = True  # type: ignore[attr-defined]
    return backend_eligible


def _decide(plugin: Plugin, target: Target, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Thunk | str:
    """Return what to run for a call, or why the engine's own has to run."""
    if "_day0_site" not in layer.__dict__:
        _know(plugin, target, layer, "")
        if plugin.bundle.manifest["models"]:
            layer._day0_not = "built outside a model"
        elif not layer._day0_not:
            layer._day0_site = plugin.bundle.bind(target.name, "")
    return layer._day0_not or plugin.ports[target.name](plugin.bundle, layer, *args, **kwargs)


def _know(plugin: Plugin, target: Target, layer: Any, site: str) -> None:
    """Keep with an instance where it stands, what the engine would have run, and why it cannot be ours."""
    base: Any = next(one for one, its in plugin.classes.items() if its is target)
    key = plugin.key if plugin.key is not None else importlib.import_module(_FUSED)._platform_key()
    own_forward = type(layer).forward_native is not base.forward_native
    layer._day0_own = layer._platform_method(key) or layer.forward_native
    layer._day0_not = f"{type(layer).__name__} has a forward_native of its own" if own_forward else ""
    layer._day0_meant = False
    # Not as an attribute of a module: it would be looked for among its children.
    layer.__dict__["_day0_plugin"] = plugin
    layer._day0_site = f"{target.name}{BETWEEN}{site}"


def _taken(plugin: Plugin, layer: Any) -> tuple[bool, str]:
    """Say whether the engine will call our forward on a layer, and what it will call instead."""
    known = importlib.import_module(_FUSED)
    pinned = layer._forward_method is not None
    method = layer._forward_method if pinned else layer._resolve_forward_method()
    if getattr(method, "__func__", None) is known.BaseFusedOp._forward_backend_dynamic:
        method = getattr(layer, known.BACKEND_METHODS[layer._dynamic_backend_candidates[0]])
    if plugin.owns(method):
        return True, ""
    name = getattr(method, "__qualname__", repr(method))
    return False, f"the layer is pinned to {name}" if pinned else f"it resolves to {name}"


def _watch_loading(plugin: Plugin) -> None:
    """Look at every model that SGLang loads: its layers are bound by their paths, and asked what they take."""
    if not hasattr(importlib.import_module(_RUNNER).ModelRunner, "load_model"):
        raise TargetError(f"{_RUNNER}: ModelRunner has no 'load_model'")
    hooks = importlib.import_module("sglang.srt.plugins.hook_registry")

    def load_model(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(runner, *args, **kwargs)
        _look_at(plugin, runner.model, runner.model_config.hf_config)
        return result

    hooks.HookRegistry.register(f"{_RUNNER}.ModelRunner.load_model", load_model, hooks.HookType.AROUND)


def _look_at(plugin: Plugin, model: Any, config: Any) -> None:
    kind, architectures = str(getattr(config, "model_type", "")), tuple(getattr(config, "architectures", None) or ())
    foreign = "" if plugin.bundle.serves(kind, architectures) else f"the model is {kind} {' '.join(architectures)}"
    if foreign:
        plugin.foreign.append(foreign)
    for path, layer in model.named_modules():
        target = plugin.target_of(layer)
        if target is not None:
            _bind(plugin, target, layer, path, foreign)
    for dotted in plugin.functions:
        _ask_function(plugin, dotted)


def _bind(plugin: Plugin, target: Target, layer: Any, path: str, foreign: str) -> None:
    """Bind a layer of a loaded model, or write down why it will not call us."""
    before = layer.__dict__.get("_day0_plugin")
    if before is not None and before is not plugin and not layer._day0_meant:
        if foreign:
            return
        raise TargetError(f"{path}: {before.bundle.title} and {plugin.bundle.title} both serve this model")
    _know(plugin, target, layer, path)
    if foreign:
        layer._day0_not, layer._day0_meant = foreign, True
        plugin.bundle.book.declined(target.name, path, foreign, meant=True)
        return
    reason = layer._day0_not or _forced() or _not_taken(plugin, target, layer)
    if reason:
        plugin.bundle.book.declined(target.name, path, reason)
    else:
        layer._day0_site = plugin.bundle.bind(target.name, path)


def _forced() -> str:
    forced = importlib.import_module(_FUSED).get_fused_op_backend()
    if forced is None or forced.value == "plugin":
        return ""
    return f"the backend '{forced.value}' is forced on every layer (SGLANG_FORCE_FUSED_OP_BACKEND)"


def _not_taken(plugin: Plugin, target: Target, layer: Any) -> str:
    taken, why = _taken(plugin, layer)
    known = layer._oot_forward_registry.get(plugin.key, {})
    if not taken and plugin.key is not None and layer._forward_method is None and type(layer) not in known:
        # Its class was defined after the plugin ran, and the registry knows classes exactly.
        _route(plugin, target, type(layer))
        taken, why = _taken(plugin, layer)
    return "" if taken else why


def _replace(plugin: Plugin, target: Target, original: Callable[..., Any]) -> None:
    """Have SGLang's hooks replace a function; it does so when all plugins have run."""
    hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
    dotted = target.path.replace(":", ".")
    for kind, owner, _source in hooks.HookRegistry._hooks.get(dotted, ()):
        if kind is hooks.HookType.REPLACE:
            _refuse_second(plugin, dotted, owner)
    signature = inspect.signature(original)
    holder = SimpleNamespace(_day0_own=original, _day0_site=plugin.bundle.bind(target.name, ""))

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        if plugin.foreign:
            # A function does not know which model calls it.
            plugin.bundle.book.declined(target.name, "", plugin.foreign[0], meant=True)
            return original(*args, **kwargs)
        decided = plugin.ports[target.name](plugin.bundle, holder, *given.args)
        return decided() if callable(decided) else plugin.bundle.own(holder, decided, *given.args)

    replaced.day0_folders = (str(plugin.bundle.folder),)  # type: ignore[attr-defined]
    plugin.functions[dotted] = (target, original, replaced)
    hooks.HookRegistry.register(dotted, replaced, hooks.HookType.REPLACE)


def _ask_function(plugin: Plugin, dotted: str) -> None:
    """Write down whether a replaced function is ours by now, and who still holds SGLang's own."""
    hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
    target, original, _replaced = plugin.functions[dotted]
    replacing = [one for kind, one, _source in hooks.HookRegistry._hooks[dotted] if kind is hooks.HookType.REPLACE]
    if dotted not in hooks.HookRegistry._patched:
        raise TargetError(f"{dotted}: SGLang was told to replace it and has not")
    if not plugin.owns(replacing[-1]):
        name = getattr(replacing[-1], "__qualname__", repr(replacing[-1]))
        plugin.bundle.book.declined(target.name, "", f"{name} was registered later and stands in its place")
    for where in _holders(original):
        plugin.bundle.book.declined(target.name, where, "this name still holds SGLang's own function")


def _holders(function: Callable[..., Any]) -> list[str]:
    """Return the names in the engine's loaded modules and classes that are bound to a function."""
    found = []
    for module_name, module in sorted(sys.modules.items()):
        if module_name.startswith("sglang."):
            for name, value in list(vars(module).items()):
                found += [f"{module_name}.{name}{its}" for its in _inside(value, function, module_name)]
    # The name that it was defined by stays its own where callers are meant to use another.
    return [one for one in found if one != f"{function.__module__}.{function.__qualname__}"]


def _inside(value: Any, function: Callable[..., Any], module_name: str) -> list[str]:
    if value is function:
        return [""]
    if isinstance(value, type) and value.__module__ == module_name:
        return [f".{name}" for name, one in vars(value).items() if one is function]
    if isinstance(value, functools.partial) and value.func is function:
        return [" (a partial)"]
    if isinstance(value, dict) and any(one is function for one in value.values()):
        return [" (a table)"]
    return []
