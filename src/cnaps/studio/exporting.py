"""ONNX networks with a program that runs them, and the way back: every file the studio makes, it can read."""

from __future__ import annotations

import base64
import tempfile
import zipfile
from pathlib import Path
from typing import IO, Any

from cnaps.errors import CnapsError, DataError
from cnaps.runtime.engine import Engine
from cnaps.runtime.export import onnx_bytes
from cnaps.runtime.onnx import read_metadata
from cnaps.runtime.task import FittedTask
from cnaps.runtime.taskfile import read_task, task_bytes
from cnaps.serving.pages import find_site, write_page
from cnaps.studio.archive import open_zip, read_zip
from cnaps.studio.description import MAX_TASK
from cnaps.studio.store import Project

_NETWORK = 300_000_000  # bytes of an ONNX network with a task in it
_EXAMPLE = '''"""Classify images: python classify.py photo.jpg ...   (pip install onnxruntime pillow numpy)"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(Path(__file__).parent / "{name}.onnx")
about = session.get_modelmeta().custom_metadata_map
classes, threshold = json.loads(about["classes"]), float(about.get("threshold", "inf"))

for path in sys.argv[1:]:
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")  # upright
    pixels = np.asarray(image).transpose(2, 0, 1)[None]  # uint8 (1, 3, height, width), of any size
    probabilities, novelty = session.run(None, {{"images": pixels}})
    best = int(probabilities[0].argmax())
    doubt = ", but it is unlike all of them" if novelty[0] > threshold else ""
    print(f"{{path}}: {{classes[best]}} ({{probabilities[0][best]:.0%}}){{doubt}}")
'''


def example_zip(task: FittedTask, target: IO[bytes], name: str) -> None:
    """A zip file with NAME.onnx, which carries the task file in its metadata, and classify.py."""
    network = onnx_bytes(task, {"task": base64.b64encode(task_bytes(task)).decode()})
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.onnx", network)
        archive.writestr("classify.py", _EXAMPLE.format(name=name))


def page_zip(task: FittedTask, target: IO[bytes], name: str) -> None:
    """A zip file with a folder for any web space: a page that classifies in the visitor's browser."""
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        write_page(task, Path(scratch))
        for path in sorted(Path(scratch).rglob("*")):
            archive.write(path, f"{name}/{path.relative_to(scratch)}")


def has_pages() -> bool:
    """Whether such pages can be made here: they are built with npm."""
    try:
        return bool(find_site())
    except CnapsError:
        return False


def import_file(project: Project, model: Engine, file: IO[bytes]) -> dict[str, Any]:
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
    task = _read_task(model, data)
    counts = task.statistics.counts.tolist()
    learned = {str(name): (row, round(counts[row])) for row, name in enumerate(task.names)}
    project.import_task(data, learned)
    return {"message": f"{len(learned)} classes added that were learned elsewhere"}


def _read_task(model: Engine, data: bytes) -> FittedTask:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "task"
        path.write_bytes(data)
        try:
            return read_task(path, model)
        except CnapsError as error:
            raise DataError(str(error).replace(str(path), "the file")) from error


def _task_in_onnx(data: bytes) -> bytes:
    try:
        return base64.b64decode(read_metadata(data)["task"], validate=True)
    except (KeyError, ValueError, IndexError) as error:
        raise DataError("this is no project, task or ONNX file made by the studio") from error
