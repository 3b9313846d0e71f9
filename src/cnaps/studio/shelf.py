"""Several projects in one folder: a start page that lists them, and one of them open at a time."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Body, FastAPI, Request
from fastapi.responses import FileResponse, Response
from starlette.datastructures import State
from starlette.types import Receive, Scope, Send

from cnaps.errors import CnapsError, DataError, InputError, explained
from cnaps.files import write_text
from cnaps.runtime.sorting import folder_name
from cnaps.serving.app import STATIC, guarded_app
from cnaps.studio.description import class_name, encode, parse
from cnaps.studio.server import create_studio, explain, picture_of

_TRASH = ".trash"
_PICTURES = 4  # of each project


class Shelf:
    """An ASGI application: the start page, or the studio of the project that is open."""

    def __init__(self, folder: str | Path, model: str, *, token: str | None = None) -> None:
        self.folder, self.model, self.token = Path(folder), model, token
        self.folder.mkdir(parents=True, exist_ok=True)
        self.studio: FastAPI | None = None
        self._running = contextlib.AsyncExitStack()
        self._app = self._start_page()

    @property
    def state(self) -> State:
        """That of the open project: the command line tells it when the program ends."""
        return State() if self.studio is None else self.studio.state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """To the start page what is its, the rest to the open project."""
        path: str = scope.get("path", "")
        own = scope["type"] == "lifespan" or path.startswith("/shelf")
        await (self._app if own or self.studio is None else self.studio)(scope, receive, send)

    # projects

    def projects(self) -> list[dict[str, Any]]:
        """What is on the shelf, the latest first; a damaged project is listed with the reason."""
        found = []
        for file in self.folder.glob("*/project.json"):
            about: dict[str, Any] = {"key": file.parent.name, "changed": file.stat().st_mtime}
            try:
                known = parse(file.read_bytes())
                pictures = [entry["id"] for entry in known["images"]][-_PICTURES:]
                about |= {"name": known["name"], "classes": len(known["classes"]), "images": len(known["images"])}
                about |= {"pictures": pictures, "error": ""}
            except (OSError, DataError) as error:
                about |= {"name": file.parent.name, "classes": 0, "images": 0, "pictures": [], "error": str(error)}
            found.append(about)
        return sorted(found, key=lambda each: -each["changed"])

    def _find(self, key: str) -> Path:
        """A key from outside is looked up and never becomes part of a path."""
        for file in self.folder.glob("*/project.json"):
            if file.parent.name == key:
                return file.parent
        raise InputError("there is no such project any more")

    def _free(self, name: str) -> Path:
        """A new folder for a project of that name."""
        wanted = folder_name(class_name(name))
        number, path = 1, self.folder / wanted
        while os.path.lexists(path):
            number += 1
            path = self.folder / f"{wanted} {number}"
        return path

    async def open(self, folder: Path) -> None:
        """Open a project, after the one that is open."""
        await self.close()
        studio = create_studio(folder, self.model, token=self.token, shelf=True)
        await self._running.enter_async_context(studio.router.lifespan_context(studio))
        self.studio = studio

    async def close(self) -> None:
        """Back to the start page."""
        if self.studio is not None:
            self.studio.state.leaving = True  # whoever waits for news is answered now
            self.studio = None
            await self._running.aclose()
            self._running = contextlib.AsyncExitStack()

    def _start_page(self) -> FastAPI:
        @contextlib.asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[None]:
            yield
            await self.close()

        app = guarded_app("cnaps studio", lifespan, self.token)
        app.add_exception_handler(CnapsError, explain)
        app.include_router(self._routes(), include_in_schema=False)
        return app

    def _routes(self) -> APIRouter:
        routes = APIRouter()

        @routes.get("/")
        def page() -> Response:
            return FileResponse(STATIC / "start.html")

        @routes.get("/health")
        def health() -> dict[str, str]:
            return {"status": "no project is open"}

        @routes.get("/shelf/projects")
        def projects() -> dict[str, Any]:
            return {"folder": str(self.folder.absolute()), "projects": self.projects()}

        @routes.get("/shelf/pictures/{key}/{image}")
        def picture(key: str, image: str) -> Response:
            folder = self._find(key)
            if image not in [entry["id"] for entry in parse((folder / "project.json").read_bytes())["images"]]:
                raise InputError("there is no such image")
            path = folder / "cache" / f"{image}.thumb"
            if not path.is_file():
                raise InputError("there is no picture of it yet")
            return picture_of(path.read_bytes())

        @routes.post("/shelf/projects")
        async def new(name: str = Body(embed=True)) -> None:
            await self.open(self._free(name))
            assert self.studio is not None
            self.studio.state.engine.project.rename(name)

        @routes.post("/shelf/projects/{key}/open")
        async def open_one(key: str) -> None:
            await self.open(self._find(key))

        @routes.post("/shelf/close")
        async def close() -> None:
            await self.close()

        @routes.post("/shelf/projects/{key}/duplicate")
        async def duplicate(key: str) -> None:
            source = self._find(key)
            await self.close()
            about = _stored(source)
            name = class_name(f"Copy of {about['name']}")
            target = self._free(name)
            temporary = target.with_name(f".{target.name}.tmp")
            try:
                with explained(CnapsError, "the copy cannot be written"):
                    shutil.copytree(source, temporary, ignore=shutil.ignore_patterns("trash", ".lock"))
                    write_text(temporary / "project.json", encode({**about, "name": name}))
                    os.replace(temporary, target)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)

        @routes.patch("/shelf/projects/{key}")
        async def rename(key: str, name: str = Body(embed=True)) -> None:
            folder = self._find(key)
            await self.close()
            write_text(folder / "project.json", encode({**_stored(folder), "name": class_name(name)}))

        @routes.delete("/shelf/projects/{key}")
        async def delete(key: str) -> dict[str, str]:
            """To the trash of the shelf, whence it can be moved back."""
            folder = self._find(key)
            await self.close()
            trash = self.folder / _TRASH
            trash.mkdir(exist_ok=True)
            target = trash / f"{folder.name} {time.strftime('%Y-%m-%d %H.%M.%S')}"
            os.replace(folder, target)
            return {"trash": str(target)}

        @routes.post("/shelf/restore")
        async def restore(trash: str = Body(embed=True)) -> None:
            for path in (self.folder / _TRASH).glob("*"):
                if str(path) == trash:
                    os.replace(path, self._free(parse((path / "project.json").read_bytes())["name"]))

        @routes.get("/shelf")
        def known(request: Request) -> dict[str, bool]:
            return {"open": self.studio is not None}

        return routes


def _stored(folder: Path) -> dict[str, Any]:
    """What `project.json` says, word for word."""
    text = (folder / "project.json").read_bytes()
    parse(text)  # refused where it is damaged
    return dict(json.loads(text))
