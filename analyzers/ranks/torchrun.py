"""torchrun in a process of its own: `python -m day0.analyzers.ranks.torchrun FOLDER RANKS`.

It is torch.distributed.run itself; what is added is that exit codes of ranks are kept as data.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import signal
import sys
from pathlib import Path

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

__all__ = ["main"]


def main(folder: Path, ranks: int) -> int:
    """Start the ranks and wait for them; one that fails ends all, and nothing is started again."""
    with contextlib.suppress(AttributeError, OSError):  # Linux only: end with who asked
        ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
    arguments = (
        *("--nnodes", "1", "--nproc-per-node", str(ranks), "--max-restarts", "0", "--monitor-interval", "0.1"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"),
        *("--log-dir", str(folder / "torchrun"), "--redirects", "3"),
        *("--module", "day0.analyzers.ranks.worker", str(folder)),
    )
    try:
        run.run(run.parse_args(list(arguments)))
    except ChildFailedError as error:
        codes = {str(rank): failure.exitcode for rank, failure in error.failures.items()}
        (folder / "exit_codes.json").write_text(json.dumps(codes), encoding="utf-8")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), int(sys.argv[2])))
