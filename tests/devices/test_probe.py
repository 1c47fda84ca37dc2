"""Probing survives what it finds, and what it writes is what the device does."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
import yaml

from day0.devices.probe import Probed, ProbeOptions, probe
from day0.devices.probe_profile import probed_profile, profile_yaml, undescribed
from day0.devices.probe_suite import suite
from day0.devices.profile import DeviceProfile, load_profile
from day0.devices.support import call_text, supports
from day0.errors import Day0Error
from day0.records import Signature
from day0.reference_ops.signatures import describe, resolve, shapes_text, signature_id
from tests.started import quick_starts

PLANTED = str(Path(__file__).with_name("planted.py"))
DATE = "2026-01-01"
QUICK = ProbeOptions(rates=False)


def _probed(name: str, calls: Sequence[Signature]) -> DeviceProfile:
    base = load_profile(name)
    return probed_profile(base, probe(base, calls, QUICK), date=DATE)


@pytest.fixture(scope="module")
def sim() -> DeviceProfile:
    """Probe with everything; this worker is spawned, as all are outside tests."""
    return _probed("sim", suite())


@pytest.fixture
def quick() -> Iterator[None]:
    with quick_starts():
        yield


def _topk(*, ordered: bool) -> Signature:
    return describe("aten::topk", (torch.zeros(4, 8), 3, 1, True, ordered), {})


@pytest.fixture(scope="module")
def planted() -> tuple[DeviceProfile, Probed]:
    base = load_profile("null")
    names = ("tanh", "sin", "cos", "exp", "erf", "sinh", "neg")
    calls = [one for one in suite() if one.op.removeprefix("aten::") in names]
    calls = [one for one in calls if "bfloat16[4, 8]" in shapes_text(one) or "neg" in one.op]
    calls += [_topk(ordered=True), _topk(ordered=False)]
    with quick_starts():
        found = probe(base, calls, ProbeOptions(imports=(PLANTED,), timeout_s=5, rates=False))
    return probed_profile(base, found, date=DATE), found


def test_suite_names_operators_of_torch_once() -> None:
    calls = suite()
    assert len({signature_id(one) for one in calls}) == len(calls) > 1000
    for name in {one.op for one in calls}:
        resolve(name)


def test_probing_sim_gives_the_profile_it_was_made_from(sim: DeviceProfile) -> None:
    made_from = load_profile("sim")
    assert sim.dtypes == made_from.dtypes
    assert sim.storage_dtypes == made_from.storage_dtypes
    assert {name: (set(lack.dtypes), lack.ranks) for name, lack in sim.lacks.items()} == {
        name: (set(lack.dtypes), lack.ranks) for name, lack in made_from.lacks.items()
    }
    kept = {"lacks", "operators", "basis", "probed", "evidence", "source", "dtypes"}
    left, right = sim.model_dump(exclude=kept), made_from.model_dump(exclude=kept)
    assert left == right


def test_every_line_has_its_evidence(sim: DeviceProfile) -> None:
    assert all(lack.evidence == "probed" and lack.reason for lack in sim.lacks.values())
    assert "Could not run 'aten::topk.values'" in sim.lacks["aten::topk"].reason
    assert all(grant.evidence == "probed" and grant.ran for grant in sim.operators.values())
    assert sim.probed is not None
    assert sim.probed.date == DATE
    assert sim.probed.torch
    assert sim.probed.python
    assert sim.probed.device == load_profile("sim").title
    assert sim.basis["dtypes"].evidence == "probed"
    assert sim.basis["bandwidth_gb_s"].evidence == "static", "nobody measured it"


def test_probed_profile_answers_as_the_device_does(sim: DeviceProfile) -> None:
    support = supports(sim, "aten::mm", ("bfloat16", "bfloat16"), (2, 2))
    assert support.supported
    assert support.evidence == "probed"
    assert not supports(sim, "aten::topk", ("float32",), (2,)).supported


def test_written_profile_loads_and_is_the_same(sim: DeviceProfile, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(profile_yaml(sim), encoding="utf-8")
    assert load_profile(str(path)) == sim
    assert yaml.safe_load(path.read_text())["probed"]["date"] == DATE


@pytest.mark.usefixtures("quick")
def test_a_device_that_falls_back_is_caught_at_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    text = Path(load_profile.__code__.co_filename).with_name("profiles").joinpath("sim.yaml").read_text()
    path.write_text(text.replace("fallback: raise", "fallback: cpu"))
    names = ("aten::topk", "aten::neg", "aten::rsqrt")
    made = _probed(str(path), [one for one in suite() if one.op.startswith(names)])
    assert made.fallback == "cpu"
    assert "aten::neg" not in made.lacks
    assert "fallback" in made.lacks["aten::topk"].reason


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [
        ("tanh", "crashed", "SIGSEGV"),
        ("sin", "crashed", "SIGABRT: terminate called: planted abort"),
        ("sinh", "crashed", "exit code 7"),
        ("cos", "hung", "no answer within 5 s"),
        ("exp", "wrong", "relative error"),
        ("erf", "wrong", "a result of shape"),
    ],
)
def test_planted_kernels_are_recorded(planted: tuple[DeviceProfile, Probed], name: str, status: str, says: str) -> None:
    made, found = planted
    results = [one.result for one in found.calls if one.signature.op == f"aten::{name}"]
    assert results
    assert {one.status for one in results} == {status}
    assert all(says in one.reason for one in results)
    effects = {"crashed": "crashes", "hung": "hangs", "wrong": "wrong"}
    assert made.lacks[f"aten::{name}"].effect == effects[status]
    assert says in made.lacks[f"aten::{name}"].reason


def test_the_worker_is_replaced_and_others_are_not_blamed(planted: tuple[DeviceProfile, Probed]) -> None:
    made, found = planted
    assert found.restarts == sum(one.result.status in ("crashed", "hung") for one in found.calls)
    assert all(one.result.status == "ran" for one in found.calls if one.signature.op == "aten::neg")
    assert "aten::neg" not in made.lacks
    assert call_text(("int64",), (2,)) in made.operators["aten::neg"].ran


def test_order_counts_where_it_was_asked_for(planted: tuple[DeviceProfile, Probed]) -> None:
    ordered, free = (one.result for one in planted[1].calls if one.signature.op == "aten::topk")
    assert ordered.status == "wrong"
    assert free.status == "ran"


def test_nothing_is_left_behind(planted: tuple[DeviceProfile, Probed]) -> None:
    import multiprocessing

    assert planted
    assert not multiprocessing.active_children()


@pytest.mark.usefixtures("quick")
def test_large_calls_are_skipped() -> None:
    base = load_profile("cpu")
    found = probe(base, suite()[:1], ProbeOptions(max_bytes=1, rates=False))
    assert found.calls[0].result.status == "skipped"


@pytest.mark.usefixtures("quick")
def test_device_that_is_not_there_is_the_users_mistake() -> None:
    base = undescribed("xpu", ())
    assert base is not None
    with pytest.raises(Day0Error, match=r"device 'xpu'.*cannot use it here"):
        probe(base, (), QUICK)


@pytest.mark.usefixtures("quick")
def test_import_that_fails_is_told() -> None:
    options = ProbeOptions(imports=("no_such_module_here",), rates=False)
    with pytest.raises(Day0Error, match=r"--import no_such_module_here.*ModuleNotFoundError"):
        probe(load_profile("cpu"), (), options)


@pytest.mark.usefixtures("quick")
def test_worker_that_dies_while_it_opens_is_told(tmp_path: Path) -> None:
    path = tmp_path / "dies.py"
    path.write_text("import os\nos.abort()\n")
    with pytest.raises(Day0Error, match="ends badly: it died of SIGABRT"):
        probe(load_profile("cpu"), (), ProbeOptions(imports=(str(path),), rates=False))


def test_undescribed_devices() -> None:
    made = undescribed("musa", ("torch_musa",))
    assert made is not None
    assert (made.torch_device, made.import_module, made.kernels) == ("musa", "torch_musa", "PrivateUse1")
    assert undescribed("smi", ()) is None
    assert undescribed("../sim", ("x",)) is None
