"""`cnaps studio` and `cnaps serve`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

_HOST = typer.Option("127.0.0.1", "--host", help="The address to listen on; beyond loopback a token is needed.")
_MODEL = typer.Option(None, "--model", help="A model by name (see `cnaps models`) or folder.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(studio)
    app.command()(serve)


def studio(
    project: Path = typer.Argument(
        Path("~/cnaps-studio"), help="The project's folder; made if it does not exist.", show_default=True
    ),
    host: str = _HOST,
    port: int = typer.Option(8765, "--port", help="0: any free one."),
    model: str | None = _MODEL,
    browser: bool = typer.Option(True, "--browser/--no-browser", help="Open the page."),
) -> None:
    """Teach a classifier in the browser: everything stays on this machine."""
    from cnaps.nn.checkpoints import DEFAULT_MODEL

    uvicorn = _uvicorn()
    from cnaps.studio.server import create_studio

    token = _token(host)
    with _socket(host, port) as socket:
        app = create_studio(project.expanduser(), model or DEFAULT_MODEL, token=token)
        address = _address(host, socket.getsockname()[1], token)
        typer.echo(
            f"cnaps studio: {address}\nproject: {project.expanduser()}\nCtrl-C ends it; everything is saved."
        )
        if browser:
            import webbrowser

            webbrowser.open(address)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
        uvicorn.Server(config).run(sockets=[socket])


def serve(
    task: Path = typer.Argument(
        ..., help="A task file, as written by `cnaps fit` or the studio; or a folder of them."
    ),
    host: str = _HOST,
    port: int = typer.Option(8766, "--port", help="0: any free one."),
    model: str | None = _MODEL,
    workers: int = typer.Option(1, "--workers", min=1, help="Processes that answer."),
    max_waiting: int = typer.Option(
        1_024, "--max-waiting", min=1, help="Images that may wait in a process; beyond it, clients are sent away."
    ),
) -> None:
    """Answer predictions over HTTP: POST /predict of a task, /tasks/NAME/predict of a folder; see /docs."""
    uvicorn = _uvicorn()
    from cnaps.serving.app import create_serving, open_tasks

    token = _token(host)
    options: dict[str, Any] = {"task": str(task), "model": model, "token": token, "max_waiting": max_waiting}
    with _socket(host, port) as socket:
        address = _address(host, port := socket.getsockname()[1], token)
        if workers == 1:
            app = create_serving(**options)
            typer.echo(f"cnaps serve: {address}")
            config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=30)
            uvicorn.Server(config).run(sockets=[socket])
            return
        open_tasks(task, model)  # say what is wrong with it once, and here
    import json

    os.environ["CNAPS_SERVING"] = json.dumps(options)
    typer.echo(f"cnaps serve: {address}")
    program = "cnaps.serving.app:serving_from_environment"
    settings = {"factory": True, "log_level": "warning", "timeout_graceful_shutdown": 30}
    uvicorn.run(program, host=host, port=port, workers=workers, **settings)


def _uvicorn():  # type: ignore[no-untyped-def]
    from cnaps.errors import CnapsError

    try:
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise CnapsError("the server needs a few more packages: pip install 'cnaps[serve]'") from error
    return uvicorn


def _token(host: str) -> str | None:
    """None on loopback; else CNAPS_TOKEN or a new one."""
    import secrets

    from cnaps.serving.safety import LOOPBACK

    return None if host in LOOPBACK else os.environ.get("CNAPS_TOKEN") or secrets.token_urlsafe(18)


def _socket(host: str, port: int):  # type: ignore[no-untyped-def]
    import socket

    from cnaps.errors import InputError

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise InputError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; try --port 0"
        ) from error
    return listening


def _address(host: str, port: int, token: str | None) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")
