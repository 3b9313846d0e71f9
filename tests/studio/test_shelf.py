"""Several projects in one folder: listed with pictures, made, copied, renamed, thrown away and brought back."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from cnaps.studio.shelf import Shelf


@pytest.fixture
def shelf(tmp_path: Path):
    with TestClient(Shelf(tmp_path / "shelf", "cnaps-lite0"), base_url="http://127.0.0.1") as client:
        yield client


def projects(client: TestClient) -> list[dict]:
    return client.get("/shelf/projects").json()["projects"]


def test_projects_are_made_opened_copied_renamed_and_thrown_away(shelf, pictures, tmp_path):
    assert "start.js" in shelf.get("/").text
    assert shelf.post("/shelf/projects", json={"name": "birds / .. at home"}).is_success
    state = shelf.get("/api/state").json()
    assert (state["name"], state["shelf"]) == ("birds / .. at home", True)
    assert Path(state["folder"]).parent == tmp_path / "shelf"
    place = shelf.post("/api/classes", json={"name": "panda"}).json()["id"]
    data = pictures["panda"][0].read_bytes()
    added = shelf.post("/api/images", data={"place": place}, files=[("files", ("a.jpg", data))]).json()["added"]
    assert shelf.post("/shelf/close").is_success
    assert "start.js" in shelf.get("/").text

    (first,) = projects(shelf)
    assert (first["classes"], first["images"], first["pictures"]) == (1, 1, added)
    assert shelf.get(f"/shelf/pictures/{first['key']}/{added[0]}").is_success
    assert shelf.get(f"/shelf/pictures/{first['key']}/..%2fproject").status_code in (404, 422)
    assert shelf.post(f"/shelf/projects/{first['key']}/duplicate").is_success
    copy = next(each for each in projects(shelf) if each["key"] != first["key"])
    assert (copy["name"], copy["images"]) == ("Copy of birds / .. at home", 1)
    assert shelf.patch(f"/shelf/projects/{copy['key']}", json={"name": "other birds"}).is_success

    gone = shelf.delete(f"/shelf/projects/{first['key']}").json()
    assert [each["name"] for each in projects(shelf)] == ["other birds"]
    assert Path(gone["trash"], "project.json").is_file()
    assert shelf.post("/shelf/restore", json=gone).is_success
    assert len(projects(shelf)) == 2
    assert shelf.post(f"/shelf/projects/{copy['key']}/open").is_success
    assert shelf.get("/api/state").json()["images"][0]["id"] == added[0]


def test_a_damaged_project_is_listed_with_the_reason_and_others_are_not_disturbed(shelf, tmp_path):
    (tmp_path / "shelf/broken").mkdir()
    (tmp_path / "shelf/broken/project.json").write_text("{")
    shelf.post("/shelf/projects", json={"name": "whole"})
    shelf.post("/shelf/close")
    assert {each["name"]: bool(each["error"]) for each in projects(shelf)} == {"broken": True, "whole": False}
    assert shelf.post("/shelf/projects/nothing/open").status_code == 422
