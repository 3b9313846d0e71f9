"""Tasks on paper, and the commands that write and show them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from cnaps.cli import main
from cnaps.data.collection import Collection
from cnaps.episodes import Sampler, read_manifest, write_manifest
from cnaps.errors import DataError


@pytest.fixture
def collections(uneven: Collection, letters: Collection) -> dict[str, Collection]:
    return {"uneven": uneven, "letters": letters}


@pytest.fixture
def written(tmp_path: Path, collections: dict[str, Collection]) -> Path:
    sampler = Sampler(list(collections.values()), "train", seed=3)
    write_manifest(tmp_path / "tasks.jsonl", map(sampler.describe, range(12)), collections, sampler.protocol)
    return tmp_path / "tasks.jsonl"


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    return int(left.value.code or 0)


def test_a_manifest_gives_back_the_tasks_that_were_written(
    written: Path, collections: dict[str, Collection]
) -> None:
    sampler = Sampler(list(collections.values()), "train", seed=3)
    assert read_manifest(written, collections) == [sampler.describe(i) for i in range(12)]


def test_a_manifest_names_protocol_classes_and_images(written: Path) -> None:
    header, first, *_ = (json.loads(line) for line in written.read_text(encoding="utf-8").splitlines())
    assert header["protocol"]["seed"] == 3
    assert header["protocol"]["limits"]["max_ways"] == 50
    assert set(header["collections"]) == {"letters", "uneven"}
    assert len(first["classes"]) == len(first["context"]) == len(first["targets"])
    assert all(key.endswith(".png") for keys in first["context"] + first["targets"] for key in keys)


def test_a_manifest_of_other_data_is_refused_with_the_reason(
    written: Path, collections: dict[str, Collection], make: Callable[..., Collection]
) -> None:
    other = make("letters", [20] * 30)
    with pytest.raises(DataError, match="made from other data: it needs letters with fingerprint"):
        read_manifest(written, collections | {"letters": other})


def test_a_manifest_asks_for_the_collections_it_needs(written: Path, uneven: Collection) -> None:
    with pytest.raises(DataError, match="needs the collections letters too"):
        read_manifest(written, {"uneven": uneven})


@pytest.mark.parametrize(
    ("line", "replacement", "message"),
    [
        (0, "{}", "no manifest of tasks"),
        (0, '{"format":"cnaps-tasks","version":2,"collections":{}}', "version 2"),
        (0, "not json", "line 1 is no JSON"),
        (2, "[1]", "line 3 is no JSON object"),
        (2, '{"index":1', "line 3 is no JSON"),
        (2, '{"index":1}', "line 3: there is no 'collection'"),
        (
            2,
            '{"index":1,"collection":"uneven","classes":["class 999"]}',
            "there is no 'class class 999 in uneven'",
        ),
        (2, '{"index":1,"collection":"uneven","classes":[],"context":[],"targets":[]}', "needs classes"),
        (
            2,
            '{"index":1,"collection":"uneven","classes":["class 000"],"context":[["x"]],"targets":[[]]}',
            "no 'x'",
        ),
        (2, '{"index":1,"collection":"uneven","classes":["class 000"],"context":[],"targets":[]}', "damaged"),
        (
            2,
            '{"index":1,"collection":"uneven","classes":["class 000"],"context":[[[]]],"targets":[[]]}',
            "damaged",
        ),
        (2, '{"index":1,"collection":["uneven"],"classes":3,"context":[],"targets":[]}', "damaged"),
    ],
)
def test_a_damaged_manifest_is_refused_with_its_line(
    written: Path, collections: dict[str, Collection], line: int, replacement: str, message: str
) -> None:
    lines = written.read_text(encoding="utf-8").splitlines()
    lines[line] = replacement
    written.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_manifest(written, collections)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    for name in ("x", "missing"):
        with pytest.raises(DataError, match="cannot read the manifest"):
            read_manifest(tmp_path / name, {})


def test_the_command_writes_the_same_manifest_as_the_library(
    written: Path, collections: dict[str, Collection], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = [collection.path for collection in collections.values()]
    code = run(
        "tasks",
        "sample",
        *data,
        "--tasks",
        12,
        "--seed",
        3,
        "--split",
        "train",
        "--out",
        tmp_path / "b.jsonl",
    )
    assert code == 0
    assert (tmp_path / "b.jsonl").read_bytes() == written.read_bytes()
    assert "12 tasks of the split train, seed 3" in capsys.readouterr().out


def test_the_command_fixes_ways_shots_and_targets(uneven: Collection, tmp_path: Path) -> None:
    sizes = ("--ways", 5, "--shots", 1, "--targets", 2, "--tasks", 4)
    assert run("tasks", "sample", uneven.path, *sizes, "--out", tmp_path / "t.jsonl") == 0
    for task in read_manifest(tmp_path / "t.jsonl", {"uneven": uneven}):
        assert (task.ways, task.context_size, task.target_size) == (5, 5, 10)


def test_the_command_draws_a_task_of_a_manifest(
    written: Path, collections: dict[str, Collection], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = [collection.path for collection in collections.values()]
    out = tmp_path / "task.png"
    assert run("tasks", "show", *data, "--manifest", written, "--task", 5, "--out", out) == 0
    described = read_manifest(written, collections)[5]
    assert f"{described.ways} ways, {described.context_size} context" in capsys.readouterr().out
    with Image.open(out) as picture:
        assert picture.format == "PNG"
        assert picture.height > 50 * described.ways


def test_the_command_draws_a_task_without_a_manifest(uneven: Collection, tmp_path: Path) -> None:
    assert run("tasks", "show", uneven.path.parent, "--split", "all", "--out", tmp_path / "t.png") == 0
    assert (tmp_path / "t.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "{data}", "--manifest", "{manifest}", "--task", "99"], "has no task 99"),
        (["show", "{empty}"], "no collection in"),
        (["sample", "{data}", "--split", "nowhere", "--out", "{empty}/x"], "no classes in a split 'nowhere'"),
        (["sample", "{data}", "{data}", "--out", "{empty}/x"], "same name"),
    ],
)
def test_mistakes_end_with_a_sentence_and_no_file(
    arguments: list[str], message: str, uneven: Collection, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    sampler = Sampler([uneven], "train")
    write_manifest(tmp_path / "m.jsonl", [sampler.describe(0)], {"uneven": uneven})
    places = {"data": uneven.path, "empty": empty, "manifest": tmp_path / "m.jsonl"}
    assert run("tasks", *(argument.format(**places) for argument in arguments)) == 2
    assert message in capsys.readouterr().err
    assert list(empty.iterdir()) == []
