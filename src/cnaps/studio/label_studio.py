"""A backend of Label Studio: suggestions while people label, learned from what they have labelled so far.

What is labelled goes into a project of the studio, which learns in the background as the studio does; later it can
be opened there. Label Studio is given the address of the server with `/label-studio` behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse

from cnaps import values
from cnaps.errors import CnapsError, DataError, InputError, explained
from cnaps.files import parse_json
from cnaps.runtime.engine import open_engine
from cnaps.runtime.label_studio import Addresses, Config, choice_of
from cnaps.serving.app import Batcher, add_prediction, guarded_app
from cnaps.serving.decoding import Decoder
from cnaps.studio.description import POOL
from cnaps.studio.engine import Learner
from cnaps.studio.server import at_work, explain
from cnaps.studio.store import Project

_TASKS = 1_000  # in one request for suggestions
_CHUNK = 32


def create_backend(
    folder: str | Path,
    model: str,
    addresses: Addresses,
    *,
    token: str | None = None,
    max_waiting: int = 1_024,
    access_log: str | None = None,
) -> FastAPI:
    """An application that learns from Label Studio and suggests classes to it; `/predict` is there too."""
    network = open_engine(model)
    decoder = Decoder(network.image_size)
    learner = Learner(Project(folder, decoder), network)

    def lifespan(app: FastAPI) -> AbstractAsyncContextManager[None]:
        return at_work(learner, batcher)

    app = guarded_app("cnaps", lifespan, token, access_log)
    app.state.learner = learner
    app.add_exception_handler(CnapsError, explain)
    app.add_exception_handler(ValueError, explain)  # what was sent is not what it should be
    batcher = add_prediction(app, lambda: learner.fitted, decoder, max_waiting)
    app.include_router(_routes(learner, addresses, batcher))
    return app


def _routes(learner: Learner, addresses: Addresses, batcher: Batcher) -> APIRouter:
    routes = APIRouter(prefix="/label-studio")
    project, decoder = learner.project, learner.project.files.decoder

    def version() -> str:
        known = learner.fitted
        return f"{learner.model.fingerprint[:8]}-{known.seen if known else 0}"

    @routes.get("/health")
    async def health() -> dict[str, str]:
        """That it is there."""
        return {"status": "UP", "model_class": "cnaps", "model_version": version()}

    @routes.get("/versions")
    async def versions() -> dict[str, list[str]]:
        """The one that answers now."""
        return {"versions": [version()]}

    @routes.post("/setup")
    async def setup(request: Request) -> dict[str, str]:
        """Whether what people choose in a project can be learned; the host and token in it are not used."""
        Config.parse((await _body(request)).get("schema"))
        return {"model_version": version()}

    @routes.post("/predict")
    async def predict(request: Request) -> dict[str, Any]:
        """A suggestion for each task, empty where its image cannot be read or nothing is learned yet."""
        body = await _body(request)
        config, tasks = Config.parse(body.get("label_config")), _listed(body, "tasks")
        if len(tasks) > _TASKS:
            raise InputError(f"at most {_TASKS:,} tasks in one request")
        known, said = learner.fitted, version()
        results: list[dict[str, Any]] = [{"result": [], "score": 0.0} for _ in tasks]

        def read(task: Mapping[str, Any]) -> Any:
            try:
                data = addresses.read(_address(task, config))
                return decoder.pixels(data, known.image_size if known else None)
            except CnapsError:
                return None

        for start in range(0, len(tasks) if known else 0, _CHUNK):
            part = tasks[start : start + _CHUNK]
            pixels = await asyncio.gather(*(asyncio.to_thread(read, task) for task in part))
            read_ones = [(start + i, found) for i, found in enumerate(pixels) if found is not None]
            assert known is not None
            answers = await batcher(known, [found for _, found in read_ones])
            for (i, _), (probabilities, _) in zip(read_ones, answers, strict=True):
                results[i] = config.result(known.names, probabilities.tolist())
        return {"results": [{**each, "model_version": said} for each in results], "model_version": said}

    @routes.post("/train", status_code=201)
    async def train(request: Request) -> dict[str, Any]:
        """Learn from tasks with their annotations, all at once."""
        body = await _body(request)
        if body.get("action"):
            return await asyncio.to_thread(follow, body)
        config = Config.parse(body.get("label_config"))
        return await asyncio.to_thread(learn, _listed(body, "annotations"), config)

    @routes.post("/webhook", status_code=201)
    async def webhook(request: Request) -> dict[str, Any]:
        """Follow an event: an annotation was made, changed or deleted, or training was asked for."""
        return await asyncio.to_thread(follow, await _body(request))

    def learn(tasks: Iterable[Mapping[str, Any]], config: Config) -> dict[str, Any]:
        learned, skipped = 0, 0
        for task in tasks:
            for annotation in task.get("annotations") or []:
                if choice_of(annotation, config.control) is not None:
                    taken = _take(project, addresses, task, annotation, config)
                    learned, skipped = learned + taken, skipped + (not taken)
        return {"learned": learned, "unreadable": skipped}

    def follow(body: Mapping[str, Any]) -> dict[str, Any]:
        action = body.get("action")
        if action in ("ANNOTATION_CREATED", "ANNOTATION_UPDATED", "ANNOTATIONS_CREATED"):
            config = Config.parse(_part(body, "project").get("label_config"))
            known = {str(task.get("id")): task for task in _one_or_more(body, "task")}
            chosen = []
            for annotation in _one_or_more(body, "annotation") or [_part(body, "annotation")]:
                if choice_of(annotation, config.control) is None:
                    _forget(project, annotation)  # skipped, or several at once
                else:
                    task = known.get(str(annotation.get("task"))) or _ask_task(addresses, annotation)
                    chosen.append({**task, "annotations": [annotation]})
            return learn(chosen, config)
        if action in ("ANNOTATIONS_DELETED", "TASKS_DELETED"):
            for gone in _listed(body, "annotations" if action == "ANNOTATIONS_DELETED" else "tasks"):
                _forget(project, gone if action == "ANNOTATIONS_DELETED" else {"task": gone.get("id")})
        if action == "START_TRAINING" and addresses.host:
            about = _part(body, "project")
            number = values.count(about.get("id"), "the number of a project", 1)
            tasks = parse_json(addresses.ask(f"/api/projects/{number}/export?exportType=JSON").decode("utf-8"))
            return learn(_listed({"tasks": tasks}, "tasks"), Config.parse(about.get("label_config")))
        return {"learned": 0}

    @routes.get("/", include_in_schema=False)
    async def root() -> JSONResponse:
        return JSONResponse(await health())

    return routes


async def _body(request: Request) -> dict[str, Any]:
    with explained(InputError, "the request cannot be read", ValueError):
        return values.table(parse_json((await request.body()).decode("utf-8")), "the body of the request")


def _listed(body: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = body.get(name)
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        raise InputError(f"the request has no list of {name}")
    return found


def _part(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = body.get(name)
    if not isinstance(found, Mapping):
        raise InputError(f"the request has no {name}")
    return found


def _one_or_more(body: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Events of many annotations hold a list where those of one hold a table."""
    found = body.get(name)
    return [each for each in (found if isinstance(found, list) else [found]) if isinstance(each, Mapping)]


def _address(task: Mapping[str, Any], config: Config) -> str:
    data = task.get("data")
    address = data.get(config.field) if isinstance(data, Mapping) else None
    if not isinstance(address, str):
        raise DataError(f"a task has no {config.field}")
    return address


def _ask_task(addresses: Addresses, annotation: Mapping[str, Any]) -> Mapping[str, Any]:
    """The task of an annotation whose event came without it."""
    if not addresses.host:
        raise InputError("the event has no task: name the host of Label Studio, so that it can be asked for it")
    number = values.count(annotation.get("task"), "the number of a task", 1)
    return values.table(parse_json(addresses.ask(f"/api/tasks/{number}").decode("utf-8")), "the task")


def _take(
    project: Project,
    addresses: Addresses,
    task: Mapping[str, Any],
    annotation: Mapping[str, Any],
    config: Config,
) -> bool:
    """Put the image of a task into the class that was chosen, under the annotation's name; False if unreadable."""
    choice = choice_of(annotation, config.control)
    assert choice is not None
    try:
        data = addresses.read(_address(task, config))
    except DataError:
        return False
    _forget(project, annotation)  # its class, or its image, may be another one now
    name, place = f"task-{task.get('id')} annotation-{annotation.get('id')}", project.add_class(choice)
    report = project.add([(name, data)], place)
    if report["known"]:  # under the name of an annotation that is gone
        known = [key for key, entry in project.images.items() if entry["name"] == report["known"][0]]
        project.remove(known)
        project.add([(name, data)], place)
    return not report["refused"]


def _forget(project: Project, gone: Mapping[str, Any]) -> None:
    """Images of an annotation, or of all annotations of a task, become unlabelled."""
    part = f"annotation-{gone['id']}" if "id" in gone else f"task-{gone.get('task')}"
    with project.lock:
        project.move([key for key, entry in project.images.items() if part in entry["name"].split()], POOL)
