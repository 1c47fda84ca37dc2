"""The process of one rank, as torchrun starts it.

Shape suffixes: B batch, S tokens.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import resource
import signal
import sys
import time
import traceback
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn

from day0.analyzers.modules.choices import Choice, Place
from day0.analyzers.modules.passes import Pass, token_calls
from day0.analyzers.parallel import cut_model
from day0.analyzers.ranks.board import RankBoard
from day0.analyzers.ranks.collective_calls import CollectiveWatch
from day0.analyzers.ranks.collectives import check_collectives
from day0.analyzers.ranks.faults import RANK_FAULTS, planted_in_rank
from day0.analyzers.ranks.lock import implementations_of
from day0.analyzers.ranks.memory import held_bytes, measure_step
from day0.analyzers.ranks.passes import Followed, Generated, Rank, follow, generate, time_steps
from day0.analyzers.ranks.reference import Reference, make_reference, read_reference, write_reference
from day0.analyzers.ranks.setting import LEAVING, LOST, Facts, RanksSetting, backend_of
from day0.analyzers.resident import peak_resident
from day0.devices.open import open_torch_device
from day0.models.source import open_model
from day0.models.spec import ModelSpec
from day0.models.workload import token_ids
from day0.records import RankResult
from day0.registry.dispatch import activate

__all__ = ["main"]

PROMPT_SEED = 2
OTHERS_S = 3.0
"""What torchrun gets to see which rank is gone, before those end that lost it; it then ends them at once."""
SHORT = 4
"""Lines of a message that leave room for where it was raised."""
NOT_FOLLOWED = Followed(metrics={}, logits={}, first_divergent="", divergence="", wrong_choices={})


def main(folder: Path) -> None:
    """Be one rank, from the environment that torchrun gives."""
    number = int(os.environ["RANK"])
    board = _settle(folder, number)
    with _Telling():
        _serve(folder, number, board)


class _Telling:
    """Writes the traceback of what ends the rank into its log: torchrun keeps it elsewhere."""

    def __enter__(self) -> None:
        """Nothing to begin."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            traceback.print_exception(error)
            _say_again(error)
            sys.stderr.flush()
            if LOST.search(str(error)):
                # torchrun names one rank that failed: the one that was lost has to be the first that it sees.
                time.sleep(OTHERS_S)


def _say_again(error: BaseException) -> None:
    """Put where and what at the end of a log whose last lines a long message would fill: those are all that is read."""
    lines = traceback.format_exception_only(error)
    said = "".join(lines).strip().splitlines()
    if len(said) > SHORT:
        last = traceback.extract_tb(error.__traceback__)[-1:]
        sys.stderr.write("".join(traceback.format_list(last)) + f"{said[0]}\n")


def _serve(folder: Path, number: int, board: RankBoard) -> None:
    setting = RanksSetting.model_validate_json((folder / "setting.json").read_text(encoding="utf-8"))
    board.phase("meeting the other ranks", setting.step_s)
    device = _device_of(setting, int(os.environ["LOCAL_RANK"]))
    # All ranks are on this machine, whose own name need not lead anywhere.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    own = device if device.type == "cuda" else None
    # Whoever watches ends a wait sooner, and knows for whom it was.
    dist.init_process_group(backend_of(device.type), timeout=timedelta(hours=1), device_id=own)
    work = _Work(folder=folder, setting=setting, number=number, device=device, board=board)
    for place, name in enumerate(setting.scenarios):
        facts = work.run(name)
        part = folder / f"facts-{place}-{number}.part"
        part.write_text(facts.model_dump_json(), encoding="utf-8")
        part.rename(part.with_suffix(".json"))
    board.phase(LEAVING, setting.step_s)
    dist.destroy_process_group()


def _settle(folder: Path, number: int) -> RankBoard:
    """Make the process one that may die: it ends with torchrun, and writes into a file of its own."""
    board = RankBoard(folder / f"board-{number}")
    board.begin()
    with contextlib.suppress(AttributeError, OSError):  # Linux only
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    log = os.open(folder / f"log-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # Streams of its own: those of the process it was forked from may belong to somebody else.
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115 - for good
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115 - for good
    # Asked for by whoever watches, before a rank that hangs is ended: where does it stand?
    faulthandler.register(signal.SIGUSR1, file=log, all_threads=False)
    torch.set_num_threads(1)
    return board


def _device_of(setting: RanksSetting, local: int) -> torch.device:
    device = open_torch_device(setting.profile)
    if device.type == "cpu":
        return device
    getattr(torch, device.type).set_device(local)
    return torch.device(device.type, local)


@dataclass(kw_only=True)
class _Work:
    folder: Path
    setting: RanksSetting
    number: int
    device: torch.device
    board: RankBoard

    def run(self, name: str) -> Facts:
        """Run everything once, with a fault or without."""
        setting = self.setting
        ends = bool(name) and RANK_FAULTS[name].ends
        model = None if ends else self.rank.model  # one that ends a rank does so before there is a model
        with self._standing_in(), planted_in_rank(name, self.number, setting.ranks, model) as planted:
            self.board.phase("collectives", setting.step_s)
            with self.watch:
                collectives = check_collectives(self.device, setting.repeats)
            result = RankResult(rank=self.number, status="done", phase="done", collectives=collectives)
            return self._with_model(result, name).model_copy(update={"planted_calls": planted.calls})

    def _standing_in(self) -> AbstractContextManager[object]:
        """Let what was chosen for operators of ours that the device lacks run in their place."""
        setting = self.setting
        if setting.lock is None:
            return contextlib.nullcontext()
        return activate(setting.lock, self.device, implementations_of(setting.register_))

    def _with_model(self, result: RankResult, name: str) -> Facts:
        rank = self.rank
        followed, generated = self._compared()
        metrics = {
            **followed.metrics,
            **({} if name else self._measured()),  # how quick something wrong is says nothing
            "weight_bytes": float(held_bytes(rank.model)),
            "plan_bytes": float(rank.cut.info.parameter_bytes if rank.cut else held_bytes(rank.model)),
            "max_rss_bytes": float(peak_resident()),
        }
        if generated.unexplained is not None:
            metrics["unexplained_tokens"] = float(generated.unexplained)
        self._write_choices(generated.choices, name)
        done = result.model_copy(
            update={
                "metrics": dict(sorted(metrics.items())),
                "first_divergent": followed.first_divergent,
                "divergence": followed.divergence,
                "tokens": generated.tokens,
            }
        )
        plan = rank.cut.info.plan if rank.cut else {}
        return Facts(result=done, logits=followed.logits, wrong_choices=followed.wrong_choices, plan=plan)

    def _compared(self) -> tuple[Followed, Generated]:
        """Run with the golden's choices and with the rank's own; without a golden the latter alone."""
        rank, setting = self.rank, self.setting
        with self.watch:
            followed, reference = NOT_FOLLOWED, None
            if not setting.time_only:
                self.board.phase("module by module", setting.step_s)
                reference = self.reference
                followed = follow(rank, self.calls, reference)
            self.board.phase("generating", setting.step_s)
            return followed, generate(rank, self.prompt_BS, setting.new_tokens, reference)

    def _measured(self) -> dict[str, float]:
        """Return times, and memory where the device counts it."""
        rank, setting = self.rank, self.setting
        self.board.phase("measuring memory", setting.step_s)
        memory = measure_step(rank.model, self._ids_BS.to(rank.device), rank.device)
        found = {}
        if memory is not None:
            found = {"step_bytes": memory.step, "other_bytes": memory.other, "allocated_bytes": memory.allocated}
        self.board.phase("timing", setting.step_s)
        return {
            **{name: float(size) for name, size in found.items()},
            **time_steps(rank, self.prompt_BS, setting.repeats, self.watch),
        }

    def _write_choices(self, choices: dict[Place, Choice], name: str) -> None:
        place = self.setting.scenarios.index(name)
        # Numbered, since the file does not keep their order.
        tensors = {
            f"{order}|{path}|{number}": one.chosen.to(torch.int64).clone()
            for order, ((path, number), one) in enumerate(choices.items())
        }
        save_file(tensors, self.folder / f"choices-{place}-{self.number}.safetensors")

    @cached_property
    def watch(self) -> CollectiveWatch:
        limits = {"collective_s": self.setting.collective_s, "step_s": self.setting.step_s}
        return CollectiveWatch(self.board, self.device, **limits)

    @cached_property
    def calls(self) -> Pass:
        """A prompt and the token after it."""
        return token_calls(self._ids_BS)

    @property
    def prompt_BS(self) -> torch.Tensor:
        return self._ids_BS[:, :-1].contiguous()

    @cached_property
    def _ids_BS(self) -> torch.Tensor:
        return token_ids(self._spec, 1, self.setting.prompt_tokens + 1, seed=PROMPT_SEED)

    @cached_property
    def _spec(self) -> ModelSpec:
        self.board.phase("opening the model", self.setting.step_s)
        return open_model(self.setting.model)

    @cached_property
    def rank(self) -> Rank:
        """The model, cut: parameters go to the device as they are cut, the rest follows."""
        setting, spec = self.setting, self._spec
        self.board.phase("cutting the model", setting.step_s)
        model = (self._drawn(spec) if setting.time_only else spec.build("cpu")).eval()
        cut = None
        if setting.ranks > 1:
            cut = cut_model(
                model,
                setting.ranks,
                spec.source,
                device_type=self.device.type,
                whole_experts=setting.whole_experts,
            )
        return Rank(number=self.number, size=setting.ranks, device=self.device, model=model.to(self.device), cut=cut)

    def _drawn(self, spec: ModelSpec) -> nn.Module:
        """Build where the model will run, all of it before it is cut: the weights are the same on all ranks."""
        return spec.draw(str(self.device)) if spec.draw is not None else spec.build("cpu")

    @cached_property
    def reference(self) -> Reference:
        """The model as a whole; rank 0 runs it, the others wait for what it writes."""
        self.board.phase("the reference on the CPU", 10 * self.setting.step_s)
        if self.number:
            return read_reference(self.folder)
        made = make_reference(self._spec, self.calls, self.prompt_BS, self.setting.new_tokens)
        write_reference(made, self.folder)
        return made
