"""What every test may rely on: one thread per worker, a plain terminal, no network, a run folder of its own."""

from __future__ import annotations

import gc
import ipaddress
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
import typer.testing
from hypothesis import settings

from tests import warm


def pytest_configure(config: pytest.Config) -> None:
    """Set what must stand before torch is imported, and take the clock out of hypothesis."""
    if hasattr(config, "workerinput"):  # an xdist worker: the workers share the cores already
        os.environ["OMP_NUM_THREADS"] = "1"
        os.environ["MKL_NUM_THREADS"] = "1"
    # A shell that runs the tests in the background lets them ignore interrupts, and with them all that they start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.register_profile("day0", deadline=None, print_blob=True)
    settings.load_profile("day0")


@pytest.fixture(scope="session", autouse=True)
def sim_before_backward() -> None:
    """Open the simulated device before any test runs a backward pass: torch's engine counts the devices at its first."""
    from day0.devices.profile import load_profile  # here, since it imports torch: see pytest_configure
    from day0.devices.sim.device import open_sim

    open_sim(load_profile("null"))


@pytest.fixture(scope="session", autouse=True)
def one_command_line() -> Iterator[None]:
    """Build the command line once for all that call it in this process: that takes longer than most of what is called."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield


def pytest_collection_finish() -> None:
    """Take all that was imported out of the collector's sight: a test that collects looked through millions of objects."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """End the server that forks commands, where a test started it."""
    warm.close()


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every test the same terminal, whatever the machine's is: no colour, 120 columns."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test that talks to another machine: day0 never downloads."""
    for owner, name in ((socket.socket, "connect"), (socket.socket, "connect_ex"), (socket, "getaddrinfo")):
        monkeypatch.setattr(owner, name, _local_only(getattr(owner, name)))


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a run folder that does not exist yet; its parent is the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs" / "test"


def _local_only(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        # connect(self, address) with a path or a tuple; getaddrinfo(host, port)
        address = args[1] if args and isinstance(args[0], socket.socket) else args[0]
        host = address[0] if isinstance(address, tuple) else address
        unix = isinstance(args[0], socket.socket) and args[0].family == socket.AF_UNIX
        if not unix and not _is_local(host):
            pytest.fail(f"a test tried to reach {host!r}; tests run without a network")
        return function(*args, **kwargs)

    return call


def _is_local(host: object) -> bool:
    text = host.decode() if isinstance(host, bytes) else str(host or "localhost")
    if text in ("localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False
