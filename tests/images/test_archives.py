"""Archives are read safely: nothing escapes, nothing is followed, nothing grows without limit."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile
from pathlib import Path

import pytest

from cnaps.errors import DataError
from cnaps.images import archives
from cnaps.images.archives import open_tree

from ..data.conftest import write_files, write_tar, write_zip

FILES = {"a/1.txt": b"one", "a/2.txt": b"two", "b/3.txt": b"three" * 1000}


@pytest.mark.parametrize("kind", ["folder", "tar", "tar.gz", "tar.bz2", "tar.xz", "zip"])
def test_folders_and_archives_look_the_same(kind: str, tmp_path: Path) -> None:
    if kind == "folder":
        path = write_files(tmp_path / "it", FILES)
    elif kind == "zip":
        path = write_zip(tmp_path / "it.zip", FILES)
    else:
        path = write_tar(tmp_path / f"it.{kind}", FILES, "w:" + kind.partition(".")[2] if "." in kind else "w")
    tree = pickle.loads(pickle.dumps(open_tree(path, tmp_path / "scratch")))
    assert {name: tree.read(name) for name in tree.names()} == FILES
    with pytest.raises(DataError):
        tree.read("not/there.txt")


def test_names_that_lead_out_of_an_archive_are_passed_over(tmp_path: Path) -> None:
    bad = {"../up.txt": b"x", "/etc/root.txt": b"x", "a/../../up.txt": b"x", "c\\d.txt": b"x"}
    assert list(open_tree(write_tar(tmp_path / "a.tar", bad | FILES), tmp_path).names()) == list(FILES)
    assert list(open_tree(write_zip(tmp_path / "a.zip", bad | FILES), tmp_path).names()) == list(FILES)


def test_links_and_devices_in_archives_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, kind in [("soft", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE), ("fifo", tarfile.FIFOTYPE)]:
            member = tarfile.TarInfo(name)
            member.type = kind
            member.linkname = str(tmp_path / "secret.txt")
            archive.addfile(member)
    assert not list(open_tree(tmp_path / "a.tar", tmp_path).names())
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        link = zipfile.ZipInfo("soft")
        link.external_attr = 0o120777 << 16
        zipped.writestr(link, str(tmp_path / "secret.txt"))
    assert not list(open_tree(tmp_path / "a.zip", tmp_path).names())


def test_a_folder_gives_nothing_from_outside(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    tree = open_tree(write_files(tmp_path / "in", FILES), tmp_path)
    for name in ("../secret.txt", str(tmp_path / "secret.txt")):
        with pytest.raises(DataError, match="leads out"):
            tree.read(name)


def test_hidden_files_and_leavings_are_passed_over(tmp_path: Path) -> None:
    extra = {"a/.directory": b"", "__MACOSX/a/1.txt": b"", "a/Thumbs.db": b"", ".git/x": b""}
    assert list(open_tree(write_files(tmp_path / "it", FILES | extra), tmp_path).names()) == list(FILES)
    assert list(open_tree(write_zip(tmp_path / "it.zip", FILES | extra), tmp_path).names()) == list(FILES)


def test_a_zip_bomb_is_refused(tmp_path: Path) -> None:
    tree = open_tree(write_zip(tmp_path / "a.zip", {"a.txt": bytes(20_000_000)}), tmp_path)
    with pytest.raises(DataError, match="grows from"):
        tree.read("a.txt")


def test_a_compressed_tar_that_grows_too_much_is_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.tar.gz", "wb") as file:
        for _ in range(100):
            file.write(bytes(1_000_000))
    with pytest.raises(DataError, match="unpacks to more than"):
        open_tree(tmp_path / "a.tar.gz", tmp_path / "scratch")
    assert not list((tmp_path / "scratch").iterdir())


def test_a_file_above_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_FILE", 100)
    for path in (
        write_files(tmp_path / "it", FILES),
        write_tar(tmp_path / "it.tar", FILES),
        write_zip(tmp_path / "it.zip", FILES),
    ):
        tree = open_tree(path, tmp_path)
        assert tree.read("a/1.txt") == b"one"
        with pytest.raises(DataError, match="limit for one file"):
            tree.read("b/3.txt")


def test_tars_inside_a_tar_are_folders(tmp_path: Path) -> None:
    inner = {}
    for name in ("n00000001", "n00000002"):
        write_tar(tmp_path / "inner.tar", {f"{name}_1.JPEG": name.encode()})
        inner[f"{name}.tar"] = (tmp_path / "inner.tar").read_bytes()
    tree = open_tree(write_tar(tmp_path / "outer.tar", inner), tmp_path)
    assert sorted(tree.names()) == ["n00000001/n00000001_1.JPEG", "n00000002/n00000002_1.JPEG"]
    assert tree.read("n00000002/n00000002_1.JPEG") == b"n00000002"


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.zip", "a.txt"])
def test_a_damaged_archive_is_an_error_that_names_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "a.zip":
        write_zip(path, FILES)
        content = bytearray(path.read_bytes())
        content[40:80] = bytes(40)
        path.write_bytes(content)
    elif name == "a.tar.gz":
        write_tar(path, FILES, "w:gz")
        path.write_bytes(path.read_bytes()[:-30])
    else:
        path.write_bytes(b"this is no archive at all" * 100)

    def read_all() -> None:
        tree = open_tree(path, tmp_path / "scratch")
        for file in tree.names():
            tree.read(file)

    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        read_all()


def test_a_missing_source_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        open_tree(tmp_path / "nowhere.tar", tmp_path)


def test_archives_in_a_folder_are_opened_only_where_asked(tmp_path: Path) -> None:
    write_zip(tmp_path / "part_one.zip", {"x.txt": b"x"})
    write_zip(tmp_path / "other.zip", {"y.txt": b"y"})
    (tmp_path / "z.txt").write_bytes(b"z")
    tree = open_tree(tmp_path, tmp_path / "scratch", ["part_*.zip"])
    assert set(tree.names()) == {"other.zip", "part_one.zip", "x.txt", "z.txt"}
    assert tree.read("x.txt") == b"x"
    assert tree.read("z.txt") == b"z"
    assert io.BytesIO(tree.read("other.zip")).read(2) == b"PK"
