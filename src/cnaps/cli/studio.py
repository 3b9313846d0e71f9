"""`cnaps studio`, `cnaps serve` and `cnaps web`."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from cnaps.cli import common
from cnaps.cli.common import command
from cnaps.errors import InputError, MissingPackageError

_HOST = "Where to listen; others than this machine then need a token."
_PROJECT = (
    "The project's folder, made if it does not exist; or a folder of class folders, which are imported into a new "
    "project beside it. Without it: the projects in ~/cnaps-studio."
)
_WAITING = "Images that may wait in a process; beyond it clients are told to come again."
_LOG = "A line for each request on standard error, without query and headers."
_BACKEND = (
    "Learn from Label Studio, and suggest classes to it at /label-studio: TASK is then the folder of a studio "
    "project, made if it does not exist."
)
_THEIRS = "Ask this Label Studio for images, such as http://localhost:8080, by the token LABEL_STUDIO_API_KEY."
_PAGE = "A page written by `cnaps export`; without it, the page that learns itself."

_Host = Annotated[str, Option(metavar="ADDRESS", help=_HOST)]
_Port = Annotated[
    int, Option(metavar="PORT", min=0, max=65_535, help="The port to listen on; 0 takes a free one.")
]
_Browser = Annotated[bool, Option("--browser/--no-browser", help="Open the page.")]
_Project = Annotated[Path | None, Argument(metavar="PROJECT", help=_PROJECT)]
_Tasks = Annotated[Path, Argument(metavar="TASK", help="A task file, such as birds.task, or a folder of them.")]
_Workers = Annotated[int, Option(metavar="COUNT", min=1, help="Processes that answer, such as 4.")]
_Waiting = Annotated[int, Option("--max-waiting", metavar="COUNT", min=1, help=_WAITING)]
_Log = Annotated[Literal["text", "json"] | None, Option("--access-log", help=_LOG)]
_Backend = Annotated[bool, Option("--label-studio", help=_BACKEND)]
_Images = Annotated[Path | None, Option(metavar="FOLDER", help="With --label-studio: where its images lie.")]
_Theirs = Annotated[str | None, Option("--label-studio-host", metavar="URL", help=_THEIRS)]
_Page = Annotated[Path | None, Argument(metavar="FOLDER", help=_PAGE)]
_SHELF = Path("~/cnaps-studio")
# a folder that only this user may look into, until the server ends
_PRIVATE: Any = {"prefix": "cnaps-", "ignore_cleanup_errors": True}


@command()
def studio(
    project: _Project = None,
    host: _Host = "127.0.0.1",
    port: _Port = 8765,
    model: common.Model = None,
    browser: _Browser = True,
) -> None:
    """Teach a classifier in the browser, on this machine.

    Nothing leaves it. Example: cnaps studio birds
    """
    from cnaps.weights import DEFAULT_MODEL

    listening = _Listening(host, port)
    from cnaps.studio.folders import import_folder, project_for
    from cnaps.studio.server import create_studio
    from cnaps.studio.shelf import Shelf

    folder, source = (project or _SHELF).expanduser(), None
    several = project is None and not (folder / "project.json").exists()
    if not several:
        folder, source = project_for(folder)
    with listening.socket() as socket:
        app: Any = (Shelf if several else create_studio)(folder, model or DEFAULT_MODEL, token=listening.token)
        if source is not None:
            typer.echo(f"{source} is a folder of classes: it stays as it is, and a project is made in {folder}")
            typer.echo(import_folder(app.state.engine.project, source))
        address = listening.address(socket)
        typer.echo(
            f"cnaps studio: {address}\nproject{'s' * several}: {folder}\nCtrl-C ends it; everything is saved."
        )
        with TemporaryDirectory(**_PRIVATE) as private:
            if browser:
                _open_page(address, Path(private))
            _run(app, socket, 2)


@command()
def serve(
    task: _Tasks,
    host: _Host = "127.0.0.1",
    port: _Port = 8766,
    model: common.Model = None,
    workers: _Workers = 1,
    max_waiting: _Waiting = 1_024,
    access_log: _Log = None,
    label_studio: _Backend = False,
    images: _Images = None,
    label_studio_host: _Theirs = None,
) -> None:
    """Answer predictions over HTTP.

    POST images to /predict of a task file, or to /tasks/NAME/predict of a folder; /docs has a form to try it.

    Example: cnaps serve birds.task
    """
    listening = _Listening(host, port)
    options: dict[str, Any] = {"max_waiting": max_waiting, "access_log": access_log, "token": listening.token}
    if label_studio:
        from cnaps.runtime.label_studio import Addresses
        from cnaps.studio.label_studio import create_backend
        from cnaps.weights import DEFAULT_MODEL

        addresses = Addresses(images, label_studio_host, os.environ.get("LABEL_STUDIO_API_KEY"))
        _serve(
            listening, lambda: create_backend(task, model or DEFAULT_MODEL, addresses, **options), "label-studio"
        )
        return
    from cnaps.serving.app import create_serving, open_tasks

    options |= {"task": str(task), "model": model}
    if workers == 1:
        _serve(listening, lambda: create_serving(**options))
        return
    with listening.socket() as socket:
        open_tasks(task, model)  # say what is wrong with it once, and here
        address, port = listening.address(socket), socket.getsockname()[1]
    import uvicorn

    from cnaps.serving.connections import uvicorn_settings

    with TemporaryDirectory(**_PRIVATE) as private:
        file = Path(private, "options.json")
        file.write_text(json.dumps({**options, "counts": private}), encoding="utf-8")
        os.environ["CNAPS_SERVING"] = str(file)
        typer.echo(f"cnaps serve: {address}")
        program = "cnaps.serving.app:serving_from_environment"
        uvicorn.run(program, factory=True, host=host, port=port, workers=workers, **uvicorn_settings(30))


@command()
def web(folder: _Page = None, port: _Port = 8767, browser: _Browser = True) -> None:
    """Try the page that learns in the browser itself.

    Plain files for this machine alone: nothing is sent anywhere. Example: cnaps web
    """
    import webbrowser

    from cnaps.serving.pages import find_site, serve_folder

    if folder is not None and not (folder / "index.html").is_file():
        raise InputError(f"there is no index.html in {folder}")
    with serve_folder(folder or find_site(), port) as server:
        address = f"http://127.0.0.1:{server.server_port}/"
        typer.echo(f"cnaps web: {address}\nCtrl-C ends it.")
        if browser:
            webbrowser.open(address)
        server.serve_forever()


@dataclass
class _Listening:
    """Where a server listens, and the token that it asks for: none on loopback, else CNAPS_TOKEN or a new one."""

    host: str
    port: int
    token: str | None = None

    def __post_init__(self) -> None:
        try:
            import fastapi  # noqa: F401
            import python_multipart  # noqa: F401
            import uvicorn  # noqa: F401
        except ImportError as error:
            raise MissingPackageError("the server", "fastapi", "uvicorn", "python-multipart") from error
        from cnaps.serving.safety import LOOPBACK

        given = os.environ.get("CNAPS_TOKEN", "")
        if not re.fullmatch(r"[A-Za-z0-9._~-]*", given):
            raise InputError("CNAPS_TOKEN may have letters, digits and ._~- only: it is part of an address")
        if self.host not in LOOPBACK:
            self.token = given or secrets.token_urlsafe(18)

    def socket(self) -> Any:
        import socket

        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((self.host, self.port))
        except (OSError, UnicodeError) as error:  # the second: a name that no host can have
            listening.close()
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"cannot listen on {self.host} port {self.port}: {reason}; try --port 0") from error
        return listening

    def address(self, socket: Any, *, with_token: bool = True) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        query = f"?token={self.token}" if self.token and with_token else ""
        return f"http://{host}:{socket.getsockname()[1]}/{query}"


def _serve(listening: _Listening, create: Callable[[], Any], backend: str = "") -> None:
    """Serve an application in this process; a `backend` is named to the program that asks it."""
    with listening.socket() as socket:
        app = create()
        typer.echo(f"cnaps serve: {listening.address(socket, with_token=not backend)}")
        if backend:
            typer.echo(f"model for Label Studio: {listening.address(socket, with_token=False)}{backend}")
            if listening.token:
                typer.echo(f"its password (any user): {listening.token}")
        _run(app, socket, 30)


def _run(app: Any, socket: Any, seconds_to_finish: int) -> None:
    import uvicorn

    from cnaps.serving.connections import uvicorn_settings

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            app.state.leaving = True  # whoever waits for news is answered now
            super().handle_exit(sig, frame)

    Server(uvicorn.Config(app, **uvicorn_settings(seconds_to_finish))).run(sockets=[socket])


def _open_page(address: str, private: Path) -> None:
    """By way of a file: the command line of a browser, with the token in it, is there for everybody to read."""
    import webbrowser

    page = private / "open.html"
    page.write_text(f'<meta http-equiv="refresh" content="0; url={address}">', encoding="utf-8")
    webbrowser.open(page.as_uri() if "token=" in address else address)
