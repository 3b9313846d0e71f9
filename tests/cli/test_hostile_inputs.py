"""Hostile and odd inputs cost one sentence: no traceback, no hang, no memory."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from cnaps.runtime.taskfile import write_task

from ..compatibility import make

PROGRAM = [sys.executable, "-c", "from cnaps.cli import main; main()"]


def start(*arguments: object, **options: object) -> subprocess.Popen[str]:
    line = [*PROGRAM, *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
    return subprocess.Popen(line, **(pipes | options))  # type: ignore[call-overload]


def lie(path: Path, name: bytes, **changes: tuple[str, int, int]) -> None:
    """Change numbers of an entry of a zip: where they stand after its signature, in both of its headers."""
    data = bytearray(path.read_bytes())
    for kind, local, central in changes.values():
        for signature, at in ((b"PK\3\4", local), (b"PK\1\2", central)):
            start = data.find(signature)
            while start >= 0:
                if name in data[start : start + 100]:
                    struct.pack_into(kind[0], data, start + at, int(kind[1:]))
                start = data.find(signature, start + 4)
    path.write_bytes(data)


def class_zip(path: Path, content: bytes, how: int) -> Path:
    with zipfile.ZipFile(path, "w", how) as archive:
        archive.writestr("one/a.png", content)
        archive.writestr("two/b.png", b"x" * 20)
    return path


def test_a_bomb_of_a_kind_that_unpacks_without_limit_is_refused_by_name(tmp_path: Path, run) -> None:
    bomb = class_zip(tmp_path / "bomb.zip", b"", zipfile.ZIP_BZIP2)
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_BZIP2) as archive:
        with archive.open("one/a.png", "w") as member:
            for _ in range(200):
                member.write(bytes(1 << 20))
        archive.writestr("two/b.png", b"x" * 20)
    assert bomb.stat().st_size < 5000
    lie(bomb, b"one/a.png", size=("I1000", 22, 24))
    limit = 900_000_000  # bytes of address space beyond what the libraries map
    code = (
        "import resource, sys\n"
        "from cnaps.data.prepare import prepare\nfrom cnaps.errors import CnapsError\n"
        "held = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"resource.setrlimit(resource.RLIMIT_AS, (held + {limit},) * 2)\n"
        "try: prepare('folder', sys.argv[1], sys.argv[2], splits='none', workers=1)\n"
        "except CnapsError as error: print('told:', error)\n"
        "print('grown', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, bomb, tmp_path / "set"], capture_output=True, text=True, timeout=600
    )
    assert "told:" in done.stdout, done.stderr[-500:]
    assert int(done.stdout.split()[-1]) < 100_000, "kilobytes"


def test_entries_that_share_their_bytes_are_refused(tmp_path: Path, run) -> None:
    path = tmp_path / "overlap.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("one/0.png", b"x" * 5000)
        first = archive.infolist()[0]
        for i in range(1, 40):
            again = zipfile.ZipInfo(f"two/{i}.png")
            again.file_size, again.compress_size, again.CRC = first.file_size, first.compress_size, first.CRC
            again.header_offset = first.header_offset
            archive.filelist.append(again)
            archive.NameToInfo[again.filename] = again
    code, _, errors = run("data", "prepare", "folder", path, tmp_path / "set", "--splits", "none")
    assert (code, "overlap" in errors) == (2, True)


def test_a_zip_of_a_newer_kind_is_refused_with_a_sentence(tmp_path: Path, run) -> None:
    path = class_zip(tmp_path / "new.zip", b"x", zipfile.ZIP_STORED)
    lie(path, b"one/a.png", version=("H99", 4, 6))
    code, _, errors = run("data", "prepare", "folder", path, tmp_path / "set", "--splits", "none")
    assert (code, errors.count("\n"), "new.zip" in errors) == (2, 1, True)


def test_a_tar_member_that_claims_more_than_the_file_holds(tmp_path: Path, run) -> None:
    import tarfile

    member = tarfile.TarInfo("one/a.png")
    member.size = 3 << 30
    (tmp_path / "a.tar").write_bytes(member.tobuf() + b"x" * 1024)
    code, _, errors = run("data", "prepare", "folder", tmp_path / "a.tar", tmp_path / "set", "--splits", "none")
    assert (code, errors.count("\n")) == (2, 1)


def test_a_table_with_nul_is_refused_with_a_sentence(tmp_path: Path, run) -> None:
    (tmp_path / "a.csv").write_bytes(b"path,label\na\0.png,one\nb.png,two\n")
    for line in (
        ("data", "prepare", "folder", tmp_path / "a.csv", tmp_path / "set", "--splits", "none"),
        ("fit", tmp_path / "a.csv", tmp_path / "task"),
    ):
        code, _, errors = run(*line)
        assert (code, errors.count("\n"), "NUL" in errors) == (2, 1, True), errors


@pytest.mark.parametrize("how", ["label", "metadata"])
def test_a_hugging_face_folder_that_is_no_utf_8_is_refused_with_a_sentence(how: str, tmp_path: Path, run) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    first = b"caf\xe9" if how == "label" else b"coffee"
    labels = pa.array([first, b"tea"], pa.binary()).view(pa.string())
    table = pa.table({"image": pa.array([b"x", b"y"]), "label": labels})
    if how == "metadata":
        table = table.replace_schema_metadata({"huggingface": b'{"info": {"features": {"caf\xe9": 3}}}'})
    with pa.OSFile(str(folder / "data.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    code, _, errors = run("data", "prepare", "huggingface", folder, tmp_path / "set", "--splits", "none")
    assert (code, errors.count("\n"), "data.arrow" in errors) == (2, 1, True), errors


@pytest.mark.parametrize(
    "line",
    [
        "fit {long} task",
        "fit examples {long} --model model",
        "classify examples {long} --model model",
        "classify examples examples --model {long}",
        "predict {long} examples",
        "predict task examples --model model --out {long}.csv",
        "data prepare folder {long} set --splits none",
        "data prepare folder examples {long} --splits none",
        "data show {long}",
        "train {long} --out new",
        "train --resume {long}",
        "tasks sample {long} --out t.jsonl",
        "check {long}",
    ],
)
def test_an_overlong_name_is_one_sentence(line: str, tmp_path, examples, model_folder, task, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.symlink(model_folder, "model")
    write_task("task", task)
    code, _, errors = run(*line.format(long="x" * 300).split())
    assert (code, errors.count("\n")) == (2, 1), errors


@pytest.mark.parametrize(
    "line",
    [
        "classify examples pipe.png --model model",
        "fit pipe.csv task --model model",
        "classify examples pipe.txt --model model",
        "train pipe.toml --out new",
        "predict pipe examples",
        "data prepare folder pipe.zip set --splits none",
        "data prepare folder with set --splits none --workers 1",
        "data prepare folder examples set --splits pipe.json",
        "tasks show set --manifest pipe.jsonl",
        "import-weights pipe new",
        "check pipe",
    ],
)
def test_a_fifo_is_refused_instead_of_waited_for(line: str, tmp_path, examples, model_folder, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.symlink(model_folder, "model")
    for name in ("pipe", "pipe.png", "pipe.csv", "pipe.txt", "pipe.toml", "pipe.zip", "pipe.json", "pipe.jsonl"):
        os.mkfifo(name)
    (tmp_path / "with" / "class").mkdir(parents=True)
    os.mkfifo("with/class/pipe.png")
    if "show" in line:
        run("data", "prepare", "folder", "examples", "set", "--splits", "none")

    def stuck(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, stuck)
    signal.alarm(300)
    try:
        code, _, errors = run(*line.split())
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert (code, errors.count("\n")) == (2, 1), errors


def test_output_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = start("data", "list", stdout=full)
        _, errors = done.communicate(timeout=600)
    assert (done.returncode, errors.count("\n")) == (2, 1), errors
    assert "No space left" in errors


def test_an_interrupted_preparation_prints_no_traceback(tmp_path: Path) -> None:
    from PIL import Image

    images, labels = make.digits()
    for i in range(3000):
        place = tmp_path / "source" / str(labels[i % 30])
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[i % 30]).save(place / f"{i}.png")
    dest = tmp_path / "set"
    line = ("data", "prepare", "folder", tmp_path / "source", dest, "--splits", "none", "--workers", 2)
    scratch = tmp_path / ".set.preparing" / "origin.txt"
    for wait in (0.0, 0.4, 1.2):
        scratch.unlink(missing_ok=True)
        process = start(*line, start_new_session=True)

        while process.poll() is None and not scratch.exists():
            time.sleep(0.01)
        time.sleep(wait)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, errors = process.communicate(timeout=600)
        assert "Traceback" not in errors
        assert process.returncode in (0, 130), errors
        if process.returncode == 130:
            assert errors.count("\n") <= 1


LATIN = os.fsdecode(b"caf\xe9")


def test_a_class_in_latin_1_bytes_is_shown_escaped_everywhere(tmp_path, examples, model_folder, run) -> None:
    (examples / "digit 0").rename(examples / LATIN)
    out, page, kept = tmp_path / "r.json", tmp_path / "r.html", tmp_path / "task"
    written = ("--out", out, "--report", page, "--save", kept)
    code, output, _ = run("classify", examples, examples, "--model", model_folder, *written)
    assert code == 0
    assert "caf\\xe9" in output
    assert "caf\\xe9" in page.read_text(encoding="utf-8")
    found = json.loads(out.read_text(encoding="utf-8"))["results"]
    assert {each["label"] for each in found} == {"caf\\xe9", "digit 1"}
    assert any("caf\\xe9/" in each["path"] for each in found)
    assert run("predict", kept, examples, "--model", model_folder, "--out", tmp_path / "again.csv")[0] == 0
    code, output, _ = run("data", "prepare", "folder", examples, tmp_path / "set", "--splits", "none")
    assert code == 0
    assert json.loads((tmp_path / "set/collection.json").read_text())["classes"] == ["caf\\xe9", "digit 1"]


def test_control_characters_never_reach_a_terminal(tmp_path, examples, model_folder, run) -> None:
    odd = "\x1b]0;owned\x07 \x9b31m\u202e"
    (examples / "digit 0").rename(examples / odd)
    (examples / odd / "\x1b[2J.png").write_bytes(b"broken")
    (examples / "digit 1" / "\x1b[2J.png").write_bytes(b"broken")
    shown = []
    for line in (
        ("classify", examples, examples, "--model", model_folder),
        ("fit", examples, tmp_path / "\x1b[task", "--model", model_folder),
        ("suggest", tmp_path / "\x1b[task", examples, "--model", model_folder),
        ("predict", tmp_path / "\x1b[none", examples),
        ("data", "prepare", "folder", examples, tmp_path / "set", "--splits", "none", "--name", "\x1b[set"),
        ("data", "show", tmp_path / "set"),
        ("data", "list", tmp_path),
    ):
        _, output, errors = run(*line)
        shown.append(output + errors)
    text = re.sub("\x1b\\[\\d+m", "", "".join(shown))  # colours are the program's own
    assert not [c for c in text if c in "\x1b\x07\x9b\u202e"]
    assert "\\x1b[2J.png" in text


def test_cells_that_a_spreadsheet_would_run_are_escaped_and_read_back(tmp_path, examples, model_folder, run):
    names = ["=cmd|' calc'!A0", "@sum", "+1+1", "-2+3"]
    (examples / "digit 0").rename(examples / names[0])
    (examples / "digit 1").rename(examples / names[1])
    out = tmp_path / "out.csv"
    assert run("classify", examples, examples, "--model", model_folder, "--out", out)[0] == 0
    rows = list(csv.DictReader(out.open(encoding="utf-8")))
    assert {row["label"] for row in rows} == {f"'{names[0]}", f"'{names[1]}"}
    assert all(0 <= float(row["probability"]) <= 1 for row in rows)
    code, output, _ = run("classify", out, examples, "--model", model_folder)
    assert (code, f" {names[0]} " in output) == (0, True)
    from cnaps.paper.experiments.reporting import Table

    table = Table("", ["a"], [[name] for name in [*names, -0.5, "+1.2 ± 3.4", "-1e-5"]]).csv().splitlines()
    assert table[1:] == [f"'{name}" for name in names] + ["-0.5", "+1.2 ± 3.4", "-1e-5"]
