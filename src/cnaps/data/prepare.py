"""From a publisher's files to a collection: listed, encoded in shards by worker processes, put together.

Every finished shard lies in ``.<name>.preparing`` beside the destination. A preparation that was interrupted
finds its shards there and goes on; the collection itself appears whole, at the end.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from cnaps.data import splits as split_rules
from cnaps.data.collection import IMAGES, METADATA, Collection, Description, assemble, encoded_batch
from cnaps.data.readers import READERS, get_reader
from cnaps.data.readers.base import Item, Listing, Splits
from cnaps.data.readers.folders import add_wordnet, read_csv
from cnaps.errors import CnapsError, DataError, InputError
from cnaps.files import atomic_path, check_output, read_json, write_text
from cnaps.images.archives import open_tree
from cnaps.images.decoding import encode, load_image
from cnaps.parallel import cpu_count
from cnaps.progress import progress_bar

SHARD_ROWS = 1024


@dataclass(frozen=True)
class Prepared:
    """The outcome: the collection, and whether it had been there already."""

    collection: Collection
    unchanged: bool


@dataclass(frozen=True)
class Options:
    """How a collection is made."""

    size: int = 84  # images are shrunk to at most so many pixels a side
    name: str | None = None
    # "published", "random" (by class, with `seed`), "train", "valid" or "test" (all classes in it), "none", or a
    # JSON file that maps a split to class names
    splits: str | None = None
    seed: int = 0
    wordnet: str | Path | None = None  # the folder of wordnet.is_a.txt and words.txt, for ImageNet's split
    workers: int | None = None
    strict: bool = False  # a broken image is an error, where otherwise it is counted and listed
    overwrite: bool = False

    def __post_init__(self) -> None:
        if not 8 <= self.size <= 4096:
            raise InputError(f"the size must lie between 8 and 4096 pixels, not {self.size}")


def prepare(reader_name: str, source: str | Path, dest: str | Path, **options: Any) -> Prepared:
    """Make the collection ``dest`` from the files in ``source``; `options` are the fields of `Options`."""
    how = Options(**options)
    reader, source, dest = get_reader(reader_name), Path(source).expanduser(), Path(dest).expanduser()
    # other data sets may well lie in one folder with the collections that are made of them
    check_output(dest, inputs=[source] if reader.name == "folder" else [], folder=(METADATA, IMAGES))
    scratch = dest.parent / f".{dest.name}.preparing"
    if reader.name == "folder" and source.suffix.lower() == ".csv":
        listing = read_csv(source)
    else:
        listing = reader.read(
            open_tree(source, scratch, [name for part in reader.parts for name in part.patterns])
        )
    if how.wordnet is not None:
        found = [Path(how.wordnet).expanduser() / file for file in ("wordnet.is_a.txt", "words.txt")]
        add_wordnet(listing, *found, nodes=reader.name == "ilsvrc_2012")
    name = how.name or listing.name or (reader.name if reader.parts else dest.name)
    about = Description(
        name,
        how.size,
        listing.classes,
        _splits(listing, name, how.splits or reader.default_splits, how.seed),
        listing.hierarchy,
        source=f"{reader.title} ({source.name})",
        licence=READERS.get(name, reader).licence,
    )
    origin = _origin(about, listing.items)
    unchanged = (dest / METADATA).exists() and not how.overwrite
    if unchanged:
        collection = Collection.open(dest)
        if collection.prepared_from != origin:
            raise DataError(
                f"{dest} was prepared from other files or with other options; "
                "give another destination, or --overwrite it"
            )
        _check_broken(dest, collection.broken, how.strict)
    else:
        changed = source.stat()
        stamp = f"{origin} {changed.st_size} {changed.st_mtime_ns}"
        shards = _encode_all(_Job(listing, scratch, how.size), stamp, how.workers or cpu_count())
        broken = [pair for shard in shards for pair in _broken(shard)]
        _check_broken(dest, broken, how.strict)
        assemble(dest, about, map(_batch, shards), broken, origin)
        collection = Collection.open(dest)
    shutil.rmtree(scratch, ignore_errors=True)
    return Prepared(collection, unchanged)


def _splits(listing: Listing, name: str, choice: str, seed: int) -> Splits:
    if choice == "none":
        return {}
    if choice in split_rules.SPLITS:
        return {choice: list(range(len(listing.classes)))}
    if choice == "random":
        return split_rules.random_by_class(listing.classes, seed)
    if choice == "published":
        return listing.published() if listing.published else split_rules.published(name, listing.classes)
    if not choice.endswith(".json"):
        raise InputError(f"splits are published, random, train, valid, test, none or a JSON file, not {choice!r}")
    try:
        named = read_json(choice)
        index = {label: position for position, label in enumerate(listing.classes)}
        return {split: sorted(index[label] for label in labels) for split, labels in named.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise DataError(f"cannot read {choice} as {{split: [class names]}}: {error}") from error
    except KeyError as error:
        raise DataError(f"{choice} names the class {error}, which {name} has not") from error


def _origin(about: Description, items: Sequence[Sequence[Item]]) -> str:
    """What the outcome depends on, apart from pixels: of the same origin, a preparation is continued."""
    counts = [len(some) for some in items]
    known = [about.name, about.size, list(about.classes), about.splits, about.hierarchy, counts]
    digest = hashlib.blake2b(json.dumps(known).encode(), digest_size=16)
    for item in itertools.chain.from_iterable(items):
        digest.update(item.key.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()


def _check_broken(dest: Path, broken: Sequence[Sequence[str]], strict: bool) -> None:
    if strict and broken:
        listed = "; ".join(f"{key}: {reason}" for key, reason in broken[:5])
        raise DataError(f"{len(broken)} broken images (--strict), so {dest} was not prepared: {listed}")


def _encode_all(job: _Job, origin: str, workers: int) -> list[Path]:
    """Write the shards that are missing; gives all of them."""
    stamp = job.scratch / "origin.txt"
    known = stamp.exists() and stamp.read_text(encoding="utf-8") == origin
    for shard in job.scratch.glob("*.shard"):
        if not known or _broken(shard):  # somebody may have mended broken images meanwhile
            shard.unlink()
    write_text(stamp, origin)
    starts = range(0, job.total, SHARD_ROWS)
    missing = [start for start in starts if not job.shard(start).exists()]
    with progress_bar() as bar:
        done = (len(starts) - len(missing)) * SHARD_ROWS
        row = bar.add_task("preparing", total=job.total, completed=done, note="")
        for written in _run(job, missing, workers):
            bar.advance(row, written)
    return [job.shard(start) for start in starts]


def _run(job: _Job, starts: list[int], workers: int) -> Iterator[int]:
    workers = min(workers, len(starts))
    if workers <= 1:
        yield from map(job, starts)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_set_job, initargs=(job,)) as pool:
        try:
            with _uninterrupted():
                done = pool.map(_do, starts)  # starts the processes
            yield from done
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Keep Ctrl-C until the end of the block, and from the processes that it starts, for ever.

    They inherit what this thread blocks; another thread may get it all the same, and then Python acts on it here.
    """
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: asked.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
    if asked:
        raise KeyboardInterrupt


class _Job:
    """Encodes one shard; sent to each worker once."""

    def __init__(self, listing: Listing, scratch: Path, size: int) -> None:
        self.tree, self.items, self.load = listing.tree, listing.items, listing.load
        self.scratch, self.size, self.rows = scratch, size, SHARD_ROWS
        self.ends = list(itertools.accumulate(map(len, listing.items)))  # the first row after each class
        self.total = sum(map(len, listing.items))

    def shard(self, start: int) -> Path:
        return self.scratch / f"{start:012d}.shard"

    def __call__(self, start: int) -> int:
        rows: list[tuple[int, str, bytes, bytes]] = []
        broken: list[tuple[str, str]] = []
        stop = min(start + self.rows, self.total)
        for row in range(start, stop):
            index = bisect.bisect_right(self.ends, row)
            item = self.items[index][row - self.ends[index] + len(self.items[index])]
            try:
                image = load_image(self.load(self.tree, item))
                rows.append((index, item.key, *encode(image, self.size)))
            except CnapsError as error:
                broken.append((item.key, str(error)))
        batch = encoded_batch(rows).replace_schema_metadata({"broken": json.dumps(broken)})
        with (
            atomic_path(self.shard(start)) as temporary,
            pa.OSFile(str(temporary), "wb") as sink,
            pa.ipc.new_file(sink, batch.schema) as writer,
        ):
            writer.write_batch(batch)
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


def _batch(shard: Path) -> pa.RecordBatch:
    with pa.memory_map(str(shard)) as file:
        return pa.ipc.open_file(file).get_batch(0)


def _broken(shard: Path) -> list[tuple[str, str]]:
    with pa.memory_map(str(shard)) as file:
        return [tuple(pair) for pair in json.loads(pa.ipc.open_file(file).schema.metadata[b"broken"])]
