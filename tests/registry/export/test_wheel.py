"""The wheel: the same bytes for the same lock, installable, and nothing but the standard library when it is loaded."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from day0 import __version__
from day0.codec import body_hash
from day0.registry.collect import collect
from day0.registry.export.adapters import choose_adapter
from day0.registry.export.plan import Options, make_plan
from day0.registry.export.wheel import Payload, write_wheel
from tests.registry.export.conftest import Made, lock_of, write

OPERATORS = ("day0::rms_norm", "day0::gated_activation")


def test_one_lock_gives_one_wheel_wherever_and_whenever(make: Callable[..., Made], tmp_path: Path) -> None:
    first, second = (write(make(*OPERATORS), tmp_path / name) for name in ("a", "b"))
    assert first.path.name == second.path.name
    assert first.path.read_bytes() == second.path.read_bytes()
    with zipfile.ZipFile(first.path) as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    other = write(make("day0::rms_norm"), tmp_path / "c")
    assert other.path.name != first.path.name


def test_record_and_manifest_have_the_hash_of_every_file(make: Callable[..., Made], tmp_path: Path) -> None:
    made = make(*OPERATORS)
    wheel = write(made, tmp_path)
    with zipfile.ZipFile(wheel.path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    record = next(name for name in files if name.endswith("/RECORD"))
    rows = {name: (digest, size) for name, digest, size in csv.reader(files[record].decode().splitlines())}
    assert set(rows) == set(files)
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert rows[name] == (("", "") if name == record else (f"sha256={digest}", str(len(data))))
    manifest = json.loads(files[f"{wheel.package}/MANIFEST.json"])
    inside = {name.partition("/")[2] for name in files if name.startswith(f"{wheel.package}/")}
    assert set(manifest["files"]) == inside - {"MANIFEST.json"}
    assert manifest["lock"] == made.digest
    assert [entry["file"] for entry in manifest["entries"]] == ["with/0_my kernels.py"] * 2
    assert str(tmp_path) not in json.dumps({**manifest, "receipts": ""}), "a path of this machine is in the manifest"
    assert f"Requires-Dist: day0=={__version__}\n" in files[f"{record.removesuffix('RECORD')}METADATA"].decode()


def test_what_a_package_brought_is_required_and_not_carried(kernels: Path, tmp_path: Path) -> None:
    lock = lock_of(kernels, "day0::rms_norm", distribution="their-kernels==1.2")
    plan = make_plan(lock, collect((kernels,)), choose_adapter("vllm"), Options(allow_unverified=True))
    payload = Payload(lock_text="{}", lock_hash=body_hash(lock), receipts="r", dispatch_key="", tested_shapes={})
    wheel = write_wheel(plan, payload, tmp_path)
    assert wheel.requires == (f"day0=={__version__}", "their-kernels==1.2")
    with zipfile.ZipFile(wheel.path) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert "Requires-Dist: their-kernels==1.2\n" in metadata
    assert not any("/with/" in name for name in names)


def test_pip_installs_it_and_loading_it_needs_the_standard_library_only(
    make: Callable[..., Made], tmp_path: Path
) -> None:
    wheel = write(make(*OPERATORS), tmp_path / "dist")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "--target", str(site), str(wheel.path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # -S: without site-packages there is no torch and no day0. -I: nor anything of the working folder.
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from importlib.metadata import entry_points\n"
        "points = entry_points(group='vllm.general_plugins')\n"
        "print([(one.name, one.load().__name__) for one in points])\n"
        "print(sorted(name for name in sys.modules if name.partition('.')[0] in ('day0', 'torch', 'vllm')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, str(site)],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    assert done.stdout == "[('day0_vllm_base', 'register')]\n[]\n", done.stderr
