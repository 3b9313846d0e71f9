"""Prediction over millions of images, on Ray Data: `cnaps predict --engine ray`.

Only the addresses of images travel. Each worker holds the task and reads, decodes and classifies its share, so
any number of machines work at once; the task file (and a model of one's own) must be visible to all of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cnaps.errors import CnapsError, DataError, MissingPackageError, explained
from cnaps.images.decoding import SUFFIXES
from cnaps.images.finding import find_images

_BATCH = 64


class RayPredictor:
    """What a worker holds; for Ray Data's `map_batches`, or any engine that hands over batches of addresses."""

    def __init__(self, task: str, model: str | None = None, top: int = 3) -> None:
        os.environ.setdefault("CNAPS_THREADS", "1")  # there is a worker for each processor
        from cnaps.runtime.taskfile import read_task

        self.fitted, self.top = read_task(task, model), top

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """From a column `path` to the columns `path`, `labels` and `probabilities` (best first) and `error`."""
        from cnaps.runtime.results import Result

        paths = [str(path) for path in batch["path"]]
        rows: list[tuple[Sequence[tuple[str, float]], str]] = [((), "")] * len(paths)

        def on_error(index: int, error: CnapsError) -> None:
            rows[index] = (), str(error).replace("the image", paths[index], 1)

        for where, probabilities in self.fitted.predict(map(_read, paths), on_error):
            for index, each in zip(where, probabilities, strict=True):
                rows[index] = Result.of(paths[index], self.fitted.names, each, self.top).ranking, ""
        return {
            "path": paths,
            "labels": [[label for label, _ in ranking] for ranking, _ in rows],
            "probabilities": [[p for _, p in ranking] for ranking, _ in rows],
            "error": [error for _, error in rows],
        }


def predict_on_ray(
    task: str | Path, sources: Sequence[str], *, model: str | None = None, top: int = 3, workers: int | None = None
) -> Any:
    """A lazy Ray dataset with a row an image (see `RayPredictor`), computed when it is read or written.

    `sources` are files, folders, patterns and lists as for `cnaps predict`, or addresses that fsspec knows, such
    as `s3://bucket/folder`. An existing cluster is used where Ray finds one (RAY_ADDRESS), else this machine.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingPackageError("this engine", "'ray[data]'") from error
    from cnaps.runtime.taskfile import read_task

    read_task(task, model)  # say what is wrong with it once, and here
    paths = list(_addresses(sources))
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    workers = min(workers or int(ray.cluster_resources().get("CPU", 1)), -(-len(paths) // _BATCH))
    rows = ray.data.from_items([{"path": path} for path in paths], override_num_blocks=-(-len(paths) // _BATCH))
    folder = str(Path(model).absolute()) if model and Path(model).is_dir() else model
    return rows.map_batches(
        RayPredictor,
        fn_constructor_args=(str(Path(task).absolute()), folder, top),
        batch_size=_BATCH,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=1,
    )


def write_parts(rows: Any, folder: str | Path) -> None:
    """Write what `predict_on_ray` gives as Parquet files, each by whoever computed it."""
    # predictors hold every processor: a writer that asked for one would wait for ever
    rows.write_parquet(str(Path(folder).absolute()), ray_remote_args={"num_cpus": 0})


def _addresses(sources: Sequence[str]) -> Iterator[str]:
    for source in sources:
        if "://" not in source:
            yield from (str(path.absolute()) for path in find_images([source]))
            continue
        from fsspec.core import url_to_fs

        with explained(DataError, f"cannot list {source}", OSError, ValueError, ImportError):
            system, start = url_to_fs(source)
            inside = sorted(name for name in system.find(start) if Path(name).suffix.lower() in SUFFIXES)
        if not inside:
            raise DataError(f"there are no images at {source}")
        yield from map(system.unstrip_protocol, inside)


def _read(path: str) -> bytes:
    import fsspec

    try:
        with fsspec.open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""  # refused by name, as any other file that is no image
