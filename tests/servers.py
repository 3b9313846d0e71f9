"""A studio as a process of its own, real pictures, and a browser that looks at it."""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import httpx
import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
DATASETS = ROOT.parent / "shared" / "datasets"
CLASSES = ("sunflower", "panda", "watch", "pizza")


def save_pictures(folder: Path, classes: tuple[str, ...], count: int) -> dict[str, list[Path]]:
    """Photographs in a folder a class; scikit-learn's digits where the photographs are not at hand."""
    found: dict[str, list[Path]] = {}
    if (DATASETS / "caltech101.tar").is_file():
        with tarfile.open(DATASETS / "caltech101.tar") as archive:
            for member in archive.getmembers():
                name = Path(member.name).parent.name
                if name in classes and len(found.setdefault(name, [])) < count:
                    data = archive.extractfile(member)
                    assert data is not None
                    found[name].append(_write(folder / name / Path(member.name).name, data.read()))
    else:
        from sklearn.datasets import load_digits

        digits = load_digits()
        for digit, name in enumerate(classes):
            for i in np.flatnonzero(digits.target == digit)[:count]:
                buffer = io.BytesIO()
                picture = Image.fromarray((digits.images[i] * 15.9).astype(np.uint8)).resize((64, 64))
                picture.save(buffer, "PNG")
                found.setdefault(name, []).append(_write(folder / name / f"{i}.png", buffer.getvalue()))
    return found


def _write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    return save_pictures(tmp_path_factory.mktemp("pictures"), CLASSES, 14)


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory, pictures: dict[str, list[Path]]) -> Path:
    from cnaps import FewShotClassifier

    path = tmp_path_factory.mktemp("task") / "things.safetensors"
    files = [(p, name) for name, paths in pictures.items() for p in paths[:3]]
    FewShotClassifier().fit([p for p, _ in files], [name for _, name in files]).save(path)
    return path


def _free_port() -> int:
    """Below those that the system gives to outgoing connections, so that it is still free after a restart."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 50):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


class Server:
    """`cnaps studio` or `cnaps serve`, started and ended as a user would."""

    def __init__(
        self, *arguments: str, environment: dict[str, str] | None = None, stderr: IO[Any] | None = None
    ) -> None:
        self.arguments, self.stderr = arguments, stderr
        self.environment = {**os.environ, "CNAPS_THREADS": "1", "OMP_NUM_THREADS": "1", **(environment or {})}
        self.port = str(_free_port())
        self.start()

    def start(self) -> None:
        command = [
            sys.executable,
            "-c",
            "from cnaps.cli import main; main()",
            *self.arguments,
            "--port",
            self.port,
        ]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.stderr, text=True, env=self.environment, cwd=ROOT
        )
        assert self.process.stdout is not None
        found, lines = None, []
        while not found and (line := self.process.stdout.readline()):
            lines.append(line)
            found = re.search(r"http://\S+", line)
        assert found, f"no address in {lines!r}"
        self.address = found[0].rstrip("/")
        self.port = self.address.split(":")[2].split("/")[0]
        self.client = httpx.Client(base_url=self.address.split("/?")[0], timeout=60)
        until(self.answers)

    def answers(self) -> bool:
        """Whether it can be asked now."""
        try:
            return self.client.get("/health").is_success
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    # what tests ask for

    def count(self, name: str) -> float:
        """A number from the metrics."""
        lines = self.client.get("/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"cnaps_{name} "))

    def state(self) -> dict[str, Any]:
        return self.client.get("/api/state").json()

    def add(self, place: str, *files: Path | tuple[str, bytes]) -> dict[str, Any]:
        parts = [("files", file if isinstance(file, tuple) else (file.name, file.read_bytes())) for file in files]
        return self.client.post("/api/images", data={"place": place}, files=parts).raise_for_status().json()

    def teach(self, classes: dict[str, list[Path]]) -> dict[str, str]:
        """Make classes with examples; ids by name."""
        ids = {}
        for name, files in classes.items():
            ids[name] = self.client.post("/api/classes", json={"name": name}).json()["id"]
            self.add(ids[name], *files)
        return ids

    def settled(self) -> dict[str, Any]:
        """The state once everything is learned."""
        return until(lambda: (s := self.state())["settled"] and s)


def until(condition: Callable[[], Any], seconds: float = 120) -> Any:
    """What the condition gives, as soon as that is true."""
    for _ in range(int(seconds / 0.1)):
        value = condition()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError("it did not come to pass")


@pytest.fixture
def studio(tmp_path: Path) -> Iterator[Server]:
    server = Server("studio", str(tmp_path / "project"), "--no-browser")
    yield server
    server.kill()


def open_chromium(*flags: str) -> Any:
    """Chromium without a window, with a camera that shows a test picture."""
    from shutil import which

    program, driver = (
        which("chromium") or which("chromium-browser") or which("google-chrome"),
        which("chromedriver"),
    )
    if not program or not driver:
        pytest.skip("needs chromium and chromedriver, which are not here")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in ("--headless=new", "--no-sandbox", "--disable-background-networking",
                 "--window-size=1360,860", "--force-device-scale-factor=1", "--use-fake-device-for-media-stream",
                 "--use-fake-ui-for-media-stream", "--disable-dev-shm-usage", *flags):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options, webdriver.ChromeService(driver))
    chrome.set_page_load_timeout(120)
    return chrome


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One for all tests."""
    chrome = open_chromium("--disable-gpu")
    yield chrome
    chrome.quit()


@pytest.fixture(scope="session")
def screenshots() -> Path:
    """Where pictures of the page go: out/studio, or the folder that CNAPS_SCREENSHOTS names."""
    folder = ROOT / os.environ.get("CNAPS_SCREENSHOTS", "out/studio")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def violations(page: Any) -> list[str]:
    """What axe-core has against the page as it is."""
    import axe_core_python

    source = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    page.browser.execute_cdp_cmd("Runtime.evaluate", {"expression": source})
    run = (
        "axe.run(document, { resultTypes: ['violations'] }).then((found) => found.violations"
        ".flatMap((v) => v.nodes.map((n) => `${v.id}: ${n.html.slice(0, 120)}`)).join('\\n'))"
    )
    answer = page.browser.execute_cdp_cmd(
        "Runtime.evaluate", {"expression": run, "awaitPromise": True, "returnByValue": True}
    )
    return [line for line in answer["result"]["value"].splitlines() if line]
