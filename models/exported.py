"""`export:FILE.pt2`: a program of `torch.export.save` as a model source."""

from __future__ import annotations

import functools
import json
import keyword
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from day0.errors import Day0Error
from day0.hashing import hash_file, hash_json
from day0.models.exported_archive import DTYPES, Archive, StoredWeight, as_mapping, read_archive
from day0.models.exported_graph import Place, Run, module_paths, run_graph
from day0.models.exported_sizes import Dims, choose_dims, size_of
from day0.models.memory import has_values, refuse_too_large
from day0.models.spec import ModelSpec, OwnPhase
from day0.playbook import ModelPlan

__all__ = ["open_export"]

MAX_MODULES = 1 << 17
MAX_INPUT_BYTES = 1 << 40


def open_export(plan: ModelPlan) -> ModelSpec:
    """Open an exported program; `--set` gives values to its dynamic sizes.

    Raises Day0Error: no such file, what `read_archive` refuses, a graph that is damaged, a size out of its range.
    """
    path = Path(plan.source.removeprefix("export:"))
    archive = read_archive(path)
    where = str(path)
    with _damaged(where):
        shapes = {name: value["sizes"] for name, value in _user_tensors(archive).items()}
        ranges = as_mapping(path, archive.program.get("range_constraints", {}), "range_constraints")
        dims = choose_dims(where, shapes, ranges, plan.set)
        root = _root(archive)
    dtype = next((one.dtype for one in archive.weights.values() if one.dtype.is_floating_point), torch.float32)

    def build(device: str) -> nn.Module:
        with _damaged(where):
            return _built(archive, device)

    sizes = dims.text or "all sizes fixed"
    return ModelSpec(
        source=plan.source,
        overrides={key: json.dumps(value) for key, value in sorted(plan.set.items())},
        dtype=dtype,
        class_name=type(root).__name__,
        fingerprint=hash_json({"file": hash_file(path), "dims": dict(dims.values)}),
        vocab_size=0,
        sparse_top_k=None,
        max_positions=None,
        build=build,
        trained=bool(archive.weights),
        weights=lambda: f"of the program: {len(archive.weights)} tensors",
        phases=(OwnPhase(name="forward", reason=sizes, prepare=functools.partial(_prepare, archive, dims, plan.seed)),),
    )


@contextmanager
def _damaged(where: str) -> Iterator[None]:
    """Turn what a document of the wrong form makes us raise into one message."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        what = f"its graph is not of the form that torch writes: {type(error).__name__}: {str(error)[:200]}"
        raise Day0Error(where, what, hint="save it again with torch.export.save") from error


# ----------------------------------------------------------------------------------------------- the modules


def _built(archive: Archive, device: str) -> nn.Module:
    root = _root(archive)
    values = device != "meta" and has_values()
    if values:
        refuse_too_large(sum(one.bytes for one in archive.weights.values()), str(archive.path))
    for name, weight in archive.weights.items():
        place, _, last = name.rpartition(".")
        module = _place(root, place)
        # Without values whole numbers are still known.
        empty = device == "meta" or (not values and weight.dtype.is_floating_point)
        tensor = _on_meta(weight) if empty else archive.read(weight)
        if weight.is_parameter:
            module.register_parameter(last, nn.Parameter(tensor, requires_grad=False))
        else:
            module.register_buffer(last, tensor)
    return root.to(device).eval() if values else root.eval()


def _on_meta(weight: StoredWeight) -> torch.Tensor:
    return torch.empty_strided(weight.shape, weight.strides, dtype=weight.dtype, device="meta")


def _root(archive: Archive) -> Place:
    graph = archive.graph_module["graph"]
    kinds: dict[str, str] = {}
    for path, kind in module_paths(graph):
        kinds.setdefault(path, kind)
    if len(kinds) > MAX_MODULES:
        raise Day0Error(str(archive.path), f"it names {len(kinds):,} modules", hint="is it an exported program?")
    root = _empty(kinds.get("", "ExportedProgram"))
    for path in sorted(kinds):
        _place(root, path, kinds)
    return root


def _empty(kind: str) -> Place:
    """Return an empty module of a class of that name, which the file says and nobody can trust."""
    fine = kind.isidentifier() and not keyword.iskeyword(kind) and len(kind) <= 100
    made: Place = type(kind if fine else "Module", (Place,), {})()
    return made


def _place(root: Place, path: str, kinds: Mapping[str, str] | None = None) -> Place:
    """Find the module of a path, and make it and those above it where they are missing."""
    module: Place = root
    so_far = ""
    for part in path.split(".") if path else ():
        so_far = f"{so_far}.{part}" if so_far else part
        below = module._modules.get(part)
        if not isinstance(below, Place):
            below = _empty((kinds or {}).get(so_far, "Module"))
            module.add_module(part, below)
        module = below
    return module


# --------------------------------------------------------------------------------------------------- running


def _user_tensors(archive: Archive) -> dict[str, Mapping[str, Any]]:
    """Return what the file says of each tensor that a caller gives."""
    graph = archive.graph_module["graph"]
    found = {}
    for kind, spec in _input_specs(archive):
        if kind == "user_input":
            ((form, value),) = spec["arg"].items()
            if form == "as_tensor":
                found[str(value["name"])] = graph["tensor_values"][value["name"]]
            elif not form.startswith(("as_none", "as_int", "as_float", "as_bool", "as_string")):
                what = f"it takes an input of kind {form[3:]}, and day0 can make tensors only"
                raise Day0Error(str(archive.path), what, hint="export it with tensors, or trace the model with py:")
    return found


def _input_specs(archive: Archive) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for one in archive.graph_module["signature"]["input_specs"]:
        ((kind, spec),) = one.items()
        yield kind, spec


def _prepare(archive: Archive, dims: Dims, seed: int, module: nn.Module, device: str) -> Callable[[], object]:
    assert isinstance(module, Place)  # noqa: S101 - built above
    where = str(archive.path)
    run = Run(where=where, device=torch.device(device), place=functools.partial(_place, module))
    with _damaged(where):
        graph = archive.graph_module["graph"]
        values = _weights_by_argument(archive, module)
        generator = torch.Generator().manual_seed(seed)
        for name, spec in _user_tensors(archive).items():
            made = _input(where, spec, dims, device, generator, _rows_indexed_by(graph, name, values))
            wide = any(one.dtype == torch.float64 for one in module.parameters())
            values[name] = made.double() if wide and made.is_floating_point() else made

    def call() -> object:
        with torch.no_grad(), _only_ours(where):
            return run_graph(run, graph, dict(values))

    return call


@contextmanager
def _only_ours(where: str) -> Iterator[None]:
    """A KeyError while the graph is walked is the file's; what operators raise passes."""
    try:
        yield
    except KeyError as error:
        what = f"its graph is not of the form that torch writes: there is no {error}"
        raise Day0Error(where, what, hint="save it again with torch.export.save") from error


def _weights_by_argument(archive: Archive, module: nn.Module) -> dict[str, Any]:
    places = {
        "parameter": "parameter_name",
        "buffer": "buffer_name",
        "tensor_constant": "tensor_constant_name",
    }
    values: dict[str, Any] = {}
    for kind, spec in _input_specs(archive):
        if kind in places:
            path, _, last = str(spec[places[kind]]).rpartition(".")
            owner = module.get_submodule(path)
            found = {**owner._parameters, **owner._buffers}.get(last)
            if found is None:
                raise ValueError(f"there is no weight {spec[places[kind]]!r}")
            values[str(spec["arg"]["name"])] = found
        elif kind not in ("user_input", "constant_input"):
            what = f"it takes a {kind.replace('_', ' ')}, which day0 cannot give it"
            raise Day0Error(str(archive.path), what, hint="trace the model itself with py:")
    return values


def _rows_indexed_by(graph: Mapping[str, Any], name: str, values: Mapping[str, Any]) -> int:
    """Return how many rows an input can choose from, where it goes right into an embedding; else 0."""
    for node in graph["nodes"]:
        if node["target"] == "torch.ops.aten.embedding.default":
            weight, indices = (one["arg"].get("as_tensor", {}).get("name") for one in node["inputs"][:2])
            if indices == name and isinstance(values.get(weight), torch.Tensor):
                return int(values[weight].shape[0])
    return 0


def _input(
    where: str, spec: Mapping[str, Any], dims: Dims, device: str, generator: torch.Generator, rows: int
) -> torch.Tensor:
    """Make one input: random floats, random ids below the rows of their embedding, else zeros; masks are all true."""
    shape = [size_of(where, one, dims.values) for one in spec["sizes"]]
    strides = [size_of(where, one, dims.values) for one in spec["strides"]]
    dtype = DTYPES[spec["dtype"]]
    order = sorted(range(len(shape)), key=lambda place: -strides[place])  # as exported: perhaps not in rows
    laid = [shape[place] for place in order]
    back = [order.index(place) for place in range(len(shape))]
    needed = dtype.itemsize
    for size in shape:
        needed *= size
    if needed > MAX_INPUT_BYTES:
        raise Day0Error(
            where, f"an input of shape {shape} takes {needed:,} bytes", hint="give smaller sizes with --set"
        )
    if device == "meta" or (dtype.is_floating_point and not has_values()):
        return torch.empty(laid, dtype=dtype, device="meta").permute(back)
    refuse_too_large(needed, where)
    if dtype.is_floating_point or dtype.is_complex:
        base = dtype if dtype.itemsize > 1 else torch.float32
        made = torch.randn(laid, dtype=base, generator=generator).to(dtype)
    elif rows and dtype in (torch.int32, torch.int64):
        made = torch.randint(0, rows, laid, dtype=dtype, generator=generator)
    else:
        made = torch.full(laid, dtype == torch.bool, dtype=dtype)
    return made.permute(back).to(device)
