"""The task file: what a model learned of one task, without the examples.

A safetensors file with FiLM, class statistics and the task embedding; its metadata names the classes, the image
size, the format version and the fingerprint of the model it belongs to, and holds a digest of everything.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cnaps import values
from cnaps.errors import CheckpointError
from cnaps.files import atomic_path, parse_json
from cnaps.nn.adapted import Adapted
from cnaps.nn.checkpoints import list_models
from cnaps.nn.film import Film
from cnaps.nn.heads import Head
from cnaps.nn.model import CNAPs
from cnaps.nn.statistics import RANK, ClassStatistics, in_shared_basis, strongest
from cnaps.runtime.recogniser import ModelSource, Recogniser, open_model

FORMAT, VERSION = "cnaps-task", 2  # 1: scatter without a basis, which is still read


def write_task(path: str | os.PathLike[str], recogniser: Recogniser) -> None:
    """Write a task whole or not at all."""
    adapted, statistics = recogniser.adapted, recogniser.adapted.statistics
    normalisation = adapted.model.backbone.normalisation
    tensors = {
        "film": adapted.film.vector(),
        "counts": statistics.counts,
        "means": statistics.means.float(),
        "task_embedding": adapted.task_embedding,
    }
    if statistics.scatter is not None:
        tensors |= _pack_scatter(adapted.model.head, statistics)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    about: dict[str, Any] = {
        "classes": recogniser.names,
        "image_size": recogniser.image_size,
        "resize": "bilinear to a square",
        "mean": normalisation.mean,
        "std": normalisation.std,
        "seen": adapted.seen,
        "model": recogniser.source,
        "fingerprint": adapted.model.fingerprint(),
    }
    metadata = {"format": FORMAT, "version": str(VERSION), "about": json.dumps(about, ensure_ascii=False)}
    metadata["digest"] = _digest(metadata["about"], tensors)
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata)


@torch.no_grad()
def _pack_scatter(head: Head, statistics: ClassStatistics) -> dict[str, Tensor]:
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
        emphasis = head.emphasis.expand(factors[0].shape[1])
        basis, coordinates = in_shared_basis(
            tuple(rows * emphasis for rows in factors), head.directions(statistics), size, rank
        )
        packed["scatter_basis"], factors = (basis / emphasis).half(), tuple(coordinates)
    rows = torch.cat(factors)
    packed["scatter"] = rows.half() if (rows.abs() < torch.finfo(torch.half).max).all() else rows
    return packed | {"scatter_rows": torch.tensor([len(rows) for rows in factors])}


def read_task(path: str | os.PathLike[str], model: ModelSource | None = None) -> Recogniser:
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
    network, name = open_model(model)
    if network.fingerprint() != fingerprint:
        title = f"the model {name!r}" if name else "the model given"
        raise CheckpointError(
            f"{path} was made with another model: its fingerprint is {fingerprint}"
            f"{f' ({source})' if source else ''}, {title} has {network.fingerprint()}"
        )
    try:
        check_task(about, {name: tensor.numpy() for name, tensor in tensors.items()})
        return _rebuild(network, about, tensors, name)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not describe a task of this model: {error}") from error


def check_task(about: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Everything that can be said against a task without its model."""
    values.class_names(about["classes"])
    values.count(about["image_size"], "the side of images", 1, 2048)
    values.count(about["seen"], "the number of images seen")
    values.check_numbers(tensors, whole=("counts", "scatter_rows"))
    for name in tensors.keys() - {"counts", "scatter_rows"}:
        if tensors[name].dtype.kind != "f":
            raise ValueError(f"{name} holds {tensors[name].dtype}")
    if (tensors["counts"] < 1).any():
        raise ValueError("a class of no images")


def _rebuild(model: CNAPs, about: dict[str, Any], tensors: dict[str, Tensor], source: str) -> Recogniser:
    names, size = about["classes"], about["image_size"]
    ways = len(names)
    widths = model.backbone.channels[1:] if model.config.features == "all" else model.backbone.channels[-1:]
    sites = model.backbone.site_channels if model.adaptation is not None else []
    numbers = 2 * sum(channels for stage in sites for channels in stage)
    for name, shape in (
        ("film", (numbers,)),
        ("counts", (ways,)),
        ("means", (ways, sum(widths))),
        ("task_embedding", (model.config.embedding_size,)),
    ):
        if tensors[name].shape != shape:
            raise ValueError(f"{name} has the shape {tuple(tensors[name].shape)} instead of {shape}")
    if size < model.backbone.min_image_size:
        raise ValueError(f"images of {size} pixels")
    # counts may be of any type, and what is computed with them is not
    kind = {"counts": torch.get_default_dtype()}
    tensors = {name: tensor.to(model.device, kind.get(name)) for name, tensor in tensors.items()}
    scatter = None
    if model.head.needs_scatter:
        rows = tensors["scatter"].to(torch.get_default_dtype())
        if "scatter_basis" in tensors:
            rows = rows @ tensors["scatter_basis"].to(rows.dtype)
        if rows.ndim != 2 or rows.shape[1] != sum(widths):
            raise ValueError(f"scatter has the shape {tuple(rows.shape)}")
        scatter = tuple(rows.split(tensors["scatter_rows"].tolist()))
        if len(scatter) != ways:
            raise ValueError("scatter of other classes")
    adapted = Adapted(
        model,
        Film.from_vector(tensors["film"], sites),
        torch.arange(ways),
        ClassStatistics(tensors["counts"], tensors["means"], scatter),
        tensors["task_embedding"],
        about["seen"],
    )
    return Recogniser(adapted, names, size, source)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        raise CheckpointError(f"there is no task file {path}")
    try:
        # by numpy: torch opens the file a second time, which may by then have been replaced by another
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            tensors = {name: torch.from_numpy(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged or no task file: {error}") from error
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path} is no task file of cnaps")
    if metadata.get("version") not in [str(version) for version in range(1, VERSION + 1)]:
        raise CheckpointError(f"{path} was written by a newer version of cnaps: upgrade to read it")
    if metadata.get("digest") != _digest(metadata.get("about", ""), tensors):
        raise CheckpointError(f"{path} is damaged: its content does not fit its digest")
    try:
        return values.table(parse_json(metadata["about"]), "its description"), tensors
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{path} does not describe a task: {error}") from error


def _digest(about: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(about.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
