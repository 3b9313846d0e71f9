"""A collection gives back what was put in, by class and by row, without loading the rest."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cnaps.data.collection as collection_module
from cnaps.data.collection import (
    Collection,
    Description,
    assemble,
    encoded_batch,
    find_collections,
    write_collection,
)
from cnaps.errors import CnapsError, DataError, InputError
from cnaps.images.decoding import encode, load_image

from .conftest import picture


def small(path: Path, **changes: Any) -> Collection:
    """Three classes of 2, 3 and 1 images, of distinct greys."""
    examples = [(0, "a/0", 10), (0, "a/1", 20), (1, "b/0", 30), (1, "b/1", 40), (1, "b/2", 50), (2, "c/0", 60)]
    options: dict[str, Any] = {
        "name": "small",
        "classes": ["a", "b", "c"],
        "size": 16,
        "splits": {"train": [0, 1], "test": [2]},
        "source": "made up",
        "licence": "none",
    }
    pictures = [(index, key, np.full((20, 20), grey, np.uint8)) for index, key, grey in examples]
    return write_collection(path, **(options | {"examples": pictures} | changes))


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    collection = small(tmp_path / "small")
    assert (collection.name, collection.size, collection.classes) == ("small", 16, ["a", "b", "c"])
    assert collection.counts.tolist() == [2, 3, 1]
    assert collection.splits == {"train": [0, 1], "test": [2]}
    assert [list(collection.rows(index)) for index in range(3)] == [[0, 1], [2, 3, 4], [5]]
    assert collection.keys([5, 0, 3]) == ["c/0", "a/0", "b/1"]
    assert collection.class_of([5, 0, 3]).tolist() == [2, 0, 1]
    images = collection.read([5, 0, 3])
    assert images.shape == (3, 3, 16, 16)
    assert images[:, 0, 0, 0].tolist() == [60, 10, 40]
    assert collection.read([1, 1], size=7).shape == (2, 3, 7, 7)
    assert collection.read([], size=7).shape == (0, 3, 7, 7)


def test_threads_do_not_change_what_is_read(tmp_path: Path) -> None:
    examples = [(0, str(row), np.full((9, 9), row % 256, np.uint8)) for row in range(300)]
    collection = write_collection(tmp_path / "c", name="c", classes=["a"], examples=examples, size=9)
    rows = np.random.default_rng(0).integers(0, 300, 200).tolist()
    alone, together = collection.read(rows, threads=1), collection.read(rows, threads=4)
    assert (alone == together).all()
    assert alone[:, 0, 0, 0].tolist() == [row % 256 for row in rows]


def test_remembered_images_are_those_that_would_be_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = small(tmp_path / "small")
    wanted = {size: collection.read([5, 0, 5, 3], size=size) for size in (7, 16)}
    monkeypatch.setattr(collection_module, "_remembered", None)  # and as it was, afterwards
    collection_module.remember_pixels()
    for _ in range(2):
        for size, images in wanted.items():
            read = collection.read([5, 0, 5, 3], size=size)
            assert (read == images).all()
            read.zero_()  # what a reader does with its images stays with it
    (collection.path / "images.arrow").write_bytes(b"")
    assert (collection.read([3, 0], size=7) == wanted[7][[3, 1]]).all()
    assert collection.read([], size=7).shape == (0, 3, 7, 7)


def test_rows_in_many_batches_are_found(tmp_path: Path) -> None:
    examples = [(row // 1000, f"k{row}", np.full((2, 2), row % 251, np.uint8)) for row in range(3000)]
    collection = write_collection(tmp_path / "c", name="c", classes=["a", "b", "c"], examples=examples, size=8)
    rows = [0, 1023, 1024, 2047, 2048, 2999]
    assert collection.keys(rows) == [f"k{row}" for row in rows]
    assert collection.read(rows, size=2)[:, 0, 0, 0].tolist() == [row % 251 for row in rows]


def test_a_row_that_is_not_there_is_refused(tmp_path: Path) -> None:
    collection = small(tmp_path / "small")
    for rows in ([6], [-1], [0, 99]):
        with pytest.raises(InputError, match=r"rows 0\.\.5"):
            collection.read(rows)


def test_a_collection_pickles_by_its_path(tmp_path: Path) -> None:
    content = pickle.dumps(small(tmp_path / "small"))
    assert len(content) < 500
    assert pickle.loads(content).keys([2]) == ["b/0"]


def test_classes_without_images_are_left_out_everywhere(tmp_path: Path) -> None:
    collection = small(
        tmp_path / "small",
        classes=["a", "empty", "b"],
        examples=[(0, "a/0", picture(9)), (2, "b/0", picture(9))],
        splits={"train": [0, 1], "test": [2]},
        hierarchy={"kind": "alphabets", "groups": {"X": [0, 1], "Y": [2]}},
    )
    assert collection.classes == ["a", "b"]
    assert collection.splits == {"train": [0], "test": [1]}
    assert collection.hierarchy == {"kind": "alphabets", "groups": {"X": [0], "Y": [1]}}


def test_images_out_of_order_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="sorted by class"):
        small(tmp_path / "small", examples=[(1, "b", picture()), (0, "a", picture())])
    assert not list(tmp_path.iterdir())


def test_nothing_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no readable image"):
        small(tmp_path / "small", examples=[])
    assert not list(tmp_path.iterdir())


def test_the_fingerprint_depends_on_pixels_names_splits_and_size_alone(tmp_path: Path) -> None:
    original = small(tmp_path / "0").fingerprint
    assert small(tmp_path / "1", source="elsewhere", licence="free").fingerprint == original
    changed = [
        small(tmp_path / "2", splits={}).fingerprint,
        small(tmp_path / "3", size=15).fingerprint,
        small(tmp_path / "4", classes=["a", "b", "d"]).fingerprint,
        small(tmp_path / "5", name="other").fingerprint,
        small(tmp_path / "6", examples=[(0, "a/0", picture(1))], classes=["a"], splits={}).fingerprint,
        small(tmp_path / "7", examples=[(0, "a/0", picture(2))], classes=["a"], splits={}).fingerprint,
        small(tmp_path / "8", examples=[(0, "a/1", picture(2))], classes=["a"], splits={}).fingerprint,
    ]
    assert len({original, *changed}) == 1 + len(changed)


def damage_metadata(folder: Path, **changes: Any) -> None:
    path = folder / "collection.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_folder_that_is_no_collection_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a collection"):
        Collection.open(tmp_path)
    with pytest.raises(DataError, match="not a collection"):
        Collection.open(tmp_path / "nowhere")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    small(tmp_path / "small")
    damage_metadata(tmp_path / "small", format=99)
    with pytest.raises(DataError, match="newer version"):
        Collection.open(tmp_path / "small")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', '{"format": "x"}'])
def test_damaged_metadata_is_refused(text: str, tmp_path: Path) -> None:
    small(tmp_path / "small")
    (tmp_path / "small" / "collection.json").write_text(text)
    with pytest.raises(DataError, match="damaged"):
        Collection.open(tmp_path / "small")


def test_images_that_are_cut_short_or_missing_are_refused(tmp_path: Path) -> None:
    small(tmp_path / "small")
    path = tmp_path / "small" / "images.arrow"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(DataError, match="damaged"):
        Collection.open(tmp_path / "small")
    path.write_bytes(bytes(len(whole)))
    with pytest.raises(DataError, match="damaged"):
        Collection.open(tmp_path / "small")
    path.unlink()
    with pytest.raises(DataError, match="damaged"):
        Collection.open(tmp_path / "small")


def test_a_damaged_image_is_an_error_that_names_the_collection(tmp_path: Path) -> None:
    small(tmp_path / "small")
    path = tmp_path / "small" / "images.arrow"
    path.write_bytes(path.read_bytes().replace(b"IHDR", b"XXXX"))
    with pytest.raises(DataError, match=r"image 0 of .*small"):
        Collection.open(tmp_path / "small").read([0])


def test_collections_in_a_folder_are_found(tmp_path: Path) -> None:
    small(tmp_path / "b", name="second")
    small(tmp_path / "a", name="first")
    (tmp_path / "other").mkdir()
    assert [found.name for found in find_collections(tmp_path)] == ["first", "second"]
    assert [found.name for found in find_collections(tmp_path / "b")] == ["second"]
    with pytest.raises(DataError, match="not a folder"):
        find_collections(tmp_path / "nowhere")


def test_an_unwritable_destination_is_an_error_for_people(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CnapsError, match="cannot write"):
        small(tmp_path / "file" / "small")


MEMORY = """
import sys
from cnaps.data.collection import Collection
import torch

def resident(*kinds):
    lines = open("/proc/self/status").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(kinds)) * 1024

Collection.open(sys.argv[2]).read([0, 1], threads=1)  # everything imported and warm
whole, own = resident("RssAnon", "RssFile"), resident("RssAnon")
collection = Collection.open(sys.argv[1])
opened = resident("RssAnon", "RssFile") - whole
collection.read(range(0, len(collection), len(collection) // 50), threads=1)
print(opened, resident("RssAnon") - own)  # the system may map and drop pages of the file as it likes
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_large_collection_is_not_loaded_into_memory(tmp_path: Path) -> None:
    small(tmp_path / "small")
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    content, digest = encode(load_image(noise), 64)
    shards = (encoded_batch([(0, str(row), content, digest) for row in range(500)]) for _ in range(20))
    assemble(tmp_path / "c", Description("c", 64, ["a"]), shards)
    size = (tmp_path / "c" / "images.arrow").stat().st_size
    assert size > 50_000_000
    arguments = [sys.executable, "-c", MEMORY, str(tmp_path / "c"), str(tmp_path / "small")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, env=os.environ)
    opened, read = map(int, done.stdout.split())
    assert opened < size / 20
    assert read < size / 10
