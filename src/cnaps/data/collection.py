"""A collection: images of many classes in one memory-mapped Arrow file, found by class and by row.

A collection is a folder with two files. ``collection.json`` holds name, classes, counts, splits and so on;
``images.arrow`` holds a row an image, encoded, sorted by class, so that a class is a range of rows. Opening
reads the first and maps the second: neither time nor memory depends on the number of images.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from PIL import Image

from cnaps import values
from cnaps.errors import DataError, InputError
from cnaps.files import atomic_folder, read_json, write_json
from cnaps.images.decoding import ImageLike, decode, encode, load_image
from cnaps.images.sizes import Look
from cnaps.parallel import cpu_count
from cnaps.weights import digest_of

if TYPE_CHECKING:
    import torch

FORMAT = 1
METADATA, IMAGES = "collection.json", "images.arrow"
BATCH_ROWS = 1024
SCHEMA = pa.schema([("image", pa.large_binary()), ("key", pa.large_string())])
ENCODED = pa.schema([*SCHEMA, ("class", pa.int32()), ("digest", pa.binary(16))])


# Decoded images by collection and size, by row; None: they are decoded whenever they are read.
_remembered: dict[tuple[str, int], dict[int, np.ndarray]] | None = None


def remember_pixels() -> None:
    """Keep every image that is read from now on: for many runs over the same tasks in one process."""
    global _remembered
    _remembered = _remembered or {}


@dataclass(frozen=True)
class Description:
    """What is known of a collection besides its images; class indices refer to ``classes``."""

    name: str
    size: int
    classes: Sequence[str]
    splits: dict[str, list[int]] = field(default_factory=dict)
    hierarchy: dict[str, Any] | None = None
    source: str = ""
    licence: str = ""


class Collection:
    """A prepared collection, opened for reading; cheap to open, safe to share, pickled by its path.

    ``rows`` are global image indices and the images of a class are contiguous::

        birds = Collection.open("collections/cu_birds")
        images = birds.read(birds.rows(0)[:5], size=84)  # uint8 (5, 3, 84, 84)
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not (self.path / METADATA).is_file():
            raise DataError(
                f"{self.path} is not a collection (it has no {METADATA}); make one with `cnaps data prepare`"
            )
        try:
            held = read_json(self.path / METADATA)
            _check_held(held, self.path)
            self.name: str = held["name"]
            self.size: int = held["size"]
            self.classes: list[str] = held["classes"]
            self.counts = np.array(held["counts"], dtype=np.int64)
            self.splits: dict[str, list[int]] = held["splits"]
            self.hierarchy: dict[str, Any] | None = held["hierarchy"]
            self.source: str = held["source"]
            self.licence: str = held["licence"]
            self.fingerprint: str = held["fingerprint"]
            self.broken: list[list[str]] = held["broken"]
            self.prepared_from: str = held["prepared_from"]
            self.images_digest: str | None = held.get("images_digest")  # of the whole file; see `cnaps check`
            self.offsets = np.concatenate([[0], np.cumsum(self.counts)])
            self._batch_offsets = np.concatenate([[0], np.cumsum(held["batches"])]).astype(np.int64)
            whole = (self.path / IMAGES).stat().st_size == held["bytes"]
            if not whole or self._batch_offsets[-1] != self.offsets[-1] or len(self.counts) != len(self.classes):
                raise ValueError("its images are cut short")
            with (self.path / IMAGES).open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            # Not mapped by Arrow, which asks for the whole batch around every image.
            self._reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(mapped)))
            if self._reader.num_record_batches != len(held["batches"]):
                raise ValueError("its images are of another number of batches")
        except DataError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
            raise DataError(f"{self.path} is damaged ({error}); prepare the collection again") from error

    @classmethod
    def open(cls, path: str | Path) -> Collection:
        """Open the collection in the folder ``path``."""
        return cls(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return Collection, (self.path,)

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def __repr__(self) -> str:
        return f"Collection({self.name!r}, {len(self.classes)} classes, {len(self)} images)"

    def rows(self, class_index: int) -> range:
        """The rows of a class."""
        return range(int(self.offsets[class_index]), int(self.offsets[class_index + 1]))

    def indices_of(self, split: str | None) -> Sequence[int]:
        """The classes of a split by their index; of None, every one."""
        return range(len(self.classes)) if split is None else self.splits.get(split, [])

    def classes_of(self, split: str | None) -> list[str]:
        """The names of the classes of a split; of None or "all", every one."""
        return [self.classes[index] for index in self.indices_of(None if split == "all" else split)]

    def class_of(self, rows: Sequence[int]) -> np.ndarray:
        """The class index of each row."""
        return np.searchsorted(self.offsets, np.asarray(rows), side="right") - 1

    def keys(self, rows: Sequence[int]) -> list[str]:
        """The identity of each image: its name in the original data set."""
        return [column[index].as_py() for column, index in self._cells(rows, "key")]

    def looks(self, rows: Sequence[int]) -> list[Look]:
        """What the choice of a size needs to know of each image."""
        cells = self._cells(rows, "image")
        return [Look.at(Image.open(io.BytesIO(column[index].as_buffer()))) for column, index in cells]

    def read(self, rows: Sequence[int], size: int | None = None, threads: int | None = None) -> torch.Tensor:
        """Decode images, in parallel threads: uint8 (N, 3, S, S), S = ``size`` or the collection's size.

        The memory lies in channels-last order.
        """
        import torch

        side = size or self.size
        if _remembered is None:
            pixels = self._decode(rows, side, threads)
        else:
            known = _remembered.setdefault((self.fingerprint, side), {})
            new = [row for row in dict.fromkeys(rows) if row not in known]
            known.update(zip(new, self._decode(new, side, threads), strict=True))
            pixels = np.array([known[row] for row in rows], np.uint8).reshape(len(rows), side, side, 3)
        return torch.from_numpy(pixels).permute(0, 3, 1, 2)  # (N, 3, S, S)

    def _decode(self, rows: Sequence[int], side: int, threads: int | None) -> np.ndarray:
        out = np.empty((len(rows), side, side, 3), dtype=np.uint8)  # (N, S, S, 3)
        cells = list(self._cells(rows, "image"))

        def fill(chunk: range) -> None:
            for position in chunk:
                column, index = cells[position]
                try:
                    out[position] = decode(column[index].as_buffer(), side)
                except Exception as error:  # a damaged file makes decoders raise almost anything
                    raise DataError(
                        f"image {rows[position]} of {self.path} is damaged ({error}); prepare it again"
                    ) from error

        count = threads or cpu_count()
        if count == 1 or len(rows) < 8:
            fill(range(len(rows)))
        else:
            step = max(4, -(-len(rows) // (4 * count)))
            chunks = [range(i, min(i + step, len(rows))) for i in range(0, len(rows), step)]
            filling = [_pool(count, os.getpid()).submit(fill, chunk) for chunk in chunks]
            wait(filling)  # also where one fails: nobody reads the file any more once this has returned
            for each in filling:
                each.result()
        return out

    def _cells(self, rows: Sequence[int], column: str) -> Iterator[tuple[Any, int]]:
        indices = np.asarray(rows, dtype=np.int64)
        if indices.size and (indices.min() < 0 or indices.max() >= len(self)):
            raise InputError(f"{self.name} has rows 0..{len(self) - 1}, not {indices.min()}..{indices.max()}")
        batches = np.searchsorted(self._batch_offsets, indices, side="right") - 1
        columns = {int(b): self._column(int(b), column) for b in np.unique(batches)}
        for row, batch in zip(indices.tolist(), batches.tolist(), strict=True):
            yield columns[batch], row - int(self._batch_offsets[batch])

    def _column(self, batch: int, name: str) -> Any:
        try:
            column = self._reader.get_batch(batch).column(name)
            column.validate(full=True)  # offsets that point out of the file would end the process
            if len(column) != self._batch_offsets[batch + 1] - self._batch_offsets[batch]:
                raise ValueError(f"batch {batch} has {len(column)} rows")
        except (pa.ArrowException, OSError, LookupError, ValueError) as error:
            raise DataError(f"{self.path / IMAGES} is damaged ({error}); prepare the collection again") from error
        return column


def _check_held(held: Any, path: Path) -> None:
    """Everything that collection.json says, checked; it may lie about anything but its digest."""
    form = values.table(held, METADATA)["format"]
    if isinstance(form, int) and form > FORMAT:
        raise DataError(f"{path} was written by a newer version of cnaps; update cnaps to read it")
    values.count(form, "the format", 1)
    if ("digest" in held or "images_digest" in held) and held.get("digest") != metadata_digest(held):
        raise ValueError(f"{METADATA} does not fit its digest")
    values.name(held["name"], "the name")
    values.count(held["size"], "the size of images", 1, 4096)
    ways = len([values.name(each, "a class") for each in values.items(held["classes"], "the list of classes")])
    if len(set(held["classes"])) < ways or not ways:
        raise ValueError("there are no classes, or two of one name")
    for key in ("counts", "batches"):
        for each in values.items(held[key], key):
            values.count(each, key, 1)
    for split, members in values.table(held["splits"], "splits").items():
        values.indices(members, f"the split {values.name(split, 'a split')}", ways)
    if held["hierarchy"] is not None:
        known = values.table(held["hierarchy"], "the hierarchy")
        groups = "nodes" if known.get("kind") == "wordnet" else "groups"
        for group, members in values.table(known.get(groups), "the hierarchy").items():
            values.indices(members, f"the group {values.name(group, 'a group')}", ways)
    for key in ("source", "licence", "fingerprint", "prepared_from"):
        values.text(held[key], key)
    for pair in values.items(held["broken"], "broken"):
        if len(values.items(pair, "broken")) != 2 or not all(isinstance(each, str) for each in pair):
            raise ValueError("a broken image is a name and a reason")
    if held.get("images_digest") is not None:
        values.name(held["images_digest"], "images_digest")


def metadata_digest(held: Mapping[str, Any]) -> str:
    """Of everything in collection.json but the digest itself."""
    return digest_of(held, ())


def images_digest(path: Path) -> str:
    """Of the whole file of images."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def class_fingerprint(names: Iterable[str]) -> str:
    """Of a set of classes by their names, in whichever collection they are.

    >>> class_fingerprint(["oak", "elm"]) == class_fingerprint(["elm", "oak"])
    True
    """
    return hashlib.sha256(json.dumps(sorted(names)).encode()).hexdigest()[:16]


def find_collections(folder: str | Path) -> list[Collection]:
    """The collections in a folder, sorted by name; or the folder itself where it is one."""
    folder = Path(folder)
    if (folder / METADATA).exists():
        return [Collection.open(folder)]
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    return [Collection.open(path.parent) for path in sorted(folder.glob(f"[!.]*/{METADATA}"))]


def write_collection(
    dest: str | Path, *, examples: Iterable[tuple[int, str, ImageLike]], **about: Any
) -> Collection:
    """Write images as a collection and open it; an example is (class index, key, image), sorted by class.

    ``about`` are the fields of :class:`Description`. Classes without an image are left out. The finished folder
    appears at once, or not at all.
    """
    description = Description(**about)

    def shards() -> Iterator[pa.RecordBatch]:
        rest = iter(examples)
        while some := list(itertools.islice(rest, BATCH_ROWS)):
            encoded = ((index, key, *encode(load_image(image), description.size)) for index, key, image in some)
            yield encoded_batch(list(encoded))

    assemble(dest, description, shards())
    return Collection.open(dest)


def encoded_batch(rows: Sequence[tuple[int, str, bytes, bytes]]) -> pa.RecordBatch:
    """Rows (class index, key, encoded image, digest of its pixels) as Arrow."""
    classes, keys, images, digests = zip(*rows, strict=True) if rows else ((), (), (), ())
    columns = zip((images, keys, classes, digests), ENCODED, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(values, kind.type) for values, kind in columns], schema=ENCODED)


def assemble(
    dest: str | Path,
    about: Description,
    shards: Iterable[pa.RecordBatch],
    broken: Sequence[tuple[str, str]] = (),
    prepared_from: str = "",
) -> None:
    """Write the collection of already encoded batches; ``broken`` lists what was left out, and why.

    The fingerprint covers pixels, keys, classes, splits and hierarchy: what a task depends on, wherever and
    from whichever copy of the files the collection was prepared.
    """
    counts = np.zeros(len(about.classes), dtype=np.int64)
    batches: list[int] = []
    content = hashlib.blake2b(digest_size=16)
    last = 0
    with atomic_folder(dest, (METADATA, IMAGES)) as folder:
        with pa.OSFile(str(folder / IMAGES), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            for shard in shards:
                if shard.num_rows == 0:
                    continue
                indices = shard.column("class").to_numpy()
                if indices[0] < last or (np.diff(indices) < 0).any():
                    raise InputError("the examples of a collection must be sorted by class")
                last = indices[-1]
                counts += np.bincount(indices, minlength=len(counts))
                for key, digest in zip(shard.column("key"), shard.column("digest"), strict=True):
                    content.update(json.dumps(key.as_py()).encode() + digest.as_py())
                writer.write_batch(shard.select(SCHEMA.names))
                batches.append(shard.num_rows)
        if not batches:
            why = f"; {broken[0][0]}: {broken[0][1]}" if broken else ""
            raise DataError(f"there is no readable image to put into {dest}{why}")
        kept = _without_empty(about, counts)
        core = {
            "format": FORMAT,
            "name": kept.name,
            "size": kept.size,
            "classes": list(kept.classes),
            "counts": counts[counts > 0].tolist(),
            "splits": kept.splits,
            "hierarchy": kept.hierarchy,
        }
        content.update(json.dumps(core, sort_keys=True).encode())
        rest = {
            "source": kept.source,
            "licence": kept.licence,
            "fingerprint": content.hexdigest(),
            "prepared_from": prepared_from,
            "batches": batches,
            "bytes": (folder / IMAGES).stat().st_size,
            "broken": list(broken),
        }
        held = core | rest | {"images_digest": images_digest(folder / IMAGES)}
        held = json.loads(json.dumps(held))  # as it will be read
        write_json(folder / METADATA, held | {"digest": metadata_digest(held)})


def _without_empty(about: Description, counts: np.ndarray) -> Description:
    """Leave out classes without an image and number the others anew, everywhere."""
    kept = np.flatnonzero(counts > 0).tolist()
    new = {old: index for index, old in enumerate(kept)}

    def renumber(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: renumber(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [new[old] for old in value if old in new]
        return value

    return replace(
        about,
        classes=[about.classes[old] for old in kept],
        splits=renumber(about.splits),
        hierarchy=renumber(about.hierarchy),
    )


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:  # a forked process needs threads of its own
    return ThreadPoolExecutor(threads, thread_name_prefix="decode")
