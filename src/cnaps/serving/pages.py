"""The page that needs no server, and pages of one's own: plain files, served for trying or written to a folder.

They are built by `make web`, since they need npm; here they are found, served on loopback and given a task.
"""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cnaps.errors import CnapsError
from cnaps.runtime.export import export_onnx
from cnaps.runtime.task import FittedTask

NETWORK = "classifier.onnx"  # of a page of one's own, beside index.html
_LIST = "page.json"  # in the site: which of its files such a page consists of
_HEADERS = {
    # with these two a page may use threads
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def find_site() -> Path:
    """The folder that `make web` built: CNAPS_WEB, or dist/web of the working folder or of this source tree."""
    places = [Path(os.environ["CNAPS_WEB"])] if "CNAPS_WEB" in os.environ else []
    places += [Path("dist/web"), Path(__file__).resolve().parents[3] / "dist" / "web"]
    for folder in places:
        if (folder / _LIST).is_file():
            return folder
    raise CnapsError(
        "the page is not built: run `make web` in the source tree (it needs npm), "
        "or say where it is by the environment variable CNAPS_WEB"
    )


def page_files(site: Path) -> dict[str, str]:
    """Of a page of one's own: the name of each file, and the file of the site that it is."""
    return dict(json.loads((site / _LIST).read_text(encoding="utf-8")))


def write_page(task: FittedTask, folder: Path) -> None:
    """Write a page that classifies the camera or files with this task, to be put on any web space."""
    site = find_site()
    for name, source in page_files(site).items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(site / source, target)
    export_onnx(task, folder / NETWORK)


class _Handler(SimpleHTTPRequestHandler):
    extensions_map = {  # noqa: RUF012 - as the class above has it
        **SimpleHTTPRequestHandler.extensions_map,
        ".js": "text/javascript",
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
        ".webmanifest": "application/manifest+json",
    }

    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def list_directory(self, path: str | os.PathLike[str]) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are nobody's business."""


def serve_folder(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server of a folder's files on loopback, which answers once `serve_forever` runs."""
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), partial(_Handler, directory=str(folder)))
    except OSError as error:
        raise CnapsError(f"cannot listen on 127.0.0.1 port {port}: {error.strerror}; try --port 0") from error
