"""`cnaps studio`, `cnaps serve` and `cnaps web`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import typer

_HOST = typer.Option("127.0.0.1", "--host", help="The address to listen on; beyond loopback a token is needed.")
_SHELF = Path("~/cnaps-studio")
AccessLogStyle = Literal["text", "json"]
_MODEL = typer.Option(None, "--model", help="A model by name (see `cnaps models`) or folder.")


def _port(default: int) -> Any:
    return typer.Option(default, "--port", min=0, max=65_535, help="0: any free one.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(studio)
    app.command()(serve)
    app.command()(web)


def studio(
    project: Path | None = typer.Argument(
        None,
        help="The project's folder, made if it does not exist; or a folder of class folders, "
        "which are imported into a new project beside it. Without it: the projects in ~/cnaps-studio.",
    ),
    host: str = _HOST,
    port: int = _port(8765),
    model: str | None = _MODEL,
    browser: bool = typer.Option(True, "--browser/--no-browser", help="Open the page."),
) -> None:
    """Teach a classifier in the browser: everything stays on this machine."""
    from cnaps.weights import DEFAULT_MODEL

    _uvicorn()
    from cnaps.studio.folders import import_folder, project_for
    from cnaps.studio.server import create_studio
    from cnaps.studio.shelf import Shelf

    token = _token(host)
    folder, source = (project or _SHELF).expanduser(), None
    several = project is None and not (folder / "project.json").exists()
    if not several:
        folder, source = project_for(folder)
    with _socket(host, port) as socket:
        app: Any = (Shelf if several else create_studio)(folder, model or DEFAULT_MODEL, token=token)
        if source is not None:
            typer.echo(f"{source} is a folder of classes: it stays as it is, and a project is made in {folder}")
            typer.echo(import_folder(app.state.engine.project, source))
        address = _address(host, socket.getsockname()[1], token)
        typer.echo(
            f"cnaps studio: {address}\nproject{'s' * several}: {folder}\nCtrl-C ends it; everything is saved."
        )
        with _private_folder() as private:
            if browser:
                _open_page(address, private)
            _run(app, socket, 2)


def serve(
    task: Path = typer.Argument(
        ..., help="A task file, as written by `cnaps fit` or the studio; or a folder of them."
    ),
    host: str = _HOST,
    port: int = _port(8766),
    model: str | None = _MODEL,
    workers: int = typer.Option(1, "--workers", min=1, help="Processes that answer."),
    max_waiting: int = typer.Option(
        1_024, "--max-waiting", min=1, help="Images that may wait in a process; beyond it, clients are sent away."
    ),
    access_log: AccessLogStyle | None = typer.Option(
        None, "--access-log", help="Write a line for each request to standard error, without queries and headers."
    ),
    label_studio: bool = typer.Option(
        False,
        "--label-studio",
        help="Learn from Label Studio, and suggest classes to it at /label-studio: the first argument is then the "
        "folder of a studio project, made if it does not exist.",
    ),
    images: Path | None = typer.Option(None, "--images", help="The folder that Label Studio's images lie in."),
    label_studio_host: str | None = typer.Option(
        None,
        "--label-studio-host",
        help="Ask this Label Studio for images, by the token LABEL_STUDIO_API_KEY.",
    ),
) -> None:
    """Answer predictions over HTTP: POST /predict of a task, /tasks/NAME/predict of a folder; see /docs."""
    uvicorn = _uvicorn()
    token = _token(host)
    if label_studio:
        _serve_label_studio(task, host, port, model, images, label_studio_host, token, max_waiting, access_log)
        return
    options: dict[str, Any] = {"task": str(task), "model": model, "token": token, "max_waiting": max_waiting}
    options["access_log"] = access_log
    with _socket(host, port) as socket:
        from cnaps.serving.app import create_serving, open_tasks

        address = _address(host, port := socket.getsockname()[1], token)
        if workers == 1:
            app = create_serving(**options)
            typer.echo(f"cnaps serve: {address}")
            _run(app, socket, 30)
            return
        open_tasks(task, model)  # say what is wrong with it once, and here
    import json

    from cnaps.serving.connections import uvicorn_settings

    with _private_folder() as private:
        (private / "options.json").write_text(json.dumps({**options, "counts": str(private)}), encoding="utf-8")
        os.environ["CNAPS_SERVING"] = str(private / "options.json")
        typer.echo(f"cnaps serve: {address}")
        program = "cnaps.serving.app:serving_from_environment"
        uvicorn.run(program, factory=True, host=host, port=port, workers=workers, **uvicorn_settings(30))


def _serve_label_studio(
    folder: Path,
    host: str,
    port: int,
    model: str | None,
    images: Path | None,
    their_host: str | None,
    token: str | None,
    max_waiting: int,
    access_log: AccessLogStyle | None,
) -> None:
    from cnaps.runtime.label_studio import Addresses
    from cnaps.studio.label_studio import create_backend
    from cnaps.weights import DEFAULT_MODEL

    addresses = Addresses(images, their_host, os.environ.get("LABEL_STUDIO_API_KEY"))
    with _socket(host, port) as socket:
        app = create_backend(
            folder, model or DEFAULT_MODEL, addresses, token=token, max_waiting=max_waiting, access_log=access_log
        )
        address = _address(host, socket.getsockname()[1], None)
        typer.echo(f"cnaps serve: {address}\nmodel for Label Studio: {address}label-studio")
        if token:
            typer.echo(f"its password (any user): {token}")
        _run(app, socket, 30)


def web(
    folder: Path | None = typer.Argument(
        None,
        help="The folder to serve: a page written by `cnaps export`; without it, the page that learns itself.",
    ),
    port: int = _port(8767),
    browser: bool = typer.Option(True, "--browser/--no-browser", help="Open the page."),
) -> None:
    """Try the page that learns in the browser itself: plain files on loopback, nothing is sent anywhere."""
    import webbrowser

    from cnaps.errors import InputError
    from cnaps.serving.pages import find_site, serve_folder

    if folder is not None and not (folder / "index.html").is_file():
        raise InputError(f"there is no index.html in {folder}")
    with serve_folder(folder or find_site(), port) as server:
        address = f"http://127.0.0.1:{server.server_port}/"
        typer.echo(f"cnaps web: {address}\nCtrl-C ends it.")
        if browser:
            webbrowser.open(address)
        server.serve_forever()


def _run(app: Any, socket: Any, seconds_to_finish: int) -> None:
    import uvicorn

    from cnaps.serving.connections import uvicorn_settings

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            app.state.leaving = True  # whoever waits for news is answered now
            super().handle_exit(sig, frame)

    Server(uvicorn.Config(app, **uvicorn_settings(seconds_to_finish))).run(sockets=[socket])


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder that only this user may look into, until the server ends."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="cnaps-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def _open_page(address: str, private: Path) -> None:
    """By way of a file: the command line of a browser, with the token in it, is there for everybody to read."""
    import webbrowser

    page = private / "open.html"
    page.write_text(f'<meta http-equiv="refresh" content="0; url={address}">', encoding="utf-8")
    webbrowser.open(page.as_uri() if "token=" in address else address)


def _uvicorn():  # type: ignore[no-untyped-def]
    from cnaps.errors import MissingPackageError

    try:
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise MissingPackageError("the server", "fastapi", "uvicorn", "python-multipart") from error
    return uvicorn


def _token(host: str) -> str | None:
    """None on loopback; else CNAPS_TOKEN or a new one."""
    import re
    import secrets

    from cnaps.errors import InputError
    from cnaps.serving.safety import LOOPBACK

    given = os.environ.get("CNAPS_TOKEN", "")
    if not re.fullmatch(r"[A-Za-z0-9._~-]*", given):
        raise InputError("CNAPS_TOKEN may have letters, digits and ._~- only: it is part of an address")
    return None if host in LOOPBACK else given or secrets.token_urlsafe(18)


def _socket(host: str, port: int):  # type: ignore[no-untyped-def]
    import socket

    from cnaps.errors import InputError

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, UnicodeError) as error:  # the second: a name that no host can have
        listening.close()
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot listen on {host} port {port}: {reason}; try --port 0") from error
    return listening


def _address(host: str, port: int, token: str | None) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")
