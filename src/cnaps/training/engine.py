"""The loop of every training: steps, validations, checkpoints, signals, progress."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch

from cnaps.errors import CnapsError
from cnaps.progress import progress_bar
from cnaps.training.distributed import STOP_SIGNALS, World
from cnaps.training.run import RunFolder


class NonFiniteError(CnapsError):
    """The loss or gradient became infinite or not a number; the text names the task."""


class Job(Protocol):
    """What is trained. Everything random in a step is drawn from the seed and the step's number."""

    steps: int

    def step(self, step: int, stopping: Callable[[], bool]) -> dict[str, Any] | None:
        """Do one step on all ranks together; None if a rank was asked to stop, and then nothing changed."""

    def validate(self, stopping: Callable[[], bool]) -> dict[str, float] | None:
        """Accuracy a validation set; None if a rank was asked to stop."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything that training changes."""

    def restore(self, tensors: dict[str, torch.Tensor], step: int) -> None:
        """Put it back, as it was after so many steps."""

    def save_model(self, folder: Path) -> None:
        """Write the model as it would be used."""


@dataclass
class State:
    """Where a run stands. There is no generator state: draws depend on the seed and a position alone."""

    step: int = 0
    validated: int = 0  # the step of the last validation
    best: dict[str, float] = field(default_factory=dict)  # accuracies of the best model
    best_step: int = 0


class StopRequest:
    """Turns SIGINT and SIGTERM into a flag; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._launcher = int(os.environ.get("CNAPS_LAUNCHER", "0"))

    def __call__(self) -> bool:
        """Whether to stop."""
        if self._launcher and os.getppid() != self._launcher:  # the launcher was killed: nobody waits for us
            self.signal = signal.SIGTERM
        return self.signal is not None

    def __enter__(self) -> StopRequest:
        self._previous: dict[int, Any] = {}
        with contextlib.suppress(ValueError):  # not in the main thread: no handlers there
            self._previous = {number: signal.signal(number, self._note) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number


def fit(
    job: Job,
    world: World,
    run: RunFolder | None,
    *,
    validate_every: int,
    checkpoint_every: int,
    rule: str,
    saved: tuple[dict[str, torch.Tensor], dict[str, Any]] | None = None,
    description: str = "training",
) -> tuple[State, int | None]:
    """Train to the end or until a signal; gives the final state and the signal that ended it, if any.

    ``run`` is None on the ranks that write nothing. ``saved`` is a checkpoint to go on from.
    """
    state = State()
    if saved is not None:
        state = State(**{key: saved[1][key] for key in asdict(state)})
        job.restore(saved[0], state.step)

    def save() -> None:
        if run is not None:
            run.save(job.tensors(), asdict(state))

    with StopRequest() as stop, progress_bar(visible=None if world.is_main else False) as bar:
        row = bar.add_task(description, total=job.steps, completed=state.step, note="")
        try:
            while True:
                due = state.step > 0 and (state.step % validate_every == 0 or state.step == job.steps)
                if due and state.validated < state.step:
                    bar.update(row, description="validating")
                    if not _validate(job, run, state, rule, stop):
                        break
                    save()
                    bar.update(row, description=description)
                if state.step == job.steps:
                    break
                began = time.monotonic()
                metrics = job.step(state.step, stop)
                if metrics is None:
                    break
                state.step += 1
                _report(run, state, metrics, time.monotonic() - began)
                bar.update(row, completed=state.step, note=_note(metrics, time.monotonic() - began))
                if state.step % checkpoint_every == 0 and state.step < job.steps:
                    save()
        except NonFiniteError:
            save()
            raise
        except KeyboardInterrupt:  # asked twice: the last checkpoint stands
            return state, signal.SIGINT
        finished = state.step == job.steps and state.validated == state.step
        if not finished:
            save()
        if run is not None:
            job.save_model(run.path / "last")
            run.draw_curves()
    # Without a signal of its own, this rank stopped because another one was asked to.
    return state, None if finished else stop.signal or signal.SIGTERM


def better(new: dict[str, float], best: dict[str, float], rule: str) -> bool:
    """The paper's rule: higher accuracy on more than half of the sets; or a higher mean.

    >>> better({"a": 0.5, "b": 0.6, "c": 0.1}, {"a": 0.4, "b": 0.5, "c": 0.9}, "majority")
    True
    """
    if not best:
        return True
    if rule == "mean":
        return sum(new.values()) / len(new) > sum(best.values()) / len(best)
    return 2 * sum(new[name] > best[name] for name in new) > len(new)


def _validate(job: Job, run: RunFolder | None, state: State, rule: str, stop: StopRequest) -> bool:
    began = time.monotonic()
    accuracies = job.validate(stop)
    if accuracies is None:
        return False
    state.validated = state.step
    if not accuracies:
        return True
    improved = better(accuracies, state.best, rule)
    if improved:
        state.best, state.best_step = accuracies, state.step
    if run is None:
        return True
    mean = sum(accuracies.values()) / len(accuracies)
    record = {"kind": "validation", "step": state.step, "accuracy": mean, "sets": accuracies}
    run.log({**record, "best": improved, "seconds": round(time.monotonic() - began, 2)})
    print(
        f"step {state.step}: validation accuracy {mean:.4f}{' (best so far)' if improved else ''}  "
        + "  ".join(f"{name} {value:.3f}" for name, value in accuracies.items()),
        file=sys.stderr,
        flush=True,
    )
    # The checkpoint follows: a crash between the two repeats this validation and writes the same model again.
    if improved:
        job.save_model(run.path / "best")
    run.draw_curves(at_most_every=60)
    return True


def _report(run: RunFolder | None, state: State, metrics: dict[str, Any], seconds: float) -> None:
    if run is not None:
        speed = {"seconds": round(seconds, 3), "peak_memory_mb": round(peak_memory() / 2**20)}
        run.log({"kind": "step", "step": state.step, **metrics, **speed})


def _note(metrics: dict[str, Any], seconds: float) -> str:
    return (
        f"{metrics['count'] / max(seconds, 1e-9):.2f}/s  loss {metrics['loss']:.3f}  "
        f"accuracy {metrics['accuracy']:.3f}"
    )


def peak_memory() -> int:
    """The most memory used so far in bytes: on the GPU if there is one, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
