"""Memory of `cnaps serve` at 224 pixels, a process at a time: idle, after one photograph, after a burst of them.

python -m benchmarks.serving_memory
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
from PIL import Image

from cnaps import FewShotClassifier

BURST = (32, 7, 16, 32, 1, 32, 5, 32)  # photographs in each of eight requests at once


def photograph(chance: np.random.Generator) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(chance.integers(0, 255, (60, 80, 3), np.uint8)).resize((1600, 1200)).save(buffer, "JPEG")
    return buffer.getvalue()


def processes(pid: int) -> list[int]:
    below = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [pid, *(each for child in below.split() for each in processes(int(child)))]


def show(title: str, pid: int) -> None:
    peaks = []
    for each in processes(pid):
        try:
            found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{each}/status").read_text())
        except OSError:  # `ps` itself
            continue
        peaks.append(int(found[1]) // 1000 if found else 0)
    print(f"{title}: {peaks[0]} MB at most, and beside it {peaks[1:]} MB (a tracker, and those that decode)")


def main() -> None:
    chance = np.random.default_rng(0)
    photographs = [photograph(chance) for _ in range(32)]
    with tempfile.TemporaryDirectory() as folder:
        task = f"{folder}/a.task"
        images = chance.integers(0, 255, (25, 224, 224, 3), np.uint8)
        FewShotClassifier(image_size=224).fit(images, list("abcde") * 5).save(task)
        command = [sys.executable, "-c", "from cnaps.cli import main; main()", "serve", task, "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout
            address = server.stdout.readline().split()[-1]
            try:
                time.sleep(5)
                show("idle", server.pid)

                def ask(count: int) -> None:
                    files = [("files", ("a.jpg", data)) for data in photographs[:count]]
                    httpx.post(f"{address}predict", files=files, timeout=300).raise_for_status()

                ask(1)
                show("one photograph", server.pid)
                with ThreadPoolExecutor(len(BURST)) as clients:
                    list(clients.map(ask, BURST))
                show(f"{sum(BURST)} photographs at once", server.pid)
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
