"""Predictions over HTTP, of one task or of a folder of them, with concurrent requests answered in batches."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
from starlette.datastructures import UploadFile

from cnaps import __version__
from cnaps.errors import CnapsError
from cnaps.runtime.task import FittedTask
from cnaps.runtime.taskfile import read_task, versions_in
from cnaps.serving.access import AccessLog
from cnaps.serving.decoding import MAX_BYTES, Decoder
from cnaps.serving.metrics import Metrics
from cnaps.serving.safety import KNOWN, Guard, shown
from cnaps.serving.tasks import TaskFolder

MAX_IMAGES = 32  # a request
MAX_WAITING = 1_024  # images, from their arrival to their answer; beyond it the server says that it is busy
_BATCH = 32
STATIC = Path(__file__).parent.parent / "static"


class Prediction(BaseModel):
    """The answer for one image: its label with all probabilities, or the reason why it was refused.

    `novelty` is how unlike all classes it is, and `none_of_these` whether that is beyond the level of the task;
    null where the task has none.
    """

    name: str
    label: str | int | None = None
    probability: float | None = None
    probabilities: dict[str, float] | None = None
    novelty: float | None = None
    none_of_these: bool | None = None
    error: str | None = None


class Answer(BaseModel):
    """The answer to a request, in the order of its images."""

    predictions: list[Prediction]


class Batcher:
    """Runs what waits together: while one batch is computed, the next one gathers."""

    def __init__(self, metrics: Metrics | None = None) -> None:
        self._queue: asyncio.Queue[tuple[FittedTask, np.ndarray, asyncio.Future[Any]]] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, "predict")
        self._worker: asyncio.Task[None] | None = None
        self.metrics = metrics or Metrics()

    async def __call__(self, fitted: FittedTask, images: Sequence[np.ndarray]) -> list[tuple[np.ndarray, float]]:
        """Probabilities (C,) and novelty for each image, uint8 (S, S, 3)."""
        loop = asyncio.get_running_loop()
        self._worker = self._worker or loop.create_task(self._run())
        futures = [loop.create_future() for _ in images]
        for image, future in zip(images, futures, strict=True):
            self._queue.put_nowait((fitted, image, future))
        return list(await asyncio.gather(*futures))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self._queue.get()]
            while len(batch) < _BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            for task in dict.fromkeys(fitted for fitted, _, _ in batch):
                images = [image for fitted, image, _ in batch if fitted is task]
                futures = [future for fitted, _, future in batch if fitted is task]
                try:
                    found = await loop.run_in_executor(self._thread, self._compute, task, images)
                except Exception as error:
                    for future in futures:
                        if not future.done():
                            future.set_exception(error)
                    continue
                for future, answer in zip(futures, found, strict=True):
                    if not future.done():  # the one who asked may have left
                        future.set_result(answer)

    def _compute(self, fitted: FittedTask, images: list[np.ndarray]) -> list[tuple[np.ndarray, float]]:
        begun = time.perf_counter()
        features = fitted.features(np.stack(images).transpose(0, 3, 1, 2))
        probabilities, novelty = fitted.probabilities(features), fitted.novelty(features)
        self.metrics.observe("batch_seconds", time.perf_counter() - begun)
        self.metrics.observe("batch_images", len(images))
        self.metrics.add("batches_total")
        self.metrics.add("images_total", len(images))
        return list(zip(probabilities, novelty.tolist(), strict=True))

    def close(self) -> None:
        """Stop."""
        if self._worker is not None:
            self._worker.cancel()
        self._thread.shutdown()


def add_prediction(
    app: FastAPI,
    source: TaskFolder | Callable[[], FittedTask | None],
    decoder: Decoder,
    max_waiting: int = MAX_WAITING,
    counts: str | None = None,
    versions: Mapping[str, str] | None = None,
) -> Batcher:
    """Add predictions, `/health`, `/metrics` and `/docs` to an application; close what it returns.

    Processes that serve together share the folder `counts`; `versions` are those of a single task file.
    """
    metrics = Metrics(counts)
    batcher = Batcher(metrics)
    file = {"type": "string", "format": "binary"}
    form = {"type": "object", "properties": {"files": {"type": "array", "items": file}}}
    content = {"multipart/form-data": {"schema": form}, "image/*": {"schema": file}}

    body = {"requestBody": {"required": True, "content": content}}

    async def answer(request: Request, fitted: FittedTask | None) -> Answer:
        begun = time.perf_counter()
        metrics.add("requests_total")
        uploads = await _uploads(request)
        if metrics["waiting_images"] + len(uploads) > max_waiting:
            metrics.add("busy_total")
            raise HTTPException(503, "too many images are waiting", {"Retry-After": "1"})
        metrics.add("waiting_images", len(uploads))
        received = time.perf_counter()
        size = fitted.image_size if fitted else None
        names = [name for name, _ in uploads]
        decoding = [asyncio.to_thread(decoder.pixels, data, size) for _, data in uploads]
        uploads.clear()  # each file is let go when it is decoded
        try:
            decoded = await asyncio.gather(*decoding, return_exceptions=True)
            metrics.observe("decoding_seconds", time.perf_counter() - received)
            images = [found for found in decoded if not isinstance(found, BaseException)]
            if images and fitted is None:
                raise HTTPException(409, "nothing has been learned yet: give examples of at least two classes")
            answers = iter(await batcher(fitted, images) if fitted else [])
        finally:
            metrics.add("waiting_images", -len(names))
        predictions = []
        for name, result in zip(names, decoded, strict=True):
            if isinstance(result, CnapsError):
                metrics.add("refused_images_total")
                predictions.append(Prediction(name=name, error=str(result)))
            elif isinstance(result, BaseException):
                raise result
            else:
                assert fitted is not None
                predictions.append(_prediction(name, fitted, *next(answers)))
        metrics.add("request_seconds_total", seconds := time.perf_counter() - begun)
        metrics.observe("request_seconds", seconds)
        if all(p.error for p in predictions):
            raise HTTPException(422, [p.model_dump(include={"name", "error"}) for p in predictions])
        return Answer(predictions=predictions)

    if isinstance(source, TaskFolder):

        @app.get("/tasks")
        def tasks() -> dict[str, list[str]]:
            """The names of the task files that are in the folder now."""
            return {"tasks": list(source.files())}

        @app.post("/tasks/{name}/predict", openapi_extra=body)
        async def predict_by(name: str, request: Request) -> Answer:
            """Classify images by the task of that name; otherwise as `/predict` of a single task."""
            try:
                fitted = await asyncio.to_thread(source.find, name)
            except KeyError:
                raise HTTPException(404, f"there is no task {name!r}; GET /tasks lists them") from None
            except CnapsError as error:
                raise HTTPException(409, str(error)) from error
            return await answer(request, fitted)

    else:

        @app.post("/predict", openapi_extra=body)
        async def predict(request: Request) -> Answer:
            """Classify images: a form with one or more `files`, or one image as the body of the request."""
            return await answer(request, source())

    @app.get("/health")
    async def health(request: Request) -> dict[str, Any]:
        """Whether the server can answer, and by which versions.

        Names, of classes and of tasks, are for those who have the token if one is needed.
        """
        about: dict[str, Any] = {"status": "ok", "version": __version__}
        if isinstance(source, TaskFolder):
            named: dict[str, Any] = {"tasks": len(source.files()), "versions": source.versions()}
        else:
            known = source()
            about["status"] = "ok" if known else "nothing learned yet"
            named = {"classes": known.names if known else []}
            if versions is not None:
                about |= versions
            elif known:
                about |= {"model": known.engine.name, "fingerprint": known.engine.fingerprint}
        return about | named if request.scope.get(KNOWN) else about

    @app.get("/metrics", response_class=PlainTextResponse)
    async def counters() -> str:
        """Counters of all processes together, in the text format of Prometheus."""
        return metrics.text()

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return FileResponse(STATIC / "docs.html")

    return batcher


def create_serving(
    task: str,
    model: str | None = None,
    *,
    token: str | None = None,
    max_waiting: int = MAX_WAITING,
    counts: str | None = None,
    access_log: str | None = None,
) -> FastAPI:
    """An application that answers predictions of a task file, or of every one in a folder, and nothing else.

    `access_log` is `text` or `json` where each request is to be written to standard error.
    """
    _give_memory_back()
    source = open_tasks(task, model)
    versions = None if isinstance(source, TaskFolder) else versions_in(task)
    decoder = Decoder(0)  # each image is decoded at the size of its task

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        batcher.close()
        decoder.close()

    app = guarded_app("cnaps", lifespan, token, access_log)
    batcher = add_prediction(app, source, decoder, max_waiting, counts, versions)
    return app


def guarded_app(
    title: str, lifespan: Any, token: str | None, access_log: str | None = None, **guard: Any
) -> FastAPI:
    """An application as every server here begins: guarded, with errors for people and the static files."""
    app = FastAPI(title=title, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_middleware(Guard, token=token, **guard)
    if access_log:
        app.add_middleware(AccessLog, style=access_log)
    app.add_exception_handler(RequestValidationError, explain_input)
    app.mount("/static", StaticFiles(directory=STATIC))
    return app


def open_tasks(task: str | Path, model: str | None) -> TaskFolder | Callable[[], FittedTask]:
    """A folder of task files, or what gives the task of a single one."""
    if Path(task).is_dir():
        return TaskFolder(task, model)
    fitted = read_task(task, model)
    return lambda: fitted


def serving_from_environment() -> FastAPI:
    """What each of several worker processes calls.

    CNAPS_SERVING names a file with the arguments of `create_serving`: an environment is no place for a token.
    """
    return create_serving(**json.loads(Path(os.environ["CNAPS_SERVING"]).read_text(encoding="utf-8")))


def _give_memory_back() -> None:
    """Have glibc return every large block as soon as it is freed: by itself it keeps ever larger ones."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(-3, 1 << 17)  # M_MMAP_THRESHOLD, at its first value


async def explain_input(request: Request, error: Exception) -> Response:
    """What is wrong with a request's values, without repeating them: they may be nothing that can be sent."""
    assert isinstance(error, RequestValidationError)
    told = [
        {"loc": [str(part) for part in e["loc"]], "msg": str(e["msg"]), "type": e["type"]} for e in error.errors()
    ]
    return Response(json.dumps({"detail": told}), 422, media_type="application/json")


async def _uploads(request: Request) -> list[tuple[str, bytes]]:
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        data = bytearray()
        async for piece in request.stream():
            data += piece
            if len(data) > MAX_BYTES:
                raise HTTPException(
                    413, f"an image has at most {MAX_BYTES // 1_000_000} MB", {"Connection": "close"}
                )
        return [("image", bytes(data))]
    try:
        async with request.form(max_files=MAX_IMAGES + 1) as form:
            files = [value for value in form.getlist("files") if isinstance(value, UploadFile)]
            if not 1 <= len(files) <= MAX_IMAGES:
                raise HTTPException(422, f"send 1 to {MAX_IMAGES} images as `files`; these are {len(files)}")
            found = []
            for file in files:
                found.append((shown(file.filename or ""), await file.read()))
                await file.close()
            return found
    except (ValueError, LookupError) as error:  # what parsers of forms make of odd headers
        raise HTTPException(400, "the form cannot be read") from error


def _prediction(name: str, fitted: FittedTask, probabilities: np.ndarray, novelty: float) -> Prediction:
    best = int(probabilities.argmax())
    every = {str(label): round(float(p), 6) for label, p in zip(fitted.names, probabilities, strict=True)}
    return Prediction(
        name=name,
        label=fitted.names[best],
        probability=round(float(probabilities[best]), 6),
        probabilities=every,
        novelty=round(novelty, 6),
        none_of_these=None if fitted.threshold is None else novelty > fitted.threshold,
    )
