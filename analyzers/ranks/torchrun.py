"""torchrun in a process of its own: `python -m day0.analyzers.ranks.torchrun FOLDER`.

It is the agent of torch.distributed.run, called as a function: on CPUs ranks are forks of a process that has imported
everything, which saves each of them seconds, and exit codes are kept as data.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from day0.analyzers.ranks.faults import RANK_FAULTS
from day0.analyzers.ranks.setting import RanksSetting
from day0.analyzers.ranks.worker import main as be_a_rank

__all__ = ["main"]


def main(folder: Path) -> int:
    """Start the ranks and wait for them; one that fails ends all, and nothing is started again."""
    with contextlib.suppress(AttributeError, OSError):  # Linux only: end with who asked
        ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
    if os.getppid() == 1:
        return 1  # who asked has gone before we asked to be told
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    setting = RanksSetting.model_validate_json((folder / "setting.json").read_text(encoding="utf-8"))
    # A process that has asked for cards must not be forked, and who imports what may ask.
    forks = setting.profile.torch_device == "cpu"
    if forks:
        _import_all(setting)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=setting.ranks,
        run_id="day0",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="fork" if forks else "spawn",
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "torchrun"), redirects=Std.ALL),
    )
    try:
        elastic_launch(config, entrypoint=be_a_rank)(folder)
    except ChildFailedError as error:
        codes = {str(rank): failure.exitcode for rank, failure in error.failures.items()}
        (folder / "exit_codes.json").write_text(json.dumps(codes), encoding="utf-8")
        return 1
    return 0


def _import_all(setting: RanksSetting) -> None:
    """Import what ranks import when they first need it; nothing is computed, so that there are no threads to lose."""
    importlib.import_module("torch._dynamo")
    if any(not name or not RANK_FAULTS[name].ends for name in setting.scenarios):
        for name in ("torch.distributed.tensor", "transformers.modeling_utils", "transformers.distributed"):
            with contextlib.suppress(ModuleNotFoundError):  # said better by who opens the model
                importlib.import_module(name)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
