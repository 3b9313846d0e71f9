"""What an installation without torch costs: its size, its start, learning and predicting against onnxruntime.

Sizes are absolute; times are of one run on whatever machine this is, and worth comparing only with each other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

from cnaps.parallel import thread_count
from cnaps.runtime.engine import Support, open_engine
from cnaps.runtime.export import onnx_bytes
from cnaps.runtime.task import Examples, FittedTask
from cnaps.weights import DEFAULT_MODEL

ROOT = Path(__file__).parent.parent


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        _installed(Path(name))
    _speed()


def _installed(folder: Path) -> None:
    """Wheels fetched, bytes on disk and times from start to exit, in an environment of its own."""
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip: list[str | Path] = [folder / "venv/bin/python", "-m", "pip", "-qq", "--disable-pip-version-check"]
    empty = _size(folder / "venv")
    subprocess.run([*pip, "wheel", "-c", ROOT / "constraints.txt", "-w", folder / "wheels", ROOT], check=True)
    wheels = list((folder / "wheels").glob("*.whl"))
    subprocess.run([*pip, "install", "--no-index", "--no-deps", *wheels], check=True)
    print(f"fetched {_size(folder / 'wheels') / 1e6:.0f} MB in {len(wheels)} files")
    print(f"installed {(_size(folder / 'venv') - empty) / 1e6:.0f} MB")
    chance = np.random.default_rng(0)
    for i in range(125):
        place = folder / (f"examples/{i % 5}" if i < 25 else "images")
        place.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(chance.integers(0, 256, (12, 16, 3), np.uint8))
        coarse.resize((640, 480)).save(place / f"{i}.jpg")
    python, cnaps = folder / "venv/bin/python", folder / "venv/bin/cnaps"
    for title, command in (
        ("python alone", [python, "-c", ""]),
        ("import cnaps", [python, "-c", "import cnaps"]),
        ("cnaps --help", [cnaps, "--help"]),
        ("cnaps classify, 25 examples, 100 photographs", [cnaps, "classify", "examples", "images"]),
    ):
        seconds = best(partial(subprocess.run, command, cwd=folder, capture_output=True, check=True))
        print(f"{title}: {seconds:.2f} s")


def _speed() -> None:
    """Learning and predicting against a frozen pass and against the exported file, at two sizes."""
    engine = open_engine(DEFAULT_MODEL)
    for size in (96, 224):
        pixels = np.random.default_rng(0).integers(0, 256, (100, 3, size, size), np.uint8)
        some = pixels[:25]
        task = FittedTask.learn(engine, Examples(some, [str(i % 5) for i in range(25)]))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = thread_count()
        session = onnxruntime.InferenceSession(onnx_bytes(task), options)
        frozen = engine.frozen()
        support = Support(some, np.arange(25) % 5, 5)
        learning, passing = best(lambda: engine.adapt(support)), best(lambda: frozen(some))  # noqa: B023
        predicting = best(lambda: task.probabilities(task.features(pixels)))  # noqa: B023
        exported = best(lambda: session.run(None, {"images": pixels}))  # noqa: B023
        print(f"{size} px: learning 25 examples / a frozen pass over them {learning / passing:.2f}", end="; ")
        print(f"predicting / the exported file {predicting / exported:.2f}")


def best(work: Callable[[], object], times: int = 5) -> float:
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _size(folder: Path) -> int:
    return sum(os.lstat(path).st_size for path in folder.rglob("*") if path.is_file() or path.is_symlink())


if __name__ == "__main__":
    main()
