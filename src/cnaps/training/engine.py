"""The loop of every training: steps, validations, checkpoints, signals, progress."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from cnaps.errors import CheckpointError, CnapsError
from cnaps.progress import progress_bar
from cnaps.training.checkpoint import optimiser_tensors, restore_optimiser
from cnaps.training.distributed import STOP_SIGNALS, World
from cnaps.training.run import RunFolder
from cnaps.weights import current_names

Stopping = Callable[[], bool]


class NonFiniteError(CnapsError):
    """The loss or gradient became infinite or not a number; the text names the task."""


class Job(ABC):
    """What is trained. Everything random in a step is drawn from the seed and the step's number."""

    prefix: str  # of the network's weights in checkpoints
    rule: str  # what makes a model better, see :func:`better`
    steps: int
    validate_every: int  # steps
    fingerprints: dict[str, str]  # of the data that the run depends on

    def __init__(
        self, config: Any, world: World, network: nn.Module, parameters: list[nn.Parameter], optimiser: Any
    ) -> None:
        self.config, self.world, self.network = config, world, network
        self._parameters: list[nn.Parameter] = parameters
        self._optimiser: torch.optim.Optimizer = optimiser
        self._loader: Iterator[Any] | None = None  # what the next steps need, read ahead

    @abstractmethod
    def step(self, step: int, stopping: Stopping) -> dict[str, Any] | None:
        """Do one step on all ranks together; None if a rank was asked to stop, and then nothing changed."""

    @abstractmethod
    def validate(self, stopping: Stopping) -> dict[str, float] | None:
        """Accuracy a validation set; None if a rank was asked to stop."""

    @abstractmethod
    def save_model(self, folder: Path) -> None:
        """Write the model as it would be used."""

    def tensors(self) -> dict[str, Tensor]:
        """Everything that training changes."""
        weights = {self.prefix + name: value for name, value in self.network.state_dict().items()}
        return {**weights, **optimiser_tensors(self._optimiser)}

    def restore(self, tensors: dict[str, Tensor], step: int) -> None:
        """Put it back in place, which keeps every memory layout, as it was after so many steps."""
        own = {name.removeprefix(self.prefix): t for name, t in tensors.items() if name.startswith(self.prefix)}
        self.network.load_state_dict(current_names(own))
        restore_optimiser(self._optimiser, tensors)

    def close(self) -> None:
        """Stop reading ahead."""
        if self._loader is not None:
            self._loader.close()  # type: ignore[attr-defined]
            self._loader = None

    def _clear_gradients(self) -> None:
        for p in self._parameters:
            p.grad = None

    def _update(self, rate: float) -> None:
        """Step with the gradients as they are."""
        for group in self._optimiser.param_groups:
            group["lr"] = rate * group.get("share", 1.0)
        self._optimiser.step()


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


def restore(job: Job, saved: tuple[dict[str, Tensor], dict[str, Any]]) -> State:
    """Put a job where a checkpoint stands."""
    state = State(**{each.name: saved[1][each.name] for each in fields(State)})
    try:
        job.restore(saved[0], state.step)
    except (KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"the checkpoint of step {state.step} does not fit this run: {error}") from error
    return state


def fit(
    job: Job, run: RunFolder | None, saved: tuple[dict[str, Tensor], dict[str, Any]] | None = None
) -> tuple[State, int | None]:
    """Train to the end or until a signal; gives the final state and the signal that ended it, if any.

    ``run`` is None on the ranks that write nothing. ``saved`` is a checkpoint to go on from.
    """
    state = State() if saved is None else restore(job, saved)

    def save() -> None:
        if run is not None:
            run.save(job.tensors(), asdict(state))

    with StopRequest() as stop, progress_bar(visible=job.world.is_main) as bar:
        row = bar.add_task("training", total=job.steps, completed=state.step, note="")
        try:
            while True:
                due = state.step > 0 and (state.step % job.validate_every == 0 or state.step == job.steps)
                if due and state.validated < state.step:
                    bar.update(row, description="validating")
                    if not _validate(job, run, state, stop):
                        break
                    save()
                    bar.update(row, description="training")
                if state.step == job.steps:
                    break
                began = time.monotonic()
                metrics = job.step(state.step, stop)
                if metrics is None:
                    break
                state.step += 1
                seconds = time.monotonic() - began
                if run is not None:
                    speed = {"seconds": round(seconds, 3), "peak_memory_mb": round(peak_memory() / 2**20)}
                    run.log({"kind": "step", "step": state.step, **metrics, **speed})
                note = (
                    f"{metrics['count'] / max(seconds, 1e-9):.2f}/s  loss {metrics['loss']:.3f}  "
                    f"accuracy {metrics['accuracy']:.3f}"
                )
                bar.update(row, completed=state.step, note=note)
                if state.step % job.config.checkpoint_every == 0 and state.step < job.steps:
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
    """Higher accuracy on more than half of the sets (the paper's rule), on at least half, or a higher mean.

    >>> better({"a": 0.5, "b": 0.6, "c": 0.1}, {"a": 0.4, "b": 0.5, "c": 0.9}, "majority")
    True
    """
    if not best:
        return True
    if rule == "mean":
        return sum(new.values()) / len(new) > sum(best.values()) / len(best)
    improved = 2 * sum(new[name] > best[name] for name in new)
    return improved >= len(new) if rule == "half" else improved > len(new)


def _validate(job: Job, run: RunFolder | None, state: State, stop: StopRequest) -> bool:
    began = time.monotonic()
    accuracies = job.validate(stop)
    if accuracies is None:
        return False
    state.validated = state.step
    if not accuracies:
        return True
    improved = better(accuracies, state.best, job.rule)
    if improved:
        state.best, state.best_step = accuracies, state.step
    if run is None:
        return True
    mean = sum(accuracies.values()) / len(accuracies)
    record = {"kind": "validation", "step": state.step, "accuracy": mean, "sets": accuracies}
    run.log({**record, "best": improved, "seconds": round(time.monotonic() - began, 2)})
    sets = "  ".join(f"{name} {value:.3f}" for name, value in accuracies.items())
    note = " (best so far)" if improved else ""
    print(f"step {state.step}: validation accuracy {mean:.4f}{note}  {sets}", file=sys.stderr, flush=True)
    # The checkpoint follows: a crash between the two repeats this validation and writes the same model again.
    if improved:
        job.save_model(run.path / "best")
    run.draw_curves(at_most_every=60)
    return True


def peak_memory() -> int:
    """The most memory used so far in bytes: on the GPU if there is one, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
