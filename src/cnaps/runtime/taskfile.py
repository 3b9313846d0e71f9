"""The task file: what a model learned of one task, without the examples.

A safetensors file with FiLM, class statistics and the task embedding; its metadata names the classes, the image
size, the format version and the fingerprint of the model it belongs to, and holds a digest of everything.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from cnaps import values
from cnaps.errors import CheckpointError, explained
from cnaps.files import atomic_path, parse_json
from cnaps.maths.heads import Head
from cnaps.maths.statistics import RANK, ClassStatistics, in_shared_basis, strongest
from cnaps.runtime.engine import Engine, open_engine
from cnaps.runtime.task import Fits, FittedTask
from cnaps.weights import list_models

FORMAT, VERSION = "cnaps-task", 4  # 1: scatter without a basis; 2: no class weights; 3: no ease; all are read
_DAMAGED = (SafetensorError, OSError, ValueError, TypeError, AttributeError, KeyError)
_NONSENSE = (KeyError, TypeError, ValueError)


def write_task(path: str | os.PathLike[str], task: FittedTask) -> None:
    """Write a task whole or not at all."""
    data = task_bytes(task)
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def task_bytes(task: FittedTask) -> bytes:
    """The file that `write_task` writes."""
    task = task.compact()
    statistics, (mean, std) = task.statistics, task.engine.normalisation
    tensors = {
        "film": task.film,
        "counts": statistics.counts,
        "means": statistics.means.astype(np.float32),
        "task_embedding": task.embedding,
    }
    if statistics.scatter is not None:
        tensors |= pack_scatter(task.engine.head, statistics)
    if task.fits is not None:
        tensors |= {"fits": task.fits.values, "fit_classes": task.fits.labels.astype(np.float32)}
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    about: dict[str, Any] = {
        "classes": task.names,
        "image_size": task.image_size,
        "resize": "bilinear to a square",
        "mean": mean,
        "std": std,
        "seen": task.seen,
        "model": task.engine.name,
        "fingerprint": task.engine.fingerprint,
    }
    if task.calibration:
        about["calibration"] = task.calibration
    if task.threshold is not None:
        about["threshold"] = task.threshold
    if task.prior is not None:
        about["prior"] = task.prior.tolist()
    if task.ease is not None:
        about["ease"] = task.ease.tolist()
    oldest = 2 if task.prior is None else 3
    version = oldest if task.ease is None else VERSION  # the oldest that says the same
    metadata = {"format": FORMAT, "version": str(version), "about": json.dumps(about, ensure_ascii=False)}
    metadata["digest"] = _digest(metadata["about"], tensors)
    return save(tensors, metadata)


def pack_scatter(head: Head, statistics: ClassStatistics) -> dict[str, np.ndarray]:
    """The bulk of such a file, bounded however many examples there were, in half precision.

    Many rows are written in a basis that all classes share. What the classifier depends on now is in it exactly;
    the rest is for later updates.
    """
    assert statistics.scatter is not None
    factors = tuple(strongest(rows, len(rows)) for rows in statistics.scatter)
    ways, total, size = len(factors), sum(map(len, factors)), 2 * len(factors) + 80
    packed = {}
    if min(total, factors[0].shape[1]) > size:
        rank = min(RANK, max(16, 800 // ways))
        emphasis = head.emphasis(factors[0])
        basis, coordinates = in_shared_basis(
            tuple(rows * emphasis for rows in factors), head.directions(statistics), size, rank
        )
        packed["scatter_basis"], factors = (basis / emphasis).astype(np.float16), tuple(coordinates)
    rows = np.concatenate(factors)
    packed["scatter"] = rows.astype(np.float16) if (np.abs(rows) < np.finfo(np.float16).max).all() else rows
    return packed | {"scatter_rows": np.array([len(rows) for rows in factors])}


def unpack_scatter(packed: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    """What `pack_scatter` wrote."""
    rows, sizes = packed["scatter"].astype(np.float32), packed["scatter_rows"].tolist()
    if "scatter_basis" in packed:
        rows = rows @ packed["scatter_basis"].astype(np.float32)
    if sum(sizes) != len(rows):
        raise ValueError("scatter of other classes")
    return tuple(np.split(rows, np.cumsum(sizes)[:-1]))


def read_task(path: str | os.PathLike[str], model: Any = None) -> FittedTask:
    """Read a task; refused where it is damaged, newer than this program or of another model."""
    path = Path(path)
    about, tensors = _read(path)
    source, fingerprint = str(about.get("model", "")), str(about.get("fingerprint"))[:40]
    if model is None:
        # only a name: a file from elsewhere does not get to say which folder is read
        if source not in list_models():
            raise CheckpointError(
                f"{path} belongs to a model that does not come with this package "
                f"(fingerprint {fingerprint}): say which, by model= or --model"
            )
        model = source
    engine = open_engine(model)
    if engine.fingerprint != fingerprint:
        title = f"the model {engine.name!r}" if engine.name else "the model given"
        raise CheckpointError(
            f"{path} was made with another model: its fingerprint is {fingerprint}"
            f"{f' ({source})' if source else ''}, {title} has {engine.fingerprint}; "
            "learn again from the examples with this one: cnaps fit EXAMPLES FILE.task"
        )
    with explained(CheckpointError, f"{path} does not describe a task of this model", *_NONSENSE):
        check_task(about, tensors)
        return _rebuild(engine, about, tensors)


def check_file(path: str | os.PathLike[str]) -> None:
    """Refuse a task file that is damaged or makes no sense, whichever model it belongs to."""
    about, tensors = _read(Path(path))
    with explained(CheckpointError, f"{path} does not describe a task", *_NONSENSE):
        check_task(about, tensors)


def versions_in(path: str | os.PathLike[str]) -> dict[str, str]:
    """Which task and which model a file says it is: from its head alone, so it may be damaged further on."""
    with explained(CheckpointError, f"{path} is damaged or no task file", *_DAMAGED):
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
        about = values.table(parse_json(metadata["about"]), "its description")
    short = {"task": metadata.get("digest"), "model": about.get("model"), "fingerprint": about.get("fingerprint")}
    return {key: str(value or "")[:40] for key, value in short.items()}


def check_task(about: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Everything that can be said against a task without its model."""
    values.class_names(about["classes"])
    values.count(about["image_size"], "the side of images", 1, 2048)
    values.count(about["seen"], "the number of images seen")
    values.check_numbers(tensors, whole=("scatter_rows",))
    for name in tensors.keys() - {"counts", "scatter_rows"}:
        if tensors[name].dtype.kind != "f":
            raise ValueError(f"{name} holds {tensors[name].dtype}")
    values.number(about.get("calibration", 0.0), "the calibration", -3, 3)
    if about.get("threshold") is not None:
        values.number(about["threshold"], "the threshold", 0, 2)
    if "fits" in tensors:
        fits, of = tensors["fits"], tensors.get("fit_classes", np.zeros(len(tensors["fits"])))
        if fits.ndim != 1 or not ((fits >= 0) & (fits <= 1)).all():
            raise ValueError("fits of examples that are no probabilities")
        if of.shape != fits.shape or not np.isin(of, np.arange(len(about["classes"]))).all():
            raise ValueError("fits of examples of other classes")
    if (tensors["counts"] <= 0).any():
        raise ValueError("a class of no images")
    for key, what in (("prior", "the logarithm of a class's weight"), ("ease", "the ease of a class")):
        for value in values.items(about.get(key, []), what):
            values.number(value, what, -100, 100)
        if about.get(key) is not None and len(about[key]) != len(about["classes"]):
            raise ValueError(f"{key} of other classes")


def _rebuild(engine: Engine, about: dict[str, Any], tensors: dict[str, np.ndarray]) -> FittedTask:
    names, head = about["classes"], engine.head
    ways, width = len(names), sum(head.groups)
    for name, shape in (
        ("film", (engine.film_numbers,)),
        ("counts", (ways,)),
        ("means", (ways, width)),
        ("task_embedding", (engine.embedding_size,)),
    ):
        if tensors[name].shape != shape:
            raise ValueError(f"{name} has the shape {tensors[name].shape} instead of {shape}")
    scatter = None
    if head.needs_scatter:
        scatter = unpack_scatter(tensors)
        if len(scatter) != ways:
            raise ValueError("scatter of other classes")
        if scatter[0].ndim != 2 or scatter[0].shape[1] != width:
            raise ValueError(f"scatter has the shape {scatter[0].shape}")
    # counts may be of any type, and what is computed with them is not
    statistics = ClassStatistics(tensors["counts"].astype(np.float32), tensors["means"], scatter)
    size = engine.check_size(about["image_size"])
    embedding = tensors["task_embedding"].astype(np.float64)
    film = tensors["film"].astype(np.float32)
    prior, ease = (np.array(about[key], np.float64) if key in about else None for key in ("prior", "ease"))
    fits = None  # files of earlier versions do not say of which class examples were, so they say nothing here
    if "fit_classes" in tensors:
        fits = Fits(tensors["fits"].astype(np.float64), tensors["fit_classes"].astype(np.int64))
    more = about.get("threshold"), about.get("calibration", 0.0), prior, fits, ease
    return FittedTask(engine, names, film, statistics, embedding, about["seen"], size, *more)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    if not path.is_file():
        raise CheckpointError(f"there is no task file {path}")
    damaged = explained(CheckpointError, f"{path} is damaged or no task file", *_DAMAGED)
    with damaged, safe_open(path, "np") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path} is no task file of cnaps")
    if metadata.get("version") not in [str(version) for version in range(1, VERSION + 1)]:
        raise CheckpointError(f"{path} was written by a newer version of cnaps: upgrade to read it")
    if metadata.get("digest") != _digest(metadata.get("about", ""), tensors):
        raise CheckpointError(f"{path} is damaged: its content does not fit its digest")
    with explained(CheckpointError, f"{path} does not describe a task", *_NONSENSE):
        return values.table(parse_json(metadata["about"]), "its description"), tensors


def _digest(about: str, tensors: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256(about.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} torch.{tensor.dtype} {tensor.shape}".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()
