"""What the studio hands out beside task files: an ONNX network with a program that runs it."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

from cnaps.recogniser import Recogniser

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
    """A zip file with NAME.onnx and classify.py."""
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        path = Path(scratch) / "network.onnx"
        recogniser.export_onnx(path)
        archive.write(path, f"{name}.onnx")
        archive.writestr("classify.py", _EXAMPLE.format(name=name))
