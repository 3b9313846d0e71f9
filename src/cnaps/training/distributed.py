"""One process or many: who does which task, and how their sums meet.

Ranks are set up by accelerate (gloo on CPUs, nccl on GPUs) from what ``--processes``, ``torchrun`` or
``accelerate launch`` put into the environment. The model is not wrapped in DistributedDataParallel: a rank
runs several tasks a step and some parameters may take no part in a task, so one explicit sum after a rank's
last task is simpler, sends every gradient once a step, and is the same for 1 to N ranks.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from cnaps.errors import CnapsError, InputError
from cnaps.nn.devices import configure_threads, pick_device
from cnaps.parallel import cpu_count


class World:
    """The processes of a run.

    >>> world = World(device="cpu")
    >>> world.share(range(4))
    [0, 1, 2, 3]
    """

    def __init__(self, *, device: str = "auto", precision: str = "no") -> None:
        from accelerate import Accelerator

        try:
            self._accelerator: Any = Accelerator(cpu=pick_device(device).type == "cpu", mixed_precision=precision)
        except RuntimeError as error:
            raise CnapsError(f"the processes of this run could not connect: {error}") from error
        configure_threads()
        self.device: torch.device = self._accelerator.device
        self.rank: int = self._accelerator.process_index
        self.size: int = self._accelerator.num_processes
        if precision != "no" and self.device.type == "cpu":
            raise InputError("memory.precision: mixed precision needs a GPU; use precision = 'no' on a CPU")

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and draws progress."""
        return self.rank == 0

    def share(self, items: Iterable[int]) -> list[int]:
        """This rank's part of the items: position modulo the number of ranks, whatever that number is."""
        return [item for position, item in enumerate(items) if position % self.size == self.rank]

    def autocast(self) -> Any:
        """The context of mixed precision; does nothing in full precision."""
        return self._accelerator.autocast()

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, the same bits on each of them."""
        if self.size == 1:
            return values
        try:
            return self._accelerator.reduce(values, reduction="sum")
        except RuntimeError as error:  # a peer is gone: its own message says why
            raise CnapsError("another process of this run ended; continue with --resume") from error

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Replace the gradients of every rank by their sum: one flat vector, one exchange."""
        if self.size == 1:
            return
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = self.sum(torch.cat([grad.reshape(-1) for grad in grads]))
        for p, grad, part in zip(parameters, grads, flat.split([g.numel() for g in grads]), strict=True):
            grad.copy_(part.view(grad.shape))
            p.grad = grad

    def average_(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace tensors by their mean over ranks (running statistics, which each rank saw a part of)."""
        if self.size > 1:
            for tensor in tensors:
                tensor.copy_(self.sum(tensor.clone()) / self.size)

    def wait(self) -> None:
        """Go on when every rank has come here."""
        try:
            self._accelerator.wait_for_everyone()
        except RuntimeError as error:
            raise CnapsError("another process of this run ended; see its message") from error

    def close(self) -> None:
        """Leave the group of processes."""
        if self.size > 1:
            self._accelerator.end_training()
            if dist.is_initialized():
                dist.destroy_process_group()


def launch(processes: int) -> int:
    """Run this very command again as so many local ranks, sharing the processors; gives the exit code.

    torchrun's own agent does it: the first rank that fails ends the others; SIGINT and SIGTERM are handed on.
    """
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    threads = str(int(os.environ.get("CNAPS_THREADS", "0")) or max(1, cpu_count() // processes))
    os.environ.update(CNAPS_THREADS=threads, OMP_NUM_THREADS=threads, CNAPS_LAUNCHER=str(os.getpid()))
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # the rank that failed has said why
    options = torchrun.parse_args(["--standalone", f"--nproc-per-node={processes}", "--no-python", sys.executable])
    options.training_script_args = sys.orig_argv[1:]  # not parsed, since it would take --run for one of its own
    try:
        torchrun.run(options)
    except SignalException as error:
        return 128 + error.sigval
    except ChildFailedError as error:
        return max(1, error.get_first_failure()[1].exitcode)
    return 0


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
