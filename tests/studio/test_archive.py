"""Projects as zip files: what is written can be read back, and what others write does no harm."""

from __future__ import annotations

import io
import json
import random
import resource
import tempfile
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnaps.errors import CnapsError, DataError, InputError
from cnaps.serving.decoding import MAX_BYTES, Decoded
from cnaps.studio import archive, store
from cnaps.studio.archive import read_zip, write_zip
from cnaps.studio.description import held_out
from cnaps.studio.store import Project

from .test_store import everything, picture


class Lenient:
    """Takes anything for an image: what is tried here is the zip file."""

    size = 8

    def decode(self, data: bytes, size: int | None = None) -> Decoded:
        if data.startswith(b"bad"):
            raise DataError("it is no image")
        return Decoded(np.zeros((8, 8, 3), np.uint8), b"small")


@contextmanager
def new_project() -> Iterator[Project]:
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder) / "project", Lenient())  # type: ignore[arg-type]
        yield project
        project.close()


@pytest.fixture
def project() -> Iterator[Project]:
    with new_project() as found:
        yield found


def exported(project: Project) -> io.BytesIO:
    file = io.BytesIO()
    write_zip(project, file)
    return file


def no_task(task: bytes) -> int:
    raise AssertionError("there is no task in it")


def summary(project: Project) -> tuple[Any, ...]:
    """All that people see, without the numbers of the classes."""
    names = {**project.classes, "test": 1, "pool": 2}
    images = [(key, entry["name"], names[entry["place"]]) for key, entry in project.images.items()]
    return list(project.classes.values()), images


def test_a_zip_holds_class_folders_with_the_names_that_people_gave(project: Project) -> None:
    cats, odd = project.add_class("cats"), project.add_class("a/b: c?")
    project.add_class("Test")
    uploads = [("a.png", b"1"), ("A.PNG", b"2"), ("a.png", b"3"), ("con.jpg", b"4"), ("..", b"\xff\xd8 5")]
    project.add(uploads, cats)
    project.add([("x.png", b"6")], odd)
    project.add([("y.png", b"7")], "test")
    project.add([("z.png", b"8")], "pool")
    project.add([("photos/CATS/a.png", b"9")], "held")
    names = zipfile.ZipFile(exported(project)).namelist()
    files = ("a.png", "A (2).PNG", "a (3).png", "_con.jpg", "image.jpg")
    cats_folder = [f"examples/cats/{name}" for name in files]
    assert names == ["project.json", *cats_folder, "examples/a_b_ c_/x.png", "tray/y.png", "unlabelled/z.png",
                     "held out/cats/a.png"]  # fmt: skip


def test_a_zip_brings_everything_to_another_project(project: Project) -> None:
    cats = project.add_class("cats")
    project.add_class("empty")
    project.add([("a.png", b"1")], cats)
    project.add([("b.png", b"2")], "pool")
    with new_project() as other:
        other.add_class("Cats")
        read_zip(other, exported(project), no_task)
        assert list(other.classes.values()) == ["Cats", "empty"]
        assert [entry["place"] for entry in other.images.values()] == ["c1", "pool"]
        assert other.images.keys() == project.images.keys()


def test_a_zip_brings_what_is_held_out_and_what_was_confirmed(project: Project) -> None:
    cats = project.add_class("cats")
    (first, _) = project.add([("a.png", b"1"), ("b.png", b"2")], cats)["added"]
    project.add([("c.png", b"3")], held_out(cats))
    project.confirm([first])
    with new_project() as other:
        other.add_class("dogs")  # so that ids differ
        read_zip(other, exported(project), no_task)
        assert {entry["name"]: entry for entry in other.images.values()} == {
            "a.png": {"name": "a.png", "place": "c2", "right": True},
            "b.png": {"name": "b.png", "place": "c2"},
            "c.png": {"name": "c.png", "place": "h2"},
        }


def test_a_zip_of_the_first_version_is_read(project: Project) -> None:
    project.add([("a.png", b"1"), ("b.png", b"2")], project.add_class("cats"))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as old:
        old.writestr("project.json", json.dumps(project.describe()))
        for key in project.images:
            old.write(project.files.original(key), f"images/{key}")
    with new_project() as other:
        read_zip(other, file, no_task)
        assert summary(other) == summary(project)


names = st.text(st.characters(exclude_categories=()), max_size=140)


@settings(max_examples=120, deadline=None)
@given(
    classes=st.lists(names, max_size=6),
    files=st.lists(st.tuples(names, st.binary(min_size=1, max_size=64), st.integers(0, 9)), max_size=16),
    task=st.binary(max_size=40),
)
def test_whatever_a_project_holds_its_zip_can_be_read_back(
    classes: list[str], files: list[Any], task: bytes
) -> None:
    """With limits so low that they are met."""
    with pytest.MonkeyPatch.context() as patch, new_project() as first, new_project() as second:
        for module in (archive, store):
            patch.setattr(module, "MAX_IMAGES", 16)
        patch.setattr(archive, "MAX_BYTES", 64)
        patch.setattr(archive, "MAX_TASK", 40)
        keys = ["test", "pool"]
        for name in classes:
            try:
                keys.append(first.add_class(name))
            except InputError:
                assert not any(c.isprintable() and not c.isspace() for c in name)
        if task:
            first.import_task(task, {"learned": (0, 3)})
        for name, data, place in files:
            first.add([(name, data)], keys[place % len(keys)])
        file = exported(first)
        report = read_zip(second, file, lambda found: 1 if found == task else 0)
        assert summary(second) == summary(first)
        assert not report["refused"] or all(entry[1].startswith(b"bad") for entry in files)
        paths = zipfile.ZipFile(file).namelist()
        assert len({unicodedata.normalize("NFC", path).casefold() for path in paths}) == len(paths)
        for part in (part for path in paths for part in path.split("/")):
            assert len(part.encode()) < 250
            assert not set(part) & set('<>:"\\|?*')
            assert part == part.strip(" .")


def test_the_largest_image_and_the_longest_names_are_read_back(project: Project) -> None:
    key = project.add_class("x" * 120)
    assert project.classes[key] == "x" * 120
    project.add([("\N{GRINNING FACE}" * 120, random.Random(0).randbytes(MAX_BYTES))], key)
    with new_project() as other:
        read_zip(other, exported(project), no_task)
        assert summary(other) == summary(project)


def test_an_import_that_fails_half_way_leaves_the_project_as_it_was(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.add([("a.png", b"1"), ("b.png", b"2")], project.add_class("cats"))
    file = exported(project)
    with new_project() as other:
        other.add_class("dogs")
        before = (other.folder / "project.json").read_bytes()
        monkeypatch.setattr(store, "MAX_IMAGES", 1)
        with pytest.raises(InputError, match="at most 1"):
            read_zip(other, file, no_task)
        assert (other.folder / "project.json").read_bytes() == before
        assert summary(other) == (["dogs"], [])
        monkeypatch.undo()
        read_zip(other, file, no_task)
        assert other.undo()
        assert summary(other) == (["dogs"], []), "it was one change"


def zipped(about: dict[str, Any], parts: dict[str, bytes], kind: int = zipfile.ZIP_STORED) -> io.BytesIO:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as made:
        made.writestr("project.json", json.dumps(about))
        for name, data in parts.items():
            made.writestr(name, data)
    return file


def described(project: Project, change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    about = project.describe()
    change(about)
    return about


KEY = "0" * 32


@pytest.mark.parametrize("change", [
    lambda about: about["images"].append({"id": "../../etc/passwd", "name": "x", "place": "test"}),
    lambda about: about["images"].append({"id": KEY, "name": "x", "place": "elsewhere"}),
    lambda about: about["images"].append({"id": KEY, "name": 7, "place": "test"}),
    lambda about: about["images"].extend([{"id": KEY, "name": "x", "place": "test"}] * 2),
    lambda about: about["images"].extend({"id": k * 32, "name": "x", "place": "test", "path": "x"} for k in "ab"),
    lambda about: about["classes"].append({"id": "../c1", "name": "x"}),
    lambda about: about["classes"].append({"id": "c1", "name": "again"}),
    lambda about: about["classes"].append({"id": "c9", "name": "x", "learned": [-1, 3]}),
    lambda about: about["classes"].append({"id": "c9", "name": "x", "learned": [0, -3]}),
    lambda about: about["classes"].append({"id": "c9", "name": "x", "learned": [0, float("inf")]}),
    lambda about: about["classes"].append({"id": "c9", "name": "x", "learned": [0, float("nan")]}),
    lambda about: about["classes"].append({"id": "c9", "name": "x", "learned": [10**30, 1]}),
    lambda about: about["classes"].append({"id": "c9", "name": "x", "learned": [0]}),
    lambda about: about["classes"].extend({"id": f"c{i}", "name": str(i), "learned": [0, 1]} for i in (8, 9)),
    lambda about: about["classes"].append({"id": "c9", "name": ["x"]}),
    lambda about: about.update(version=99),
    lambda about: about.update(version="1"),
    lambda about: about.update(format="other"),
    lambda about: about.update(digest="0" * 32),
    lambda about: about.update(garbage=["../x"]),
    lambda about: about.update(name=3),
    lambda about: about.pop("classes"),
])  # fmt: skip
def test_a_zip_with_a_strange_description_is_refused(project: Project, change: Callable[..., object]) -> None:
    project.add_class("cats")
    before = everything(project.folder)
    with pytest.raises(DataError):
        read_zip(project, zipped(described(project, change), {"x": b"x", "task": b""}), lambda task: 1)
    assert everything(project.folder) == before


@pytest.mark.parametrize("text", [b"[" * 100_000, b"[]", b"null", b"{", b"\xff", b'{"format": "cnaps-project"}'])
def test_a_description_that_is_none_is_refused(project: Project, text: bytes) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("project.json", text)
    with pytest.raises(DataError):
        read_zip(project, file, no_task)


def memory() -> float:
    """The most that this process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def test_a_small_zip_that_unpacks_to_very_much_is_refused(project: Project) -> None:
    entries = [{"id": f"{i:032x}", "name": f"{i}.png", "place": "pool"} for i in range(60)]
    bombs = {f"images/{entry['id']}": bytes(19_000_000) for entry in entries}
    file = zipped(described(project, lambda about: about.update(images=entries)), bombs, zipfile.ZIP_DEFLATED)
    del bombs
    before = memory()
    with pytest.raises(DataError, match="far more than its size"):
        read_zip(project, file, no_task)
    assert memory() - before < 100
    assert not project.images


def test_a_part_compressed_by_another_method_is_refused(project: Project) -> None:
    about = described(project, lambda about: None)
    with pytest.raises(DataError, match="use deflate"):
        read_zip(project, zipped(about, {}, zipfile.ZIP_BZIP2), no_task)


def test_a_part_larger_than_any_image_is_refused_by_name(project: Project) -> None:
    entries = [{"id": f"{i:032x}", "name": f"{i}.png", "place": "pool"} for i in range(2)]
    parts = {f"images/{entries[0]['id']}": bytes(MAX_BYTES + 1), f"images/{entries[1]['id']}": b"1"}
    about = described(project, lambda about: about.update(images=entries))
    report = read_zip(project, zipped(about, parts, zipfile.ZIP_DEFLATED), no_task)
    assert [entry["name"] for entry in report["refused"]] == ["0.png"]
    assert len(report["added"]) == 1


def test_a_list_of_contents_without_end_is_refused(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_DIRECTORY", 20_000)
    file = zipped(project.describe(), {f"{i}": b"" for i in range(1000)})
    with pytest.raises(DataError, match="too large"):
        read_zip(project, file, no_task)


def test_every_mutated_zip_is_read_or_refused_in_a_sentence(project: Project) -> None:
    project.add([("a.png", picture(1)[:200]), ("b.png", b"2")], project.add_class("cats"))
    whole = exported(project).getvalue()
    chance = random.Random(0)
    outcomes = {"read": 0, "refused": 0}
    with new_project() as other:
        for _ in range(1500):
            data = bytearray(whole)
            for _ in range(chance.randrange(1, 4)):
                data[chance.randrange(len(data) - 300, len(data))] = chance.randrange(256)
            if chance.random() < 0.2:
                del data[chance.randrange(len(data)) :]
            try:
                read_zip(other, io.BytesIO(bytes(data)), no_task)
                outcomes["read"] += 1
            except CnapsError:
                outcomes["refused"] += 1
    assert min(outcomes.values()) > 100
