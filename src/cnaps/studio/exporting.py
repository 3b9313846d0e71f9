"""ONNX networks with a program that runs them, and the way back: every file the studio makes, it can read."""

from __future__ import annotations

import base64
import io
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from cnaps.errors import CnapsError, DataError
from cnaps.nn.model import CNAPs
from cnaps.runtime.recogniser import Recogniser
from cnaps.studio.description import read_entry
from cnaps.studio.store import Project

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


def example_zip(recogniser: Recogniser, target: Path, name: str) -> None:
    """A zip file with NAME.onnx, which carries the task file in its metadata, and classify.py."""
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        network, task = Path(scratch) / "network.onnx", Path(scratch) / "task"
        recogniser.export_onnx(network)
        recogniser.save(task)
        import onnx

        model = onnx.load(network)
        model.metadata_props.add(key="task", value=base64.b64encode(task.read_bytes()).decode())
        archive.writestr(f"{name}.onnx", model.SerializeToString())
        archive.writestr("classify.py", _EXAMPLE.format(name=name))


def import_file(project: Project, model: CNAPs, data: bytes) -> dict[str, Any]:
    """Add a project, a task or an ONNX network to a project; what became of it."""
    if data[:2] == b"PK":
        try:
            archive = zipfile.ZipFile(io.BytesIO(data))
        except zipfile.BadZipFile as error:
            raise DataError(f"the zip file is damaged: {error}") from error
        networks = [name for name in archive.namelist() if name.endswith(".onnx")]
        if not networks:
            report = project.read_zip(data, lambda task: len(_read_task(model, task).names))
            refused = f", {len(report['refused'])} could not be used" if report["refused"] else ""
            return {**report, "message": f"{len(report['added'])} images added{refused}"}
        data = read_entry(archive, networks[0], 200_000_000)
    if data[8:9] != b"{":  # where the header of safetensors begins
        data = _task_in_onnx(data)
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
