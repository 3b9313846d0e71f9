"""What the checks share: how much to try, real pictures, a small model, and the program as a process."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from PIL import Image

from cnaps import CNAPs, ModelConfig, load_model
from cnaps.nn.backbones import register_backbone
from cnaps.runtime.engine import open_engine
from cnaps.runtime.task import Examples, FittedTask

from ..models import small_backbone

os.environ["CNAPS_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
# the server that forks processes finds modules to load ahead by this alone
ROOT = str(Path(__file__).resolve().parents[2])
os.environ["PYTHONPATH"] = os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])


@dataclass(frozen=True)
class Scale:
    """How much is tried."""

    files: int = 10_000
    kills: int = 50  # of each of four kinds
    flips: int = 300  # a file
    mutations: int = 10_000  # a format
    classes: int = 1_000
    context: int = 10_000
    side: int = 20_000
    seconds: int = 60


QUICK = Scale(files=120, kills=3, flips=25, mutations=40, classes=40, context=200, side=20_000, seconds=5)


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    what: str
    tried: str
    happened: str
    ok: bool


BACKBONE = "torture"
register_backbone(BACKBONE, lambda: small_backbone(8, 12, 16))


def small_model(seed: int = 0) -> CNAPs:
    """A model that is quick to save and run; another one for each seed."""
    torch.manual_seed(seed)
    return CNAPs(ModelConfig(BACKBONE, "film+ar", "ridge", embedding_size=8, generator_width=8))


def light_model() -> CNAPs:
    """The model that comes with the package, for images of 32 pixels: the same code at a tenth of the time."""
    model = load_model()
    light = CNAPs(replace(model.config, image_size=32))
    light.load_state_dict(model.state_dict())
    return light


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Handwritten digits, uint8 (1797, 8, 8), and their labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return (data.images * 255 / 16).astype(np.uint8), data.target


@cache
def photographs() -> list[np.ndarray]:
    """Pieces of two photographs, uint8 (H, W, 3)."""
    from sklearn.datasets import load_sample_images

    return [
        image[y : y + 61, x : x + 83]
        for image in load_sample_images().images
        for y in range(0, 300, 100)
        for x in range(0, 500, 100)
    ]


def encoded(image: np.ndarray, kind: str = "PNG") -> bytes:
    """An image as a file of some format."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind)
    return buffer.getvalue()


def small_task(model: CNAPs, classes: int = 3, shift: int = 0) -> FittedTask:
    """Some digits, learned; other images for another shift."""
    images, labels = digits()
    rows = np.concatenate([np.flatnonzero(labels == d)[shift : shift + 5] for d in range(classes)])
    return FittedTask.learn(
        open_engine(model), Examples.read(images[rows], [f"digit {d}" for d in labels[rows]], 32)
    )


def example_folder(folder: Path) -> Path:
    """Two classes of photographs, three examples each."""
    for i, image in enumerate(photographs()[:3] + photographs()[15:18]):
        place = folder / ("china" if i < 3 else "flower")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i}.png").write_bytes(encoded(image))
    return folder


def command(*arguments: object, timeout: float = 3600) -> subprocess.CompletedProcess[str]:
    """Run `cnaps` with the model that comes with it."""
    line = [sys.executable, "-c", "from cnaps.cli import main; main()", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=timeout, errors="replace")


@contextlib.contextmanager
def server(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """`cnaps serve` or `cnaps studio` as a process, and a client for it."""
    line = [sys.executable, "-c", "from cnaps.cli import main; main()", *map(str, arguments), "--port", "0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = re.search(r"http://[^/\s]+", process.stdout.readline())
        assert address, process.stderr and process.stderr.read()
        with httpx.Client(base_url=address[0], timeout=300) as client:
            for _ in range(1200):
                with contextlib.suppress(httpx.TransportError):
                    client.get("/health")
                    break
                time.sleep(0.1)
            yield process, client
        process.terminate()


def memory(pid: int) -> int:
    """Bytes of a process and of those it started."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            status = (folder / "status").read_text()
            if int(folder.name) == pid or re.search(rf"^PPid:\t{pid}$", status, re.M):
                found = re.search(r"^VmRSS:\s+(\d+)", status, re.M)
                total += int(found[1]) * 1024 if found else 0
    return total


_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload([
    *(f"{__package__}.{name}" for name in ("victims", "kills", "broken", "limits")), "cnaps.training.start",
    "cnaps.data.prepare", "accelerate", "sklearn.datasets", "cnaps.training.curves", "cnaps.data.readers",
])  # fmt: skip


def start(function: Any, *arguments: Any) -> BaseProcess:
    """A function in a process of its own, quickly."""
    process = _forks.Process(target=function, args=arguments)
    process.start()
    return process
