"""Run day0 in processes of their own without importing torch for each: one server imports, and forks for every command.

Every command still gets a fresh process, arguments, folder, environment and streams; only the imports are done before,
and what day0 keeps in a process: its own kernels and operators, the CPU's profile, the command line.
A test that is about the start itself (what is imported, how fast) must not use this, nor one that changes a file of ours.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import typer.main

__all__ = ["Server", "close", "run_warm", "server", "shim"]

FOLDERS = ("analyzers", "cli", "converters", "devices", "kernels", "models", "reference_ops", "registry", "reports")
"""Of day0: every module in them is imported once. Nothing happens at import, so a command finds what it would make."""

MODULES = (
    "altair",
    "transformers",
    "transformers.models.auto.modeling_auto",
    "transformers.cache_utils",
    "transformers.masking_utils",
    "transformers.modeling_utils",
    "torch._dynamo",
)
"""Imported once; none of them computes anything, so that no thread is there when the server forks."""

CLIENT = """#!{python} -SE
import array, json, os, socket, sys
link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
link.connect({path!r})
text = json.dumps({{"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}).encode()
link.sendmsg([len(text).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
link.sendall(text)
code = int.from_bytes(link.recv(2), "big")
os._exit(code if code < 256 else 1)
"""


class Server:
    """The process that forks, on a Unix socket in a folder of its own."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="warm-")
        self.path = Path(self.folder.name) / "socket"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self.process = subprocess.Popen([sys.executable, __file__, str(self.path)], env=environment)
        while not self.path.exists():
            if self.process.poll() is not None:
                raise RuntimeError(f"the warm server ended with {self.process.returncode}")
            time.sleep(0.02)

    def close(self) -> None:
        """End the server; commands that still run are ended with it."""
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.folder.cleanup()


_STARTED: list[Server] = []


def server() -> Server:
    """Return the server of this test process, started at the first call."""
    if not _STARTED:
        _STARTED.append(Server())
    return _STARTED[0]


def close() -> None:
    """End the server, if there is one."""
    while _STARTED:
        _STARTED.pop().close()


def run_warm(argv: list[str], *, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `day0 ARGV` and return what it printed and its exit code."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, Path(os.devnull).open("rb") as nothing:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.connect(str(server().path))
            text = json.dumps({"argv": argv, "cwd": str(cwd), "env": env}).encode()
            socket.send_fds(link, [len(text).to_bytes(8, "big")], [nothing.fileno(), out.fileno(), err.fileno()])
            link.sendall(text)
            code = int.from_bytes(link.recv(2), "big")
        found = []
        for stream in (out, err):
            stream.seek(0)
            found.append(stream.read().decode("utf-8", "replace"))
    code = code if code < 256 else 256 - code  # a signal, as subprocess writes it
    return subprocess.CompletedProcess(argv, code, *found)


def shim() -> Path:
    """Return a folder with a program `day0` that asks the server; to be put first on PATH."""
    folder = Path(server().folder.name) / "bin"
    folder.mkdir(exist_ok=True)
    program = folder / "day0"
    program.write_text(CLIENT.format(python=sys.executable, path=str(server().path)))
    program.chmod(0o755)
    return folder


def _serve(path: Path) -> list[str] | None:
    """Fork for every request. Returns the arguments in a child; never in the server."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{path}.new")
    listener.listen(64)
    Path(f"{path}.new").rename(path)
    running: dict[int, socket.socket] = {}
    signal.signal(signal.SIGTERM, lambda *_: _end(running))
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ)
    while True:
        ready = bool(waiting.select(timeout=0.01 if running else 1.0))
        _reap(running)
        if os.getppid() == 1:
            _end(running)
        if not ready:
            continue
        link, _ = listener.accept()
        argv = _fork(link, running)
        if argv is not None:
            listener.close()
            return argv


def _reap(running: dict[int, socket.socket]) -> None:
    for pid, link in list(running.items()):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            with contextlib.suppress(OSError):  # the client may be gone
                link.sendall((code if code >= 0 else 256 - code).to_bytes(2, "big"))
            link.close()
            del running[pid]


def _end(running: dict[int, socket.socket]) -> None:
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _fork(link: socket.socket, running: dict[int, socket.socket]) -> list[str] | None:
    head, descriptors, _, _ = socket.recv_fds(link, 8, 3)
    size, text = int.from_bytes(head, "big"), b""
    while len(text) < size:
        text += link.recv(size - len(text))
    pid = os.fork()
    if pid:
        running[pid] = link
        for descriptor in descriptors:
            os.close(descriptor)
        return None
    link.close()
    for other in running.values():
        other.close()
    asked = json.loads(text)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    argv: list[str] = asked["argv"]
    return argv


def _of_day0() -> list[str]:
    root = Path(__file__).parents[1]
    files = [path.relative_to(root).with_suffix("") for folder in FOLDERS for path in (root / folder).rglob("*.py")]
    return [".".join(("day0", *path.parts)).removesuffix(".__init__") for path in sorted(files)]


def _keep() -> None:
    """Make what day0 keeps in a process once it was asked for, and what every command would make anew."""
    made = cache(typer.main.get_command)
    typer.main.get_command = made
    made(importlib.import_module("day0.cli.app").app)
    importlib.import_module("day0.devices.profile").cpu_profile()
    importlib.import_module("day0.kernels.load").load_implementations()
    importlib.import_module("day0.registry.collect").references()


def _main() -> None:
    # As day0 sets them before it imports transformers.
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    del sys.path[0]  # this folder has one that is called day0
    for name in (*_of_day0(), *MODULES):
        importlib.import_module(name)
    _keep()
    gc.freeze()  # a fork that looks through all of that for cycles would have to copy it
    argv = _serve(Path(sys.argv[1]))
    sys.argv = ["day0", *(argv or [])]
    sys.path.insert(0, str(Path.cwd()))  # as `python -m day0` has it
    code: object = 0
    try:
        importlib.import_module("day0.cli.app").main()
    except SystemExit as ended:
        code = ended.code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))  # taking all modules down costs a second


if __name__ == "__main__":
    _main()
