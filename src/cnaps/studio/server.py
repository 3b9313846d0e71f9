"""The studio's server: the page, what it shows and what it may change."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import IO, Any

from fastapi import APIRouter, Body, FastAPI, File, Form, Request, UploadFile
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse

from cnaps.errors import CnapsError, InputError, explained
from cnaps.runtime.engine import open_engine
from cnaps.runtime.examples import choose_size
from cnaps.runtime.results import Result, results_csv
from cnaps.runtime.taskfile import task_bytes
from cnaps.serving.app import STATIC, Batcher, add_prediction, guarded_app
from cnaps.serving.decoding import Decoder
from cnaps.studio.answers import Answers
from cnaps.studio.archive import MAX_ZIP, write_zip
from cnaps.studio.engine import Learner
from cnaps.studio.exporting import example_zip, has_pages, import_file, page_zip
from cnaps.studio.store import Project, Upload

_FILES = 64  # a request
_PATIENCE = 15.0  # seconds that a request for news waits


def create_studio(folder: str | Path, model: str, *, token: str | None = None, shelf: bool = False) -> FastAPI:
    """The studio of a project as an ASGI application; `shelf` where it is one of several."""
    network = open_engine(model)
    decoder = Decoder(choose_size(network, []))
    project = Project(folder, decoder)
    engine = Learner(project, network)
    answers = Answers(decoder)

    def lifespan(app: FastAPI) -> AbstractAsyncContextManager[None]:
        return at_work(engine, batcher, answers.clear)

    app = guarded_app("cnaps studio", lifespan, token, to_disk={"/api/import": MAX_ZIP})
    app.state.engine, app.state.leaving = engine, False
    app.add_exception_handler(CnapsError, explain)
    app.include_router(_routes(project, engine, shelf), include_in_schema=False)
    app.include_router(_answering(project, engine, answers, local=token is None), include_in_schema=False)
    batcher = add_prediction(app, lambda: engine.fitted, decoder)
    return app


@contextlib.asynccontextmanager
async def at_work(learner: Learner, batcher: Batcher, *ends: Callable[[], None]) -> AsyncIterator[None]:
    """A project is learned and predicts for as long as its application runs; then everything is closed."""
    learner.start()
    yield
    batcher.close()
    for end in (learner.stop, *ends, learner.project.files.decoder.close, learner.project.close):
        await asyncio.to_thread(end)


async def explain(request: Request, error: Exception) -> Response:
    """A mistake that the page shows."""
    return JSONResponse({"error": str(error)}, 422)


def picture_of(data: bytes, headers: dict[str, str] | None = None) -> Response:
    """A thumbnail."""
    return Response(data, headers=headers, media_type="image/png" if data[:4] == b"\x89PNG" else "image/jpeg")


def _uploads(files: list[UploadFile], paths: list[str]) -> Iterator[Upload]:
    """Each file by its path, where the page says it, or by its name; read when it is asked for."""
    if len(files) > _FILES:
        raise InputError(f"at most {_FILES} files in one request")
    names = paths if len(paths) == len(files) else [file.filename or "image" for file in files]
    return ((name, file.file.read()) for name, file in zip(names, files, strict=True))


def _routes(project: Project, engine: Learner, shelf: bool) -> APIRouter:
    routes = APIRouter()
    importing = asyncio.Lock()  # one at a time: each may fill the disk
    session = secrets.token_hex(4)  # a page that outlived a restart asks about versions that never were

    @routes.get("/")
    def page() -> Response:
        return FileResponse(STATIC / "index.html")

    @routes.get("/api/state")
    async def state(request: Request, since: str = "") -> dict[str, Any]:
        until = time.monotonic() + _PATIENCE
        while (
            since == f"{session}.{engine.version}" and time.monotonic() < until and not request.app.state.leaving
        ):
            await asyncio.sleep(0.05)
        return {**await asyncio.to_thread(_state, project, engine, session), "shelf": shelf}

    @routes.get("/api/images/{key}")
    def thumbnail(key: str) -> Response:
        return picture_of(project.thumbnail(key), {"Cache-Control": "private, max-age=86400, immutable"})

    @routes.post("/api/images")
    def add(
        files: list[UploadFile] = File(),
        place: str = Form(),
        paths: list[str] = Form(default=[]),
        group: str = Form(default=""),
    ) -> dict[str, Any]:
        return project.add(_uploads(files, paths), place, group)

    @routes.patch("/api/images")
    def move(images: list[str] = Body(), place: str = Body()) -> None:
        project.move(images, place)

    @routes.delete("/api/images")
    def remove(images: list[str] = Body(embed=True)) -> None:
        project.remove(images)

    @routes.post("/api/right")
    def confirm(images: list[str] = Body(embed=True)) -> None:
        project.confirm(images)

    @routes.post("/api/held-out")
    def hold_out(share: float = Body(gt=0, lt=1, embed=True)) -> dict[str, int]:
        return {"held": project.hold_out(share)}

    @routes.post("/api/classes")
    def add_class(name: str = Body(embed=True)) -> dict[str, str]:
        return {"id": project.add_class(name)}

    @routes.patch("/api/classes/{key}")
    def rename_class(key: str, name: str = Body(embed=True)) -> None:
        project.rename_class(key, name)

    @routes.delete("/api/classes/{key}")
    def remove_class(key: str) -> None:
        project.remove_class(key)

    @routes.patch("/api/project")
    def rename(name: str = Body(embed=True)) -> None:
        project.rename(name)

    @routes.post("/api/undo")
    def undo() -> dict[str, bool]:
        return {"undone": project.undo()}

    @routes.get("/api/export/{kind}")
    def export(kind: str) -> Response:
        name = "".join(c if c.isascii() and c.isalnum() else "-" for c in project.name).strip("-") or "project"
        endings = {"task": ".task", "onnx": "-onnx.zip", "page": "-page.zip", "project": ".zip"}
        known = engine.fitted
        if kind not in endings:
            raise InputError(f"there is: {', '.join(endings)}")
        if kind != "project" and known is None:
            raise InputError("there is nothing to export yet: give examples of at least two classes")

        def write(file: IO[bytes]) -> None:
            if known is None or kind == "project":
                write_zip(project, file)
            elif kind == "task":
                file.write(task_bytes(known))
            else:
                (page_zip if kind == "page" else example_zip)(known, file, name)

        return _download(project.folder, f"{name}{endings[kind]}", write)

    @routes.post("/api/import")
    async def bring_in(request: Request) -> dict[str, Any]:
        """The file is the body, so that a large one goes to the disk as it comes."""
        if importing.locked():
            raise InputError("another file is being imported: try again when it is done")
        async with importing:
            with _scratch(project.folder) as file:
                async for piece in request.stream():
                    await asyncio.to_thread(file.write, piece)
                return await asyncio.to_thread(import_file, project, engine.model, file)

    return routes


def _answering(project: Project, engine: Learner, answers: Answers, *, local: bool) -> APIRouter:
    """Images that are classified and not kept; `local`: who asks sits at this machine and may name folders."""
    routes = APIRouter(prefix="/api/answers")

    def only_here() -> None:
        if not local:
            raise InputError("folders can be named on the machine of the studio only: drop the images instead")

    @routes.get("")
    def describe() -> dict[str, Any]:
        return {**answers.describe(), "local": local}

    @routes.post("")
    def open_folder(folder: str = Body(embed=True)) -> None:
        only_here()
        answers.open_folder(folder)
        answers.start(engine.fitted)

    @routes.post("/files")
    def drop(files: list[UploadFile] = File(), paths: list[str] = Form(default=[])) -> None:
        answers.drop(list(_uploads(files, paths)))

    @routes.post("/start")
    def start() -> None:
        answers.start(engine.fitted)

    @routes.delete("")
    def clear() -> None:
        answers.clear()

    @routes.post("/sort")
    def sort(into: str = Body(embed=True)) -> dict[str, int]:
        only_here()
        return {"copied": answers.sort_into(into)}

    @routes.get("/images/{index}")
    def thumbnail(index: int) -> Response:
        return picture_of(answers.thumbnail(index))

    @routes.get("/{kind}")
    def take(kind: str) -> Response:
        if kind == "tray":
            return _text("tray.csv", _tray(project, engine))
        if not answers.results:
            raise InputError("there are no answers yet")
        if kind == "table":
            return _text("answers.csv", answers.csv())
        if kind == "sorted":
            return _download(project.folder, "sorted.zip", answers.write_zip)
        if kind != "report":
            raise InputError("there is: table, report, sorted, tray")
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "report.html"
            answers.report(path)
            return _text("report.html", path.read_text(encoding="utf-8"))

    return routes


def _tray(project: Project, engine: Learner) -> str:
    """The answers for the images of the tray, as a table."""
    about, predictions = project.describe(), engine.insight.predictions
    names = {entry["id"]: entry["name"] for entry in about["classes"]}
    results = []
    for image in about["images"]:
        found = predictions.get(image["id"])
        if image["place"] == "test" and found:
            ranking = tuple((names[key], p) for key, p in found["top"][:3] if key in names)
            if ranking:
                results.append(Result(image["name"], ranking, stranger=found["doubt"] == "none"))
    return results_csv(results)


def _text(name: str, text: str) -> Response:
    kind = "text/csv" if name.endswith(".csv") else "text/html"
    disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type=f"{kind}; charset=utf-8", headers=disposition)


def _download(folder: Path, name: str, write: Callable[[IO[bytes]], None]) -> Response:
    """A file that is written to the disk first, however large it is."""
    with contextlib.ExitStack() as closing:
        file = closing.enter_context(_scratch(folder))
        write(file)
        headers = {
            "Content-Disposition": f'attachment; filename="{name}"',
            "Content-Length": str(file.seek(0, 2)),
        }
        pieces = _pieces(file, closing.pop_all())
    return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers)


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[IO[bytes]]:
    """A file without a name on the disk that has room for the project's images."""
    with explained(CnapsError, f"cannot write to {folder}"), tempfile.TemporaryFile(dir=folder) as file:
        yield file


def _pieces(file: IO[bytes], closing: contextlib.ExitStack) -> Iterator[bytes]:
    with closing:
        file.seek(0)
        while piece := file.read(1 << 20):
            yield piece


def _state(project: Project, engine: Learner, session: str) -> dict[str, Any]:
    with project.lock:
        settled, version, about, can_undo = engine.settled, engine.version, project.describe(), project.can_undo
    return {
        **about,
        **vars(engine.insight),
        "version": f"{session}.{version}",
        "folder": str(project.folder.absolute()),
        "model": engine.model.name or "own model",
        "size": engine.size,
        "pages": has_pages(),
        "can_undo": can_undo,
        "status": engine.status,
        "settled": settled,
    }
