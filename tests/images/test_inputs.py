"""Streaming: bounded in memory, in order, broken images set aside; and which files a person means."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cnaps.errors import DataError
from cnaps.images.finding import find_examples, find_images
from cnaps.images.inputs import read_pixels, stream


def test_a_stream_reads_only_a_little_ahead():
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield np.full((8, 8), taken % 256, np.uint8)

    batches = stream(endless(), 8, batch_size=16)
    for _ in range(20):
        where, pixels = next(batches)
    assert isinstance(batches, Generator)
    batches.close()
    assert where == list(range(304, 320))
    assert pixels[:, 0, 0, 0].tolist() == [(i + 1) % 256 for i in where]
    assert taken <= 320 + 4 * 16


def test_broken_images_are_set_aside_and_the_rest_keeps_its_order():
    good = np.zeros((8, 8), np.uint8)
    broken: dict[int, str] = {}
    images = [good, b"nonsense", good, "missing.png", good]
    batches = list(stream(images, 8, on_error=lambda i, error: broken.update({i: str(error)})))
    assert [where for where, _ in batches] == [[0, 2, 4]]
    assert set(broken) == {1, 3}
    assert "missing.png" in broken[3]


def test_a_large_jpeg_is_decoded_small_with_next_to_no_difference(tmp_path):
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8))
    coarse.resize((1600, 1200), Image.Resampling.BICUBIC).save(tmp_path / "photo.jpg", quality=90)
    quick = read_pixels(tmp_path / "photo.jpg", 96).astype(int)
    slow = read_pixels(Image.open(tmp_path / "photo.jpg"), 96).astype(int)
    assert np.abs(quick - slow).mean() < 1


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_images_are_files_folders_patterns_and_lists_each_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    touch(
        *(tmp_path / name for name in ("a.png", "more/b.JPG", "more/deep/c.webp", "more/notes.md", ".hidden.png"))
    )
    (tmp_path / "some.txt").write_text("# chosen\nmore/b.JPG\n\na.png\n")
    assert find_images(["a.png", "more"]) == [Path("a.png"), Path("more/b.JPG"), Path("more/deep/c.webp")]
    assert find_images(["more/*.JPG"]) == [Path("more/b.JPG")]
    assert find_images(["**/*.webp", "a.png", "a.png"]) == [Path("more/deep/c.webp"), Path("a.png")]
    assert find_images(["some.txt"]) == [Path("more/b.JPG"), Path("a.png")]
    assert find_images(["more/notes.md"]) == [Path("more/notes.md")]  # named, so taken at its word


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("missing.png", "does not exist"),
        ("*.bmp", "no file fits"),
        ("empty", "no images"),
        ("list.txt", "no files"),
    ],
)
def test_sources_without_images_are_named(tmp_path, monkeypatch, source, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "list.txt").write_text("\n")
    with pytest.raises(DataError, match=reason):
        find_images([source])


def test_examples_come_from_folders_or_from_a_table(tmp_path, monkeypatch):
    touch(tmp_path / "by/cat/1.png", tmp_path / "by/cat/more/2.png", tmp_path / "by/dog/3.png", tmp_path / "4.png")
    assert [(path.name, label) for path, label in find_examples(tmp_path / "by")] == [
        ("1.png", "cat"),
        ("2.png", "cat"),
        ("3.png", "dog"),
    ]
    (tmp_path / "table.csv").write_text('\ufeffpath,label\nby/cat/1.png,"cat, tabby"\n\n4.png,dog\n', "utf-8")
    found = find_examples(tmp_path / "table.csv")
    assert found == [(tmp_path / "by/cat/1.png", "cat, tabby"), (tmp_path / "4.png", "dog")]


def test_examples_that_cannot_be_meant_are_explained(tmp_path):
    touch(tmp_path / "flat/1.png", tmp_path / "hollow/cat/1.png", tmp_path / "photo.png")
    (tmp_path / "hollow/dog").mkdir()
    (tmp_path / "none").mkdir()
    (tmp_path / "short.csv").write_text("a.png,cat\nb.png\n")
    (tmp_path / "empty.csv").write_text("path,label\n")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    for name, reason in (
        ("flat", "lie side by side"),
        ("none", "has no classes"),
        ("hollow", r"class folder .*dog holds no images"),
        ("photo.png", "neither a folder"),
        ("missing", "does not exist"),
        ("missing.csv", "does not exist"),
        ("short.csv", "line 2"),
        ("empty.csv", "no examples"),
        ("binary.csv", "cannot be read as a CSV"),
    ):
        with pytest.raises(DataError, match=reason):
            find_examples(tmp_path / name)
