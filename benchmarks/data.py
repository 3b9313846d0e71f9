"""A collection of a million images: how long it takes to open, how much memory, how fast its rows are read."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from cnaps.data.collection import BATCH_ROWS, Description, assemble, encoded_batch
from cnaps.images.decoding import encode, load_image

IMAGES, CLASSES, SIDE = 1_000_000, 1_000, 28

# In a process of its own, where nothing else has been loaded yet.
MEASURE = """
import sys, time
import numpy as np, torch
from cnaps.data.collection import Collection

def resident():
    lines = open("/proc/self/status").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssFile"))) / 1024

before, start = resident(), time.perf_counter()
collection = Collection.open(sys.argv[1])
opened, memory = time.perf_counter() - start, resident() - before
rows = np.random.default_rng(0).integers(0, len(collection), 500)
collection.read(rows, 84)  # the threads are started once
start = time.perf_counter()
collection.read(np.random.default_rng(1).integers(0, len(collection), 500), 84)
print(len(collection), opened, memory, time.perf_counter() - start)
"""


def main() -> None:
    """Print one line a measurement, each against its aim."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "million"
        assemble(path, Description("million", SIDE, [f"class {index}" for index in range(CLASSES)]), shards())
        megabytes = (path / "images.arrow").stat().st_size / 2**20
        done = subprocess.run([sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=True)
        images, opened, memory, read = map(float, done.stdout.split())
    print(
        f"{images:,.0f} images ({megabytes:.0f} MB) open in {opened:.3f} s, {1 / opened:.0f} x as fast as the aim"
    )
    print(f"opening them takes {memory:.1f} MB of memory, {memory / megabytes:.1%} of their size")
    print(f"500 of them, anywhere, are read in {read:.3f} s, {0.3 / read:.1f} x as fast as the aim")


def shards() -> Iterator[pa.RecordBatch]:
    """Noisy drawings; the same few, under new names."""
    generator = np.random.default_rng(0)
    drawings = [
        encode(load_image(generator.integers(0, 256, (SIDE, SIDE), dtype=np.uint8)), SIDE) for _ in range(64)
    ]
    for start in range(0, IMAGES, BATCH_ROWS):
        rows = range(start, min(start + BATCH_ROWS, IMAGES))
        yield encoded_batch([(row * CLASSES // IMAGES, f"image {row}", *drawings[row % 64]) for row in rows])


if __name__ == "__main__":
    main()
