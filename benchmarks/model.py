"""The model: adapting against a plain forward pass, folding, ONNX, Mahalanobis distances, memory."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from cnaps import CNAPs, ModelConfig
from cnaps.maths.statistics import ClassStatistics
from cnaps.nn.adapted import default_chunk
from cnaps.nn.film import Film
from cnaps.nn.heads import MahalanobisHead
from cnaps.parallel import cpu_count
from cnaps.runtime.engine import open_engine
from cnaps.runtime.export import onnx_bytes
from cnaps.runtime.task import Examples, FittedTask

LITE0 = ModelConfig(
    backbone="efficientnet_lite0",
    head="ridge",
    features="all",
    set_encoder_norm="none",
    set_encoder_size=32,
    generator_width=128,
    spread=True,
)


def best(work: Callable[[], object], repeats: int = 5) -> float:
    """Seconds of the fastest of several runs, after one to warm up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def task(size: int, count: int, ways: int = 10) -> tuple[Tensor, Tensor]:
    images = torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))
    return images.contiguous(memory_format=torch.channels_last), torch.arange(count) % ways


class Separate(nn.Module):
    """FiLM as an operation of its own behind a batch norm: what folding saves."""

    def __init__(self, norm: nn.Module, gamma: Tensor, beta: Tensor) -> None:
        super().__init__()
        self.norm, self.gamma, self.beta = norm, gamma.view(1, -1, 1, 1), beta.view(1, -1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) * self.gamma + self.beta


def separate_network(model: CNAPs, film: Film) -> nn.Module:
    import copy

    backbone = copy.deepcopy(model.backbone)
    for stage, sites, values in zip(backbone.stages, backbone.sites, film.stages, strict=True):
        for name, (gamma, beta) in zip(sites, values, strict=True):
            parent, _, child = name.rpartition(".")
            setattr(stage.get_submodule(parent), child, Separate(stage.get_submodule(name), gamma, beta))
    return backbone


def run_parts(network: nn.Module, parts: Sequence[Tensor]) -> None:
    for part in parts:
        network(part)


@torch.no_grad()
def adapting() -> None:
    for name, config, count in (
        ("resnet18", ModelConfig.preset("reference"), 100),
        ("efficientnet_lite0", LITE0, 100),
        ("efficientnet_lite0", LITE0, 25),
    ):
        model = CNAPs(config)
        images, labels = task(model.image_size, count)
        plain = best(partial(model.backbone, images))
        ours = best(partial(model.adapt, images, labels))
        aim = 1.5 if count == 100 else 1.3
        print(
            f"adapt / plain forward, {name}, {count} images: {ours / plain:.2f} (aim: at most {aim})", flush=True
        )


@torch.no_grad()
def folding() -> None:
    import onnxruntime

    for name, config in (("resnet18", ModelConfig.preset("reference")), ("efficientnet_lite0", LITE0)):
        model = CNAPs(config)
        images, labels = task(model.image_size, 50)
        adapted = model.adapt(images, labels)
        separate = separate_network(model, adapted.film)
        fast = best(partial(adapted.logits, images))
        parts = images.split(default_chunk(images.device))
        slow = best(partial(run_parts, separate, parts))
        print(f"separate norm and FiLM / folded, {name}: {slow / fast:.2f} (aim: at least 1.3)")
        pixels = images.mul(50).add(128).clamp(0, 255).byte().contiguous().numpy()
        fitted = FittedTask.learn(open_engine(model), Examples(pixels, labels.tolist()))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = cpu_count()
        session = onnxruntime.InferenceSession(onnx_bytes(fitted), options)
        other = best(partial(session.run, None, {"images": pixels}))
        print(f"folded / onnxruntime, {name}: {fast / other:.2f} (aim: at most 1.15)")


@torch.no_grad()
def mahalanobis() -> None:
    size, ways, count = 1280, 20, 100
    features, labels = torch.randn(count, size), torch.arange(count) % ways
    targets = torch.randn(100, size)

    def ours() -> Tensor:
        statistics = ClassStatistics.of(features, labels, ways, scatter=True)
        return MahalanobisHead([targets.shape[1]]).classifier(statistics)(targets)

    def explicit() -> Tensor:
        task_covariance, columns = torch.cov(features.T), []
        for k in range(ways):
            own = features[labels == k]
            share = len(own) / (len(own) + 1)
            inverse = torch.linalg.inv(share * torch.cov(own.T) + (1 - share) * task_covariance + torch.eye(size))
            gap = targets - own.mean(0)
            columns.append(-(gap @ inverse * gap).sum(1))
        return torch.stack(columns, 1)

    gap = (ours() - explicit()).abs().max() / explicit().abs().max()
    ratio = best(explicit, 1) / best(ours, 5)
    print(
        f"explicit inverses / ours, mahalanobis: {ratio:.0f} (aim: at least 20), relative gap {gap:.0e}",
        flush=True,
    )


MEMORY = """
import sys, torch
from cnaps import CNAPs, ModelConfig
model = CNAPs(ModelConfig.preset("reference"))
def memory(key):  # in MB; VmHWM is the peak of this process alone, VmRSS what it holds
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith(key))
count = int(sys.argv[1])
with torch.no_grad():
    model.adapt(torch.zeros(4, 3, 84, 84), torch.arange(4) % 2)  # what every process pays once
    idle = memory("VmRSS")
    images = torch.randn(count, 3, 84, 84).contiguous(memory_format=torch.channels_last)
    model.adapt(images, torch.arange(count) % 20)
print(memory("VmHWM") - idle)
"""


def memory() -> None:
    for count in (100, 500, 2000):
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, str(count)], capture_output=True, text=True, check=True
        )
        print(f"peak memory above idle, {count} images (with them): {float(done.stdout):.0f} MB")


def main() -> None:
    adapting()
    folding()
    mahalanobis()
    memory()
