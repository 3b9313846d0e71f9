"""Meta-Dataset's TFRecords are read without TensorFlow, and damage is noticed."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnaps.data.collection import Collection
from cnaps.data.prepare import prepare
from cnaps.data.tfrecord import crc32c, masked_crc, parse_example, record, scan
from cnaps.errors import DataError

from .conftest import Command, colours, encoded, picture, write_tar


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(image: bytes, label: int) -> bytes:
    """What tf.train.Example(...).SerializeToString() gives for an image and its label."""
    features = {b"image": field(1, field(1, image)), b"label": field(3, field(1, varint(label)))}
    entries = b"".join(field(1, field(1, key) + field(2, value)) for key, value in features.items())
    return field(1, entries)


def framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def write_records(folder: Path, spec: dict[str, Any], per_class: int = 2) -> Path:
    folder.mkdir(parents=True)
    for index in map(int, spec["class_names"]):
        image = encoded(picture(20 + 10 * index, 200, 20))
        content = b"".join(framed(example(image, index)) for _ in range(per_class))
        (folder / f"{index}.tfrecords").write_bytes(content)
    common = {
        "images_per_class": dict.fromkeys(spec["class_names"], per_class),
        "path": "/path/to/records",
        "file_pattern": "{}.tfrecords",
    }
    (folder / "dataset_spec.json").write_text(json.dumps(common | spec))
    return folder


FLAT = {
    "name": "aircraft",
    "classes_per_split": {"TRAIN": 2, "VALID": 1, "TEST": 2},
    "class_names": {"0": "A340-300", "1": "A318", "2": "Falcon 2000", "3": "F-16A/B", "4": 7},
    "__class__": "DatasetSpecification",
}


@pytest.mark.parametrize("packed", [False, True])
def test_records_are_read_with_names_and_splits(packed: bool, tmp_path: Path, command: Command) -> None:
    source = write_records(tmp_path / "aircraft", FLAT)
    if packed:
        files = {f"aircraft/{path.name}": path.read_bytes() for path in source.iterdir()}
        source = write_tar(tmp_path / "aircraft.tar", files)
    assert command("data", "prepare", "meta-dataset-records", source, tmp_path / "c", "--size", 24)[0] == 0
    collection = Collection.open(tmp_path / "c")
    assert collection.name == "aircraft"
    assert collection.licence == "non-commercial research"
    assert collection.classes == ["A340-300", "A318", "Falcon 2000", "F-16A/B", "7"]
    assert collection.splits == {"train": [0, 1], "valid": [2], "test": [3, 4]}
    assert collection.counts.tolist() == [2] * 5
    for index in range(5):
        assert abs(colours(collection, index)[0, 0] - (20 + 10 * index)) < 5


def test_records_of_alphabets_have_their_hierarchy(tmp_path: Path) -> None:
    names = ["Greek-character01", "Greek-character02", "Old-Latin-character01", "Keble-character01"]
    spec = {
        "name": "omniglot",
        "superclasses_per_split": {"TRAIN": 1, "VALID": 1, "TEST": 1},
        "classes_per_superclass": {"0": 2, "1": 1, "2": 1},
        "superclass_names": {"0": "Greek", "1": "Old-Latin", "2": "Keble"},
        "class_names": {str(index): name for index, name in enumerate(names)},
        "__class__": "BiLevelDatasetSpecification",
    }
    source = write_records(tmp_path / "omniglot", spec)
    collection = prepare("meta-dataset-records", source, tmp_path / "c").collection
    assert collection.classes[2] == "Old-Latin/character01"
    assert collection.splits == {"train": [0, 1], "valid": [2], "test": [3]}
    groups = {"Greek": [0, 1], "Old-Latin": [2], "Keble": [3]}
    assert collection.hierarchy == {"kind": "alphabets", "groups": groups}


def test_records_of_ilsvrc_have_their_hierarchy(tmp_path: Path) -> None:
    roots = {"TRAIN": "n00001740", "VALID": "n02075296", "TEST": "n03183080"}
    leaves = {split: [f"n9{root[2:-1]}{9 - i}" for i in range(5)] for split, root in roots.items()}
    graphs = {
        split: [
            {"wn_id": roots[split], "words": split.lower(), "children_ids": found, "parents_ids": []},
            *({"wn_id": leaf, "words": leaf, "children_ids": [], "parents_ids": [roots[split]]} for leaf in found),
        ]
        for split, found in leaves.items()
    }
    names = [leaf for split in roots for leaf in sorted(leaves[split])]
    spec = {
        "name": "ilsvrc_2012",
        "split_subgraphs": graphs,
        "class_names": {str(index): name for index, name in enumerate(names)},
        "__class__": "HierarchicalDatasetSpecification",
    }
    collection = prepare(
        "meta-dataset-records", write_records(tmp_path / "in", spec, per_class=1), tmp_path / "c"
    ).collection
    assert collection.splits == {"train": [0, 1, 2, 3, 4], "valid": [5, 6, 7, 8, 9], "test": [10, 11, 12, 13, 14]}
    assert collection.hierarchy is not None
    assert sorted(collection.hierarchy["nodes"].values()) == sorted(collection.splits.values())


def test_a_damaged_record_is_a_broken_image(tmp_path: Path) -> None:
    source = write_records(tmp_path / "in", FLAT)
    path = source / "1.tfrecords"
    content = bytearray(path.read_bytes())
    content[len(content) // 4] ^= 1
    path.write_bytes(content)
    collection = prepare("meta-dataset-records", source, tmp_path / "c").collection
    assert collection.counts.tolist() == [2, 1, 2, 2, 2]
    assert collection.broken[0][0] == "A318/0"
    assert "checksum" in collection.broken[0][1]


def test_a_file_of_records_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    source = write_records(tmp_path / "in", FLAT)
    path = source / "2.tfrecords"
    whole = path.read_bytes()
    for content, message in [(whole[:-3], "cut short"), (whole + b"abc", "cut short"), (b"\xff" * 40, "damaged")]:
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"2\.tfrecords.*{message}"):
            prepare("meta-dataset-records", source, tmp_path / "c")
    path.unlink()
    with pytest.raises(DataError, match=r"lacks 1 of 5 record files, 2\.tfrecords"):
        prepare("meta-dataset-records", source, tmp_path / "c")


@pytest.mark.parametrize(
    "text", ["[]", "{", "{}", '{"name": "x", "class_names": {"a": "b"}}', '{"class_names": 3}']
)
def test_a_damaged_specification_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "dataset_spec.json").write_text(text)
    with pytest.raises(DataError, match=r"dataset_spec\.json"):
        prepare("meta-dataset-records", tmp_path, tmp_path / "c")


def test_a_specification_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    write_records(tmp_path / "secret", FLAT)
    source = write_records(tmp_path / "in", FLAT | {"file_pattern": "../secret/{}.tfrecords"})
    with pytest.raises(DataError, match="lacks 5 of 5"):
        prepare("meta-dataset-records", source, tmp_path / "c")


def bitwise_crc(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def test_checksums_are_the_known_ones() -> None:
    assert crc32c(b"") == 0
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 6000), st.integers(0, 2**32))
def test_checksums_taken_by_rows_equal_those_taken_bit_by_bit(length: int, seed: int) -> None:
    import random

    data = random.Random(seed).randbytes(length)
    assert crc32c(data) == bitwise_crc(data)


def test_features_are_parsed() -> None:
    assert parse_example(example(b"picture", 300)) == {"image": [b"picture"]}
    floats = field(1, field(1, field(1, b"x") + field(2, field(2, field(1, bytes(8))))))
    assert parse_example(floats) == {}
    content = framed(b"one") + framed(b"two" * 1000)
    spans = scan(content, "a file")
    assert [record(content, *span) for span in spans] == [b"one", b"two" * 1000]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 80), st.integers(0, 255))
def test_damaged_messages_never_crash(noise: bytes, place: int, value: int) -> None:
    message = bytearray(example(noise, 7))
    message[place % len(message)] = value
    for data in (bytes(message), noise):
        with contextlib.suppress(DataError):
            assert isinstance(parse_example(data), dict)
