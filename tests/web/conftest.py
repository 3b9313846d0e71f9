"""The page built and served as a user would, and a browser that looks at it."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import importlib.util
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..servers import CLASSES, ROOT, browser, save_pictures, until

__all__ = ["browser"]
NODE = (20, 19)  # what vite needs


@pytest.fixture(scope="session")
def site() -> Path:
    """`make web`, which builds nothing twice."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        pytest.skip("needs node and npm, which are not here")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if tuple(map(int, version.lstrip("v").split(".")[:2])) < NODE:
        pytest.skip(f"needs node {'.'.join(map(str, NODE))} or newer, and here is {version}")
    spec = importlib.util.spec_from_file_location("build_web", ROOT / "tools" / "build_web.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with (ROOT / "web" / ".building").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        built: Path = module.build()
    return built


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    return save_pictures(tmp_path_factory.mktemp("pictures"), CLASSES, 14)


def serve(folder: Path) -> tuple[Any, str]:
    """A server of a folder in a thread, and its address."""
    from cnaps.serving.pages import serve_folder

    server = serve_folder(folder, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}/"


class Page:
    """The page as somebody in front of it sees it."""

    def __init__(self, browser: Any, site: Path, downloads: Path) -> None:
        self.browser, self.downloads, self.count_saved = browser, downloads, 0
        self.scripts: list[str] = []
        self.server, self.address = serve(site)

    def stop_server(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def open(self) -> None:
        self.browser.get(self.address)
        self.wait(lambda: self.text("#status") not in ("", "Opening the project"))

    def script(self, code: str, *arguments: Any) -> Any:
        return self.browser.execute_script(code, *arguments)

    def text(self, selector: str) -> str:
        return self.script("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def texts(self, selector: str) -> list[str]:
        return self.script("return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText)", selector)

    def count(self, selector: str) -> int:
        return self.script("return document.querySelectorAll(arguments[0]).length", selector)

    def click(self, selector: str) -> None:
        self.script("document.querySelector(arguments[0]).click()", selector)

    def name_class(self, name: str) -> None:
        before = self.count("#classes > li")
        self.script(
            "document.querySelector('#new-name').value = arguments[0];"
            "document.querySelector('#new-class').requestSubmit()",
            name,
        )
        self.wait(lambda: self.count("#classes > li") == before + 1)

    def drop(self, selector: str, files: list[Path]) -> None:
        """Drag files over an element and let go."""
        data = [[path.name, base64.b64encode(path.read_bytes()).decode()] for path in files]
        self.script(
            """
            const [selector, files] = arguments, transfer = new DataTransfer();
            for (const [name, data] of files)
              transfer.items.add(new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name));
            const target = document.querySelector(selector);
            for (const kind of ["dragover", "drop"])
              target.dispatchEvent(new DragEvent(kind, { bubbles: true, dataTransfer: transfer }));
            """,
            selector,
            data,
        )

    def bring_in(self, file: Path) -> None:
        self.browser.find_element("css selector", "#archive").send_keys(str(file))

    def learned(self, count: int) -> None:
        self.wait(lambda: f"Learned from {count} images" in self.text("#status"))

    def export(self, where: str) -> Path:
        """The file that "Use it elsewhere" saves for a place where it will run."""
        self.click("[data-deploy]")
        self.click(f"#deploy [value={where}]")
        return self.saved("#deploy-save")

    def saved(self, button: str) -> Path:
        """The file that a button saves."""
        self.click(button)
        found = self.wait(lambda: [p for p in self.downloads.iterdir() if p.suffix not in (".crdownload", ".tmp")
                                   and p.is_file() and not p.name.startswith(".")])  # fmt: skip
        self.script("document.querySelector('#deploy')?.close()")
        self.count_saved += 1  # a further file of the same name would replace it
        return found[0].rename(self.downloads.with_name(f"{self.count_saved}-{found[0].name}"))

    def before_all(self, code: str) -> None:
        """A script that runs before those of every page from now on, until this one is left."""
        added = self.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": code})
        self.scripts.append(added["identifier"])

    def says(self, words: str) -> None:
        """Wait until a message has these words."""
        seen: set[str] = set()

        def said() -> bool:
            seen.update(self.texts(".toast"))
            return any(words in text for text in seen)

        try:
            until(said, 60)
        except AssertionError as error:
            raise AssertionError(f"nobody said {words!r}, but {seen}; {self.complaints()}") from error

    def paste(self, file: Path) -> None:
        self.script(
            """
            const transfer = new DataTransfer();
            const data = Uint8Array.from(atob(arguments[1]), (c) => c.charCodeAt(0));
            transfer.items.add(new File([data], arguments[0]));
            document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true }));
            """,
            file.name,
            base64.b64encode(file.read_bytes()).decode(),
        )

    def show(self, tab: str) -> None:
        self.click(f"#tab-{tab}")

    def fits(self) -> None:
        """Nothing sticks out at the right."""
        try:
            until(lambda: self.script("return document.documentElement.scrollWidth <= innerWidth"), 5)
        except AssertionError as error:
            out = """
                const sticks = (e) => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth;
                const found = [...document.querySelectorAll("body *")].filter(sticks);
                return found.map((e) => e.outerHTML.slice(0, 90));
                """
            raise AssertionError(f"this sticks out: {self.script(out)}") from error

    @contextlib.contextmanager
    def telephone(self) -> Iterator[None]:
        """360 pixels wide, used by fingers."""
        sides = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sides)
        self.browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 5})
        try:
            yield
        finally:
            self.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
            self.browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})

    def hold(self, selector: str, seconds: float) -> None:
        """A finger that stays."""
        x, y = self.script(
            "const { x, y } = document.querySelector(arguments[0]).getBoundingClientRect(); return [x + 9, y + 9]",
            selector,
        )
        start = {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]}
        self.browser.execute_cdp_cmd("Input.dispatchTouchEvent", start)
        time.sleep(seconds)
        self.browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

    def theme(self, name: str) -> None:
        feature = {"name": "prefers-color-scheme", "value": name}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def answers(self) -> list[str]:
        return self.texts("#test .bars li:first-child span")

    def wait(self, condition: Callable[[], Any], seconds: float = 100) -> Any:
        try:
            return until(condition, seconds)
        except AssertionError as error:
            said = self.texts(".toast"), self.text("#status"), self.complaints()
            raise AssertionError(f"it did not come to pass; the page says {said}") from error

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]

    def picture(self, name: str, messages: bool = False) -> None:
        folder = ROOT / os.environ.get("CNAPS_SCREENSHOTS", "out/web")
        folder.mkdir(parents=True, exist_ok=True)
        if not messages:
            self.script("for (const t of document.querySelectorAll('.toast')) t.remove()")
        self.browser.save_screenshot(str(folder / f"{name}.png"))


@pytest.fixture
def page(browser: Any, site: Path, tmp_path: Path) -> Iterator[Page]:
    with look_at(browser, site, tmp_path) as found:
        yield found


@contextlib.contextmanager
def look_at(browser: Any, site: Path, folder: Path) -> Iterator[Page]:
    """The site as it is on a first visit: an address of its own, so that nothing is stored there."""
    downloads = folder / "downloads"
    downloads.mkdir()
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads)})
    browser.set_window_size(1360, 860)
    page = Page(browser, site, downloads)
    page.complaints()  # of earlier pages
    yield page
    for script in page.scripts:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": script})
    browser.get("about:blank")
    page.stop_server()
