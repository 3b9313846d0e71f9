"""ONNX networks with a program that runs them, and the way back: every file the studio makes, it can read."""

from __future__ import annotations

import base64
import multiprocessing
import signal
import tempfile
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import IO, Any

from cnaps.errors import CnapsError, DataError
from cnaps.nn.model import CNAPs
from cnaps.runtime.recogniser import Recogniser
from cnaps.studio.archive import open_zip, read_zip
from cnaps.studio.description import MAX_TASK
from cnaps.studio.store import Project

_ONE, _PATIENCE = threading.Lock(), 120.0  # seconds
_NETWORK = 300_000_000  # bytes of an ONNX network with a task in it
_EXAMPLE = '''"""Classify images: python classify.py photo.jpg ...   (pip install onnxruntime pillow numpy)"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

session = onnxruntime.InferenceSession(Path(__file__).parent / "{name}.onnx")
about = session.get_modelmeta().custom_metadata_map
size, classes = int(about["image_size"]), json.loads(about["classes"])

for path in sys.argv[1:]:
    image = Image.open(path).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image).transpose(2, 0, 1)[None]  # uint8 (1, 3, size, size)
    (probabilities,) = session.run(None, {{"images": pixels}})
    best = int(probabilities[0].argmax())
    print(f"{{path}}: {{classes[best]}} ({{probabilities[0][best]:.0%}})")
'''


def example_zip(recogniser: Recogniser, model: str, target: Path, name: str) -> None:
    """A zip file with NAME.onnx, which carries the task file in its metadata, and classify.py."""
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        network, task = Path(scratch) / "network.onnx", Path(scratch) / "task"
        recogniser.save(task)
        _apart(_write_network, task, model, network)
        archive.write(network, f"{name}.onnx")
        archive.writestr("classify.py", _EXAMPLE.format(name=name))


def _apart(function: Callable[..., None], *arguments: Any) -> None:
    """Run it in a process of its own, and one at a time: torch's exporter changes torch while it works."""
    if not _ONE.acquire(timeout=_PATIENCE):
        raise CnapsError("other networks are being exported: try again in a while")
    try:
        context = multiprocessing.get_context("spawn")
        ignore = (signal.SIGINT, signal.SIG_IGN)
        with ProcessPoolExecutor(1, context, initializer=signal.signal, initargs=ignore) as pool:
            pool.submit(function, *arguments).result()
    except BrokenProcessPool as error:
        raise CnapsError("the export broke down: is there enough memory?") from error
    finally:
        _ONE.release()


def _write_network(task: Path, model: str, target: Path) -> None:
    import onnx

    Recogniser.load(task, model).export_onnx(target)
    network = onnx.load(target)
    network.metadata_props.add(key="task", value=base64.b64encode(task.read_bytes()).decode())
    onnx.save(network, target)


def import_file(project: Project, model: CNAPs, file: IO[bytes]) -> dict[str, Any]:
    """Add a project, a task or an ONNX network to a project, as one change; what became of it."""
    file.seek(0)
    if file.read(2) == b"PK":
        with open_zip(file) as archive:
            networks = [name for name in archive.names if name.endswith(".onnx")]
            data = archive.read(networks[0], _NETWORK) if networks else b""
        if not networks:
            report = read_zip(project, file, lambda task: len(_read_task(model, task).names))
            refused = f", {len(report['refused'])} could not be used" if report["refused"] else ""
            return {**report, "message": f"{len(report['added'])} images added{refused}"}
    else:
        file.seek(0)
        data = file.read(_NETWORK + 1)
        if len(data) > _NETWORK:
            raise DataError("the file is too large for a task or a network")
    if data[8:9] != b"{":  # where the header of safetensors begins
        data = _task_in_onnx(data)
    if len(data) > MAX_TASK:
        raise DataError(f"its task file has more than {MAX_TASK // 1_000_000} MB")
    recogniser = _read_task(model, data)
    counts = recogniser.adapted.statistics.counts.tolist()
    learned = {str(name): (row, round(counts[row])) for row, name in enumerate(recogniser.names)}
    project.import_task(data, learned)
    return {"message": f"{len(learned)} classes added that were learned elsewhere"}


def _read_task(model: CNAPs, data: bytes) -> Recogniser:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "task"
        path.write_bytes(data)
        try:
            return Recogniser.load(path, model)
        except CnapsError as error:
            raise DataError(str(error).replace(str(path), "the file")) from error


def _task_in_onnx(data: bytes) -> bytes:
    import onnx

    try:
        properties = onnx.load_model_from_string(data).metadata_props
        (task,) = (entry.value for entry in properties if entry.key == "task")
        return base64.b64decode(task, validate=True)
    except Exception as error:  # a parser of foreign bytes raises almost anything
        raise DataError("this is no project, task or ONNX file made by the studio") from error
