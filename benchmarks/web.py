"""How fast the page learns and answers in Chromium; the table in docs/web.md is written from it.

The page chooses the size of images by itself, so the pictures are such that it takes the size that is wanted: ink
on a ground is read at 96 pixels, small photographs at 160 and larger ones at 224. Whether it did, the page says.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images

from cnaps.serving.pages import serve_folder

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "web.md"
CLASSES, SHOTS, ASKED = 5, 5, 40
_COUNT = """
    window.frames_asked = 0;
    const plain = HTMLCanvasElement.prototype.toBlob;
    HTMLCanvasElement.prototype.toBlob = function (...rest) {
      window.frames_asked++;
      return plain.apply(this, rest);
    };
"""  # of the camera: each picture is asked about once the one before it was answered


def main() -> None:
    if shutil.which("npm") is None or shutil.which("chromedriver") is None:
        print("needs npm, chromium and chromedriver, which are not all here")
        return
    runpy.run_path(str(ROOT / "tools" / "build_web.py"))["build"]()
    rows = []
    for size, draw in ((96, _digit), (160, _photograph(80)), (224, _photograph(300))):
        with tempfile.TemporaryDirectory() as name:
            first, again, answered, camera = _measure(Path(name), size, draw)
        rows.append(f"| {size} | {again:.1f} s | {first:.1f} s | {answered:.0f} | {camera:.0f} |")
        print(rows[-1], flush=True)
    heading = ["| pixels | 25 examples, from the drop to learned | the same on a first visit | images a second |"]
    heading = [f"{heading[0]} camera, a second |", "| ---: | ---: | ---: | ---: | ---: |"]
    load = f"{os.cpu_count()} cores with a load of {os.getloadavg()[0]:.1f} from what else they did."
    table = "\n".join(["<!-- speed -->", *heading, *rows, "", f"Chromium on {load}", "<!-- /speed -->"])
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(re.sub(r"<!-- speed -->.*<!-- /speed -->", table, text, flags=re.DOTALL), encoding="utf-8")


def _measure(
    folder: Path, size: int, draw: Callable[[int, int], Image.Image]
) -> tuple[float, float, float, float]:
    """Seconds from a drop of examples until all is learned, on a first visit (the model is fetched and started)
    and later; answers a second for a folder and the camera."""
    parts = ["first"] * SHOTS + ["later"] * SHOTS + ["asked"] * (ASKED // CLASSES)
    for k in range(CLASSES):
        for i, part in enumerate(parts):
            path = folder / part / f"class {k}" / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            draw(k, i).save(path)
    browser, server = _chromium(), serve_folder(ROOT / "dist" / "web", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def text(selector: str) -> str:
        return str(browser.execute_script("return document.querySelector(arguments[0]).innerText", selector))

    def until(condition: Callable[[], Any]) -> float:
        while not condition():
            time.sleep(0.02)
        return time.perf_counter()

    try:
        browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _COUNT})
        browser.get(f"http://127.0.0.1:{server.server_port}/")
        until(lambda: "Nothing to learn" in text("#status"))
        seconds = []
        for part in ("first", "later"):
            begun = time.perf_counter()
            browser.find_element("css selector", "#folder").send_keys(str(folder / part))
            seconds.append(until(lambda: f"Learned from {CLASSES * SHOTS} images" in text("#status")) - begun)
            assert f"read at {size} pixels" in text("#status"), text("#status")
            if part == "first":
                browser.execute_script("document.querySelector('#new-project').click()")
                until(lambda: "Nothing to learn" in text("#status"))
        browser.execute_script("document.querySelector('#tab-answers').click()")
        begun = time.perf_counter()
        browser.find_element("css selector", "#answers-files").send_keys(str(folder / "asked"))
        answered = ASKED / (until(lambda: f"{ASKED} images" in text("#answers-title")) - begun)
        browser.execute_script("document.querySelector('#open-camera').click()")
        until(lambda: text("#live"))
        first = browser.execute_script("return window.frames_asked")
        time.sleep(8)
        camera = (browser.execute_script("return window.frames_asked") - first) / 8
    finally:
        browser.quit()
        server.shutdown()
    return seconds[0], seconds[1], answered, camera


def _digit(k: int, i: int) -> Image.Image:
    digits = load_digits()
    pixels = digits.images[digits.target == k][i] > 8
    return Image.fromarray(np.where(pixels, 0, 255).astype(np.uint8)).resize((64, 64), Image.Resampling.NEAREST)


def _photograph(side: int) -> Callable[[int, int], Image.Image]:
    """Pieces of two photographs."""

    def draw(k: int, i: int) -> Image.Image:
        photograph = Image.fromarray(load_sample_images().images[k % 2])
        left, top = 11 * i + 40 * k, (7 * i) % (photograph.height - 100)
        return photograph.crop((left, top, left + 100, top + 100)).resize((side, side))

    return draw


def _chromium() -> Any:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"):  # fmt: skip
        options.add_argument(flag)
    return webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))


if __name__ == "__main__":
    main()
