"""A folder of task files behind a server: files come, go and are replaced while it runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cnaps.errors import CheckpointError, InputError
from cnaps.runtime.engine import open_engine
from cnaps.runtime.task import Examples, FittedTask
from cnaps.runtime.taskfile import versions_in, write_task
from cnaps.serving.tasks import TaskFolder
from cnaps.weights import DEFAULT_MODEL

from ..servers import Server, until

Pictures = dict[str, list[Path]]


def learn_task(path: Path, pictures: Pictures, *names: str, size: int = 96) -> None:
    files = [(picture, name) for name in names for picture in pictures[name][:3]]
    model = open_engine(DEFAULT_MODEL)
    examples = Examples.read([picture for picture, _ in files], [name for _, name in files], size)
    write_task(path, FittedTask.learn(open_engine(model), examples))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, pictures: Pictures) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    learn_task(folder / "animals.safetensors", pictures, "panda", "sunflower")
    learn_task(folder / "things.task", pictures, "watch", "pizza", size=64)
    (folder / "damaged.safetensors").write_bytes((folder / "things.task").read_bytes()[:-9] + b"different")
    (folder / "notes.txt").write_text("no task")
    (folder.parent / "outside.safetensors").write_bytes((folder / "things.task").read_bytes())
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    server = Server("serve", str(folder), "--workers", "2")
    yield server
    server.stop()


def ask(server: Server, name: str, picture: Path) -> tuple[str | int, str]:
    """The answer, or the status and the reason of a refusal; a connection for each question."""
    answer = httpx.post(f"{server.address}/tasks/{name}/predict", content=picture.read_bytes(), timeout=60)
    if answer.is_success:
        return answer.json()["predictions"][0]["label"], ""
    return answer.status_code, answer.json()["detail"]


def ask_all_workers(server: Server, name: str, picture: Path) -> set[str | int]:
    """What both processes say."""
    found: dict[str, str | int] = {}

    def once() -> bool:
        with httpx.Client(base_url=server.address, timeout=60) as client:  # one connection, so one process
            process = re.search(r'process="(\d+)"', client.get("/metrics").text)
            assert process
            answer = client.post(f"/tasks/{name}/predict", content=picture.read_bytes())
            label = answer.json()["predictions"][0]["label"] if answer.is_success else answer.status_code
            found[process[1]] = label
        return len(found) == 2

    until(once)
    return set(found.values())


def test_every_task_of_the_folder_is_served_by_its_name(server: Server, pictures: Pictures) -> None:
    names = ["animals.safetensors", "damaged.safetensors", "things.task"]
    assert server.client.get("/tasks").json() == {"tasks": names}
    assert server.client.get("/health").json()["tasks"] == 3
    assert ask_all_workers(server, "animals.safetensors", pictures["panda"][9]) == {"panda"}
    assert ask_all_workers(server, "things.task", pictures["watch"][9]) == {"watch"}


def test_a_task_is_addressed_without_the_ending_of_its_file(server: Server, pictures: Pictures) -> None:
    assert ask(server, "animals", pictures["panda"][9]) == ("panda", "")
    assert ask(server, "things", pictures["watch"][9]) == ("watch", "")
    assert ask(server, "anim", pictures["panda"][9])[0] == 404


def test_health_tells_the_version_of_each_task(server: Server, folder: Path) -> None:
    versions = server.client.get("/health").json()["versions"]
    assert versions["animals.safetensors"] == versions_in(folder / "animals.safetensors")
    assert versions["animals.safetensors"]["task"] != versions["things.task"]["task"]


def test_a_damaged_file_is_refused_by_name_and_the_others_go_on(server: Server, pictures: Pictures) -> None:
    status, reason = ask(server, "damaged.safetensors", pictures["panda"][9])
    assert (status, reason.split(" is ")[0]) == (409, "damaged.safetensors"), "its name, without the folder"
    assert ask(server, "animals.safetensors", pictures["panda"][9]) == ("panda", "")


@pytest.mark.parametrize("name", ["../outside.safetensors", "..%2Foutside.safetensors", "notes.txt", "x"])
def test_no_other_file_can_be_asked_for(name: str, server: Server, pictures: Pictures) -> None:
    assert ask(server, name, pictures["panda"][9])[0] == 404


def test_new_replaced_and_deleted_files_are_noticed(server: Server, folder: Path, pictures: Pictures) -> None:
    picture = pictures["panda"][9]
    assert ask(server, "new.task", picture)[0] == 404
    learn_task(folder / "new.task", pictures, "watch", "pizza")
    assert ask_all_workers(server, "new.task", picture) <= {"watch", "pizza"}
    learn_task(folder / "new.task", pictures, "panda", "pizza")
    assert ask_all_workers(server, "new.task", picture) == {"panda"}
    os.truncate(folder / "new.task", 100)
    assert ask_all_workers(server, "new.task", picture) == {409}
    (folder / "new.task").unlink()
    assert ask_all_workers(server, "new.task", picture) == {404}


def test_few_tasks_stay_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cnaps.serving.tasks._KEPT", 1)
    tasks = TaskFolder(folder)
    first = tasks.find("animals.safetensors")
    assert tasks.find("animals.safetensors") is first
    tasks.find("things.task")
    assert tasks.find("animals.safetensors") is not first
    with pytest.raises(CheckpointError, match=r"^damaged\.safetensors is"):
        tasks.find("damaged.safetensors")
    with pytest.raises(InputError, match="no folder"):
        TaskFolder(folder / "notes.txt")
