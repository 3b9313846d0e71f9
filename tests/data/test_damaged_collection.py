"""A collection whose file was damaged is refused, whatever the damage: it never ends the process."""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np
import pytest

from cnaps.data.collection import Collection, write_collection
from cnaps.errors import DataError


def test_offsets_that_point_out_of_the_file_are_refused(tmp_path):
    from sklearn.datasets import load_digits

    images = (load_digits().images[:20] * 15).astype(np.uint8)
    examples = [(i // 10, str(i), image) for i, image in enumerate(images)]
    made = write_collection(tmp_path / "set", name="set", classes=["a", "b"], examples=examples, size=8)
    lengths = [column[index].as_buffer().size for column, index in made._cells(range(20), "image")]
    ends = np.cumsum([0, *lengths]).astype("<i8").tobytes()
    path = tmp_path / "set" / "images.arrow"
    whole = path.read_bytes()
    place = whole.index(ends)
    for entry in (1, 10, 20):
        changed = bytearray(whole)
        changed[place + 8 * entry + 5] ^= 0x40  # 2^46 further
        path.write_bytes(changed)
        with pytest.raises(DataError, match=r"images\.arrow is damaged"):
            Collection.open(tmp_path / "set").read(range(20))


def test_nothing_reads_the_file_any_more_once_reading_has_failed(tmp_path, monkeypatch):
    images = np.arange(40 * 64, dtype=np.uint8).reshape(40, 8, 8)
    examples = [(0, str(i), image) for i, image in enumerate(images)]
    made = write_collection(tmp_path / "set", name="set", classes=["a"], examples=examples, size=8)
    begun, failed = itertools.count(), threading.Event()
    ended: list[None] = []

    def slow_decode(data, side):
        if next(begun) == 0:
            failed.set()
            raise ValueError("damaged")
        failed.wait()
        time.sleep(0.02)  # long enough to be at work when the failure is known
        ended.append(None)
        return np.zeros((side, side, 3), np.uint8)

    monkeypatch.setattr("cnaps.data.collection.decode", slow_decode)
    with pytest.raises(DataError, match="damaged"):
        made.read(range(40), threads=2)
    assert len(ended) == next(begun) - 1
