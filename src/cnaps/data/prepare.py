"""From a publisher's files to a collection: planned, encoded in shards by worker processes, put together.

Every finished shard lies in ``.<name>.preparing`` beside the destination. A preparation that was interrupted
finds its shards there and goes on; the collection itself appears whole, at the end.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from cnaps.data import splits as split_rules
from cnaps.data.archives import open_tree
from cnaps.data.collection import METADATA, Collection, Description, assemble, encoded_batch
from cnaps.data.images import encode, load_image
from cnaps.data.readers import get_reader, readers
from cnaps.data.readers.base import Images, Plan, Reader, Splits
from cnaps.data.readers.folders import read_csv
from cnaps.errors import CnapsError, DataError, InputError
from cnaps.files import atomic_path, write_json
from cnaps.progress import progress_bar
from cnaps.runtime import cpu_count

SHARD_ROWS = 1024


@dataclass(frozen=True)
class Prepared:
    """The outcome: the collection, and whether it had been there already."""

    collection: Collection
    unchanged: bool


def prepare(
    reader_name: str,
    source: str | Path,
    dest: str | Path,
    *,
    size: int = 84,
    name: str | None = None,
    splits: str | None = None,
    seed: int = 0,
    workers: int | None = None,
    strict: bool = False,
    overwrite: bool = False,
) -> Prepared:
    """Make the collection ``dest`` from the files in ``source``.

    ``splits``: "published", "random" (by class, with ``seed``), "train", "valid" or "test" (all classes in
    it), "none", or a JSON file that maps a split to class names. ``strict``: a broken image is an error, where
    otherwise it is counted and listed.
    """
    reader, source, dest = get_reader(reader_name), Path(source).expanduser(), Path(dest).expanduser()
    if not 8 <= size <= 4096:
        raise InputError(f"the size must lie between 8 and 4096 pixels, not {size}")
    scratch = dest.parent / f".{dest.name}.preparing"
    plan = _plan(reader, source, scratch)
    name = name or plan.name or (reader.name if reader.parts else dest.name)
    licence = readers()[name].licence if name in readers() else reader.licence
    about = Description(
        name,
        size,
        plan.classes,
        _splits(plan, name, splits or reader.default_splits, seed),
        plan.hierarchy,
        source=f"{reader.title} ({source.name})",
        licence=licence,
    )
    origin = _origin(about, plan.images)
    if _occupied(dest) and not overwrite:
        found = _existing(dest, origin, strict)
        shutil.rmtree(scratch, ignore_errors=True)
        return Prepared(found, True)
    changed = source.stat()
    _encode_all(
        plan.images, scratch, f"{origin} {changed.st_size} {changed.st_mtime_ns}", size, workers or cpu_count()
    )
    shards = sorted(scratch.glob("*.shard"))
    broken = _broken(shards)
    if strict and broken:
        raise DataError(_complaint(dest, broken))
    assemble(dest, about, _batches(shards), broken, origin)
    shutil.rmtree(scratch, ignore_errors=True)
    return Prepared(Collection.open(dest), False)


def _plan(reader: Reader, source: Path, scratch: Path) -> Plan:
    if reader.name == "folder" and source.suffix.lower() == ".csv":
        return read_csv(source)
    return reader.read(open_tree(source, scratch, [name for part in reader.parts for name in part.patterns]))


def _splits(plan: Plan, name: str, choice: str, seed: int) -> Splits:
    if choice == "none":
        return {}
    if choice in split_rules.SPLITS:
        return {choice: list(range(len(plan.classes)))}
    if choice == "random":
        return split_rules.random_by_class(plan.classes, seed)
    if choice == "published":
        return plan.published() if plan.published else split_rules.published(name, plan.classes)
    if not choice.endswith(".json"):
        raise InputError(f"splits are published, random, train, valid, test, none or a JSON file, not {choice!r}")
    try:
        named = json.loads(Path(choice).read_text(encoding="utf-8"))
        index = {label: position for position, label in enumerate(plan.classes)}
        return {split: sorted(index[label] for label in labels) for split, labels in named.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise DataError(f"cannot read {choice} as {{split: [class names]}}: {error}") from error
    except KeyError as error:
        raise DataError(f"{choice} names the class {error}, which {name} has not") from error


def _origin(about: Description, images: Images) -> str:
    """What the outcome depends on, apart from pixels: of the same origin, a preparation is continued."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(
        json.dumps(
            [about.name, about.size, list(about.classes), about.splits, about.hierarchy, images.counts]
        ).encode()
    )
    for index, count in enumerate(images.counts):
        for position in range(count):
            digest.update(images.key(index, position).encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()


def _occupied(dest: Path) -> bool:
    """Whether a collection is there; anything else that is there is never overwritten."""
    if (dest / METADATA).exists():
        return True
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise DataError(f"{dest} exists and is not a collection; give another destination")
    return False


def _existing(dest: Path, origin: str, strict: bool) -> Collection:
    collection = Collection.open(dest)
    if collection.prepared_from != origin:
        raise DataError(
            f"{dest} was prepared from other files or with other options; "
            "give another destination, or --overwrite it"
        )
    if strict and collection.broken:
        raise DataError(_complaint(dest, collection.broken))
    return collection


def _encode_all(images: Images, scratch: Path, origin: str, size: int, workers: int) -> None:
    """Write the shards that are missing."""
    stamp = scratch / "origin.json"
    if scratch.exists() and (
        not stamp.exists() or stamp.read_text(encoding="utf-8").strip() != json.dumps(origin)
    ):
        for shard in scratch.glob("*.shard"):
            shard.unlink()
    for shard in scratch.glob("*.shard"):
        if _broken([shard]):  # somebody may have mended the images meanwhile
            shard.unlink()
    write_json(stamp, origin)
    total = sum(images.counts)
    starts = range(0, total, SHARD_ROWS)
    missing = [start for start in starts if not _shard(scratch, start).exists()]
    job = _Job(images, scratch, size)
    with progress_bar() as bar:
        row = bar.add_task("preparing", total=total, note="")
        bar.advance(row, sum(min(SHARD_ROWS, total - start) for start in starts if start not in set(missing)))
        for written in _run(job, missing, workers):
            bar.advance(row, written)


def _run(job: _Job, starts: list[int], workers: int) -> Iterator[int]:
    if min(workers, len(starts)) <= 1:
        yield from map(job, starts)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        min(workers, len(starts)), mp_context=context, initializer=_set_job, initargs=(job,)
    ) as pool:
        queue = iter(starts)
        running: set[Future[int]] = {pool.submit(_do, start) for start in itertools.islice(queue, 2 * workers)}
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                    if (start := next(queue, None)) is not None:
                        running.add(pool.submit(_do, start))
        finally:
            for future in running:
                future.cancel()


class _Job:
    """Encodes one shard; sent to each worker once."""

    def __init__(self, images: Images, scratch: Path, size: int) -> None:
        self.images = images
        self.scratch = scratch
        self.size = size
        self.rows = SHARD_ROWS

    def __call__(self, start: int) -> int:
        offsets = np.concatenate([[0], np.cumsum(self.images.counts)])
        rows: list[tuple[int, str, bytes, bytes]] = []
        broken: list[tuple[str, str]] = []
        stop = min(start + self.rows, int(offsets[-1]))
        for global_row in range(start, stop):
            index = int(np.searchsorted(offsets, global_row, side="right")) - 1
            position = global_row - int(offsets[index])
            key = self.images.key(index, position)
            try:
                image = load_image(self.images.load(index, position))
                rows.append((index, key, *encode(image, self.size)))
            except CnapsError as error:
                broken.append((key, str(error)))
        batch = encoded_batch(rows)
        schema = batch.schema.with_metadata({"broken": json.dumps(broken)})
        with (
            atomic_path(_shard(self.scratch, start)) as temporary,
            pa.OSFile(str(temporary), "wb") as sink,
            pa.ipc.new_file(sink, schema) as writer,
        ):
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
        return stop - start


_job: _Job | None = None


def _set_job(job: _Job) -> None:
    global _job
    _job = job
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides; a shard begun is finished
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _do(start: int) -> int:
    assert _job is not None
    return _job(start)


def _shard(scratch: Path, start: int) -> Path:
    return scratch / f"{start:012d}.shard"


def _batches(shards: list[Path]) -> Iterator[pa.RecordBatch]:
    for shard in shards:
        with pa.memory_map(str(shard)) as file:
            yield pa.ipc.open_file(file).get_batch(0)


def _broken(shards: list[Path]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for shard in shards:
        with pa.memory_map(str(shard)) as file:
            found += [tuple(pair) for pair in json.loads(pa.ipc.open_file(file).schema.metadata[b"broken"])]
    return found


def _complaint(dest: Path, broken: Sequence[Sequence[str]]) -> str:
    listed = "; ".join(f"{key}: {reason}" for key, reason in broken[:5])
    return f"{len(broken)} broken images (--strict), so {dest} was not prepared: {listed}"
