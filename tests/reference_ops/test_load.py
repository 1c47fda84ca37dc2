from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from day0 import reference_ops
from day0.errors import Day0Error
from day0.reference_ops import load, topk_tokens
from day0.reference_ops._spec import Operator
from day0.reference_ops.load import load_operator, load_operators, operator_file
from day0.reference_ops.signatures import tensors_in
from day0.reference_ops.torch_ops import NAMESPACE, register_operators

ALL_TEST_UTILS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
OPERATORS = load_operators()
OURS = sorted(name for name in OPERATORS if name.startswith(f"{NAMESPACE}::"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose modules are found besides our own; what is found is forgotten afterwards."""
    monkeypatch.setattr(reference_ops, "__path__", [*reference_ops.__path__, str(tmp_path)])
    load._found.cache_clear()
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]
    load._found.cache_clear()


def test_every_file_without_underscore_is_an_operator_or_a_known_helper() -> None:
    files = {path.stem for path in Path(str(reference_ops.__file__)).parent.glob("*.py") if path.stem[0] != "_"}
    assert files - load.HELPERS == {operator_file(name).stem for name in OPERATORS}


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_contract_is_complete(name: str) -> None:
    operator = OPERATORS[name]
    assert operator.name == name and operator.version >= 1
    assert operator.summary and operator.mathematics and operator.source and operator.tolerance.reason
    kinds = {sample.kind for sample in operator.samples(torch.Generator().manual_seed(0))}
    assert kinds == {"small", "odd", "corner", "traced"}
    if name.startswith(f"{NAMESPACE}::"):
        assert operator.schema and operator.fake is not None


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_samples_depend_on_the_seed_alone(name: str) -> None:
    first, again = (list(OPERATORS[name].samples(torch.Generator().manual_seed(7))) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert repr(one.kwargs) == repr(other.kwargs)
        for left, right in zip(one.args, other.args, strict=True):
            if isinstance(left, torch.Tensor):
                torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


def test_unknown_operator_gives_near_names() -> None:
    with pytest.raises(Day0Error, match="there is no 'day0::lightning_index'") as caught:
        load_operator("day0::lightning_index")
    assert "day0::lightning_indexer" in caught.value.hint


def test_two_files_for_one_operator_are_refused(folder: Path) -> None:
    (folder / "zz_twin.py").write_text("from day0.reference_ops.topk_tokens import OP as OP\n")
    with pytest.raises(Day0Error, match="day0::topk_tokens is defined twice") as caught:
        load_operators()
    assert caught.value.where == "reference_ops/zz_twin.py"
    assert "topk_tokens.py" in caught.value.facts[0]


def test_a_file_without_an_operator_is_refused(folder: Path) -> None:
    (folder / "zz_empty.py").write_text("")
    with pytest.raises(Day0Error, match="does not define OP"):
        load_operators()


def test_a_new_file_is_found_by_its_name_alone(folder: Path) -> None:
    source = "from dataclasses import replace\nfrom day0.reference_ops.topk_tokens import OP as BASE\n"
    (folder / "zz_new.py").write_text(source + "OP = replace(BASE, name='day0::zz_new')\n")
    assert load_operator("day0::zz_new").version == topk_tokens.OP.version


def test_registration_is_idempotent_and_leaves_other_backends_alone() -> None:
    register_operators()
    register_operators()
    for name in OURS:
        keys = {key for key in ("CPU", "Meta", "CUDA", "PrivateUse1", "XPU", "MPS") if _has_kernel(name, key)}
        assert keys == {"CPU", "Meta"}


def _has_kernel(name: str, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


def test_an_operator_of_ours_without_shapes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    broken: Operator = replace(topk_tokens.OP, name="day0::zz_no_fake", fake=None)
    module: ModuleType = sys.modules["day0.reference_ops.torch_ops"]
    monkeypatch.setattr(module, "load_operators", lambda: {broken.name: broken})
    with pytest.raises(Day0Error, match="no schema or no fake"):
        register_operators()


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OURS)
def test_torch_accepts_the_registration(name: str, every: bool) -> None:
    """With the first sample of each kind, and in the long suite with every sample."""
    # Ours are for inference: without inputs that require gradients opcheck's autograd test has nothing to test.
    register_operators()
    overload = getattr(getattr(torch.ops, NAMESPACE), name.partition("::")[2]).default
    kinds: set[str] = set()
    for sample in OPERATORS[name].samples(torch.Generator().manual_seed(0)):
        if sample.kind in kinds and not every:
            continue
        kinds.add(sample.kind)
        # opcheck's comparison of traced and eager results takes no NaN for equal.
        nan = any(bool(torch.isnan(one).any()) for one in tensors_in(overload(*sample.args)))
        utils = ["test_schema", "test_faketensor"] if nan else [*ALL_TEST_UTILS]
        # Its look for written arguments multiplies, which torch cannot do in eight bits.
        # tests/reference_ops/test_contract.py looks for those too.
        if any(one.is_floating_point() and one.itemsize == 1 for one in tensors_in((sample.args, sample.kwargs))):
            utils.remove("test_schema")
        torch.library.opcheck(overload, sample.args, sample.kwargs, test_utils=utils)
