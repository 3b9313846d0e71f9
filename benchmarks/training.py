"""Meta-training against the plain procedure, and two processes against one.

The plain procedure does what published code does: it runs the context a second time through the adapted
network, keeps images contiguous, applies FiLM as an operation of its own and loads a task when it is needed.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.episodes import photographs
from cnaps.episodes import load_task
from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.backbones.base import MapMean
from cnaps.nn.model import CNAPs
from cnaps.parallel import cpu_count
from cnaps.training.config import TrainConfig
from cnaps.training.distributed import World
from cnaps.training.episodic import EpisodicJob
from cnaps.training.settings import build
from cnaps.training.start import build_model

STEPS = 3


def main() -> None:
    """Print one line a measurement."""
    with tempfile.TemporaryDirectory() as folder:
        collection = photographs(Path(folder))
        settings: dict[str, Any] = {
            "data": {"train": [f"{collection.path}:all"]},
            "init": {"backbone": "random"},
            "model": {"preset": "reference"},
            "tasks": {"total": 4 * (STEPS + 1), "per_step": 4, "ways": 10, "shots": 6, "targets": 5},
            "tensorboard": False,
        }
        for backbone in ("resnet18", "efficientnet_lite0"):
            model = {**settings["model"], "backbone": backbone}
            ratio, apart = against_plain({**settings, "model": model})
            print(f"{backbone}: tasks a second against the plain procedure: {ratio:.2f} x (aim: 1.6 x)")
            print(f"  gradients differ by {apart:.1e} of their norm (aim: below 1e-3)")
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(settings))
        one, two = (tasks_a_second(config, Path(folder) / f"run{n}", n) for n in (1, 2))
        print(f"2 processes against 1 on {cpu_count()} threads in total: {two / one:.2f} x the tasks a second")


def against_plain(settings: dict[str, Any]) -> tuple[float, float]:
    """How much faster a step is, and how far the gradients of the first one lie apart."""
    config = build(TrainConfig, settings)
    job = EpisodicJob(build_model(config), config, World(device="cpu"))
    plain = PlainProcedure(job)
    apart = 0.0
    own_times: list[float] = []
    plain_times: list[float] = []
    for step in range(STEPS + 1):  # in turns, so that both see the same machine; the first one warms up
        own_times.append(_seconds(partial(job.step, step, lambda: False)))
        plain_times.append(_seconds(partial(plain.step, step)))
        if step == 0:
            own_gradient, plain_gradient = _gradient(job.model), _gradient(plain.model)
            apart = float((own_gradient - plain_gradient).norm() / plain_gradient.norm())
    job.close()
    # All steps are of the same size: the fastest of each is the one that nothing disturbed.
    return min(plain_times[1:]) / min(own_times[1:]), apart


class PlainProcedure:
    """The same tasks, weights, loss and optimiser, without what makes training fast here."""

    def __init__(self, job: EpisodicJob) -> None:
        self.job = job
        model = copy.deepcopy(job.model)
        assert isinstance(model, CNAPs)
        for value in model.parameters():
            value.data = value.data.contiguous()
        self.model = model
        self.model.train()
        self.optimiser = torch.optim.Adam(self.model.phi_parameters(), lr=5e-4)

    def step(self, step: int) -> None:
        """Load, run, update."""
        indices = self.job._indices(step)
        self.optimiser.zero_grad()
        for index in indices:
            task = load_task(self.job._stream[index], self.job._collections, self.job.size)
            context, targets = (self._normalise(i) for i in (task.context_images, task.target_images))
            loss = F.cross_entropy(self._logits(context, task.context_labels, targets), task.target_labels)
            (loss / len(indices) + 0.001 / len(indices) * self.model.regularization()).backward()
        self.optimiser.step()

    def _logits(self, context: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
        model, adaptation = self.model, self.model.adaptation
        encoder = model.set_encoder
        assert adaptation is not None
        assert encoder is not None
        maps = context
        for conv, norm in zip(encoder.convs, encoder.norms, strict=True):
            maps = F.batch_norm(
                conv(maps), None, None, norm.get_parameter("weight"), norm.get_parameter("bias"), training=True
            )
            maps = F.max_pool2d(F.relu(maps), 2)
        embedding = MapMean()(maps).mean(0)
        film: list[Any] = []
        maps = model.backbone.stem(context)
        for number in range(len(model.backbone.stages)):
            film.append(adaptation.stage_film(number, embedding, MapMean()(maps), labels))
            maps = self._stage(number, film[number], maps)
        features = self._features(context, film)  # the second time
        statistics = ClassStatistics.of(features, labels, int(labels.max()) + 1, scatter=False)
        return model.head.classifier(statistics)(self._features(targets, film))

    def _features(self, images: Tensor, film: list[Any]) -> Tensor:
        maps = self.model.backbone.stem(images)
        for number, parameters in enumerate(film):
            maps = self._stage(number, parameters, maps)
        return MapMean()(maps)

    def _stage(self, number: int, film: Any, maps: Tensor) -> Tensor:
        stage, sites = self.model.backbone.stages[number], self.model.backbone.sites[number]
        with _filmed(stage, sites, film):
            return stage(maps)

    @staticmethod
    def _normalise(pixels: Tensor) -> Tensor:
        return (pixels.contiguous().float() - 127.5) / 127.5


@contextlib.contextmanager
def _filmed(stage: nn.Module, sites: list[str], film: Any) -> Iterator[None]:
    def scale_and_shift(gamma: Tensor, beta: Tensor) -> Callable[..., Tensor]:
        return lambda _, __, output: output * gamma[:, None, None] + beta[:, None, None]

    norms = [stage.get_submodule(name) for name in sites]
    hooks = [n.register_forward_hook(scale_and_shift(*f)) for n, f in zip(norms, film, strict=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def tasks_a_second(config: Path, run: Path, processes: int) -> float:
    """The rate of the real command, without the first step; the threads are shared out."""
    arguments = ["train", str(config), "--run", str(run), "--device", "cpu", "--processes", str(processes)]
    threads = str(max(1, cpu_count() // processes))
    environment = {**os.environ, "CNAPS_THREADS": threads, "OMP_NUM_THREADS": threads}
    program = [sys.executable, "-c", "from cnaps.cli import main; main()"]
    subprocess.run([*program, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][1:]
    return max(r["count"] / r["seconds"] for r in records if r["kind"] == "step")


def _gradient(model: nn.Module) -> Tensor:
    return torch.cat(
        [
            (torch.zeros_like(p) if p.grad is None else p.grad).flatten()
            for p in model.parameters()
            if p.requires_grad
        ]
    )


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
