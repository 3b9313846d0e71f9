"""A collection whose file was damaged is refused, whatever the damage: it never ends the process."""

from __future__ import annotations

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
