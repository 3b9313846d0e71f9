"""Whether a file is whole, told without the package's own readers: bytes, JSON and hashes alone."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

# of safetensors: bytes of a number, and what torch calls it
TYPES = {
    "F64": (8, "torch.float64"), "F32": (4, "torch.float32"), "F16": (2, "torch.float16"),
    "I64": (8, "torch.int64"), "I32": (4, "torch.int32"), "U8": (1, "torch.uint8"), "BOOL": (1, "torch.bool"),
}  # fmt: skip


def safetensors(path: Path) -> tuple[dict[str, str], dict[str, tuple[str, list[int], bytes]]]:
    """Metadata, and type, shape and bytes of each tensor; anything that does not add up is an error."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8:start])
    metadata = header.pop("__metadata__", {})
    tensors, held = {}, 0
    for name, about in header.items():
        first, last = about["data_offsets"]
        assert last - first == TYPES[about["dtype"]][0] * math.prod(about["shape"]), f"{name} has another size"
        tensors[name] = (TYPES[about["dtype"]][1], about["shape"], data[start + first : start + last])
        held += last - first
    assert start + held == len(data), f"{path} is cut short or has too much"
    return metadata, tensors


def whole_task(path: Path) -> str:
    """The digest of a task file that fits its content."""
    metadata, tensors = safetensors(path)
    digest = hashlib.sha256(metadata["about"].encode())
    for name, (kind, shape, content) in sorted(tensors.items()):
        digest.update(f"{name} {kind} {tuple(shape)}".encode() + content)
    assert metadata["digest"] == digest.hexdigest(), f"{path} does not fit its digest"
    return metadata["digest"]


def whole_model(folder: Path) -> str:
    """The digest of a model folder that fits both of its files."""
    config = json.loads((folder / "config.json").read_text())
    noted = config.pop("digest")
    weights = (folder / "model.safetensors").read_bytes()
    found = hashlib.sha256(json.dumps(config, sort_keys=True).encode() + weights).hexdigest()
    assert noted == found, f"{folder} does not fit its digest"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    return noted


def whole_checkpoint(path: Path) -> int:
    """The step of a checkpoint that fits its digest."""
    metadata, tensors = safetensors(path)
    digest = hashlib.sha256(metadata["state"].encode())
    for name, (_, _, content) in sorted(tensors.items()):
        digest.update(name.encode() + content)
    assert metadata["digest"] == digest.hexdigest(), f"{path} does not fit its digest"
    return json.loads(metadata["state"])["step"]


def whole_collection(folder: Path) -> int:
    """The number of images of a collection that fits its digests."""
    held = json.loads((folder / "collection.json").read_text())
    noted = held.pop("digest")
    assert noted == hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest(), (
        "its description differs"
    )
    images = (folder / "images.arrow").read_bytes()
    assert held["images_digest"] == hashlib.sha256(images).hexdigest(), "its images differ"
    return sum(held["counts"])


def whole_project(folder: Path) -> dict[str, str]:
    """The place of each image of a project, whose files are what their names say."""
    about = json.loads((folder / "project.json").read_text())
    for image in about["images"]:
        content = (folder / "images" / image["id"]).read_bytes()
        assert hashlib.blake2b(content, digest_size=16).hexdigest() == image["id"], "an image differs"
    return {image["id"]: image["place"] for image in about["images"]}
