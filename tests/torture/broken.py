"""Broken and hostile files through `cnaps classify` and the server."""

from __future__ import annotations

import json
import multiprocessing
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median

import httpx
import numpy as np
from PIL import Image

from cnaps import load_model
from cnaps.cli.check import find_problems
from cnaps.data.collection import Collection, write_collection
from cnaps.errors import CnapsError
from cnaps.images.decoding import FORMATS
from cnaps.runtime.taskfile import read_task, write_task
from cnaps.studio.store import Project
from cnaps.training.checkpoint import load_checkpoint, save_checkpoint

from . import fuzzing, victims
from .common import (
    Row,
    Scale,
    command,
    digits,
    encoded,
    example_folder,
    light_model,
    memory,
    photographs,
    server,
    small_model,
)
from .common import small_task as learn


def broken_files(count: int) -> list[tuple[str, bytes]]:
    """Files of every format: whole, cut, with changed bytes, with parts of others, and of random bytes."""
    Image.init()
    rng = np.random.default_rng(0)
    kinds = [kind for kind in FORMATS if kind in Image.SAVE]
    whole = [(kind, encoded(image, kind)) for kind in kinds for image in photographs()[::5]]
    files = []
    for number in range(count):
        kind, data = whole[number % len(whole)]
        how = ("whole", "cut", "changed", "changed", "spliced", "random")[int(rng.integers(6))]
        content = np.frombuffer(data, np.uint8).copy()
        if how == "cut":
            content = content[: rng.integers(len(content))]
        elif how == "changed":
            places = rng.integers(0, len(content), rng.integers(1, 30))
            places[: len(places) // 2] %= 200  # headers decide most
            content[places] = rng.integers(0, 256, len(places), np.uint8)
        elif how == "spliced":
            other = np.frombuffer(whole[int(rng.integers(len(whole)))][1], np.uint8)
            content = np.concatenate([content[: rng.integers(len(content))], other[rng.integers(len(other)) :]])
        elif how == "random":
            content[int(rng.integers(0, 16)) :] = 0
            content = np.concatenate([content[:16], rng.integers(0, 256, int(rng.integers(2000)), np.uint8)])
        files.append((f"{number}-{how}.{kind.lower().replace('jpeg2000', 'jp2')}", content.tobytes()))
    return files


def through_classify(scale: Scale, folder: Path) -> list[Row]:
    """One call of the command line for all of them."""
    examples, images, out = example_folder(folder / "examples"), folder / "broken", folder / "found.json"
    images.mkdir()
    for name, data in broken_files(scale.files):
        (images / name).write_bytes(data)
    light_model().save(folder / "light")
    written = ("--out", out, "--report", folder / "report.html", "--save", folder / "task")
    done = command("classify", examples, images, "--model", folder / "light", *written)
    assert done.returncode in (0, 3), done.stderr[-2000:]
    found = json.loads(out.read_text())
    total = len(found["results"]) + len(found["skipped"])
    lost = sum(r["path"].split("-")[-1].startswith("whole") for r in found["skipped"])
    text = f"{len(found['results']):,} classified, {len(found['skipped']):,} skipped by name, {lost} of them whole"
    ok = total == scale.files and "Traceback" not in done.stderr and not lost
    return [
        Row("Broken images through `cnaps classify`", f"{scale.files:,} files, {len(FORMATS)} formats", text, ok)
    ]


def through_server(scale: Scale, folder: Path) -> list[Row]:
    """The same files to `cnaps serve`, 32 a request."""
    good = encoded(photographs()[0])
    answers: Counter[str] = Counter()
    files = broken_files(scale.files)
    with server("serve", folder / "task", "--model", folder / "light") as (process, client):
        for part in (files[i : i + 31] for i in range(0, len(files), 31)):
            form = [("files", file) for file in (*part, ("good.png", good))]
            answer = client.post("/predict", files=form)
            assert answer.status_code == 200, answer.text
            *rest, last = answer.json()["predictions"]
            assert last["label"] == "china", "the good image beside them is answered"
            answers.update("refused" if each["error"] else "classified" for each in rest)
        health = client.get("/health").json()["status"]
        alive = process.poll() is None
    text = f"{answers['classified']:,} classified, {answers['refused']:,} refused; healthy after it"
    ok = alive and health == "ok" and answers.total() == scale.files
    return [Row("Broken images to `cnaps serve`", f"{scale.files:,} files, 32 a request", text, ok)]


def mixed_requests(scale: Scale, folder: Path) -> list[Row]:
    """Good, broken, large, empty and mistaken requests from four clients at once, and the memory of the server."""
    good, large = encoded(photographs()[0]), encoded(np.tile(photographs()[1], (40, 30, 1)), "JPEG")
    broken = [data for _, data in broken_files(60)]
    counts: Counter[str] = Counter()
    samples: list[int] = []

    def ask(client: httpx.Client, seed: int) -> None:
        try:
            talk(client, seed)
        except httpx.HTTPError as error:
            counts[f"500 ({error!r})"] += 1

    def talk(client: httpx.Client, seed: int) -> None:
        rng = np.random.default_rng(seed)
        while time.monotonic() < stop:  # counted from when the server answers
            kind = int(rng.integers(7))
            if kind == 0:
                answer = client.post("/predict", content=good)
            elif kind == 1:
                answer = client.post("/predict", content=broken[int(rng.integers(len(broken)))])
            elif kind == 2:
                answer = client.post("/predict", files=[("files", ("a.jpg", large))] * 4)
            elif kind == 3:
                answer = client.post("/predict", files=[("files", ("a", b)) for b in (b"", good, broken[0])])
            elif kind == 4:
                answer = client.get(("/health", "/metrics", "/docs", "/openapi.json")[int(rng.integers(4))])
            elif kind == 5:
                answer = client.request("PUT", "/predict", content=b"x" * 10_000)
            else:
                answer = client.post("/predict", json={"images": ["x"] * 50}, headers={"X-Odd": "y" * 500})
            counts[str(answer.status_code)] += 1

    with server("serve", folder / "task", "--model", folder / "light") as (process, client):
        client.post("/predict", files=[("files", ("a.jpg", large))] * 4)  # what it takes to begin is no growth
        stop = time.monotonic() + scale.seconds
        threads = [threading.Thread(target=ask, args=(client, seed)) for seed in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            samples.append(memory(process.pid))
            time.sleep(min(1.0, scale.seconds / 30))
        alive = process.poll() is None and client.get("/health").json()["status"] == "ok"
    third = max(1, len(samples) // 3)
    middle, late = median(samples[third : 2 * third]) / 1e6, median(samples[2 * third :]) / 1e6
    seen = ", ".join(f"{n} x {code}" for code, n in sorted(counts.items()))
    text = f"{seen}; memory {middle:.0f} MB in the middle third, {late:.0f} MB in the last"
    ok = alive and not any(code.startswith("5") for code in counts) and late < 1.05 * middle + 10
    return [Row("Mixed requests, four clients", f"{scale.seconds} s, {counts.total():,} requests", text, ok)]


def huge_png(side: int) -> bytes:
    """A valid black PNG of one bit a pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    packer = zlib.compressobj(1)
    rows = b"".join(packer.compress(bytes(1 + (side + 7) // 8)) for _ in range(side)) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def huge_images(scale: Scale, folder: Path) -> list[Row]:
    """A small file that would unpack to hundreds of megabytes."""
    data = huge_png(scale.side)
    (folder / "huge.png").write_bytes(data)
    (folder / "fine.png").write_bytes(encoded(photographs()[0]))
    done = command(
        "predict", folder / "task", folder / "huge.png", folder / "fine.png", "--model", folder / "light"
    )
    said = next((line for line in done.stderr.splitlines() if "huge.png" in line), "nothing")
    with server("serve", folder / "task", "--model", folder / "light") as (process, client):
        before = memory(process.pid)
        answer = client.post("/predict", content=data)
        grown = (memory(process.pid) - before) / 1e6
    limit = "limit"
    ok = (
        done.returncode == 3
        and limit in said
        and answer.status_code == 422
        and limit in answer.text
        and grown < 100
    )
    text = f"skipped and refused before decoding; the server grew by {max(grown, 0):.0f} MB"
    return [
        Row(f"A PNG of {scale.side:,} x {scale.side:,} pixels", f"{len(data) / 1e3:.0f} KB, both ways", text, ok)
    ]


def flipped_bytes(scale: Scale, folder: Path) -> list[Row]:
    """One changed byte anywhere in a file that was written by this package."""
    here = folder / "flips"
    model = small_model()
    model.save(here / "model")
    write_task(here / "task.safetensors", learn(model))
    save_checkpoint(here / "step.safetensors", dict(model.state_dict()), {"step": 3, "note": "x" * 200})
    images, labels = digits()
    examples = [(int(labels[i]), str(i), images[i]) for i in np.argsort(labels[:60], kind="stable")]
    write_collection(here / "set", name="set", classes=[str(d) for d in range(10)], examples=examples, size=8)

    def collection() -> None:
        opened = Collection.open(here / "set")
        opened.read(range(len(opened)))
        opened.keys(range(len(opened)))

    def project() -> None:
        Project(here / "project", victims.DecoderHere()).close()  # type: ignore[arg-type]

    made = Project(here / "project", victims.DecoderHere())  # type: ignore[arg-type]
    made.add([("a.png", encoded(images[0]))], made.add_class("zero"))
    made.close()

    def checked(name: str) -> None:
        for problem in find_problems(here / name)[1]:
            raise CnapsError(problem)

    strict: dict[str, tuple[Path, Callable[[], object]]] = {
        "task file": (here / "task.safetensors", lambda: read_task(here / "task.safetensors", model)),
        "weights of a model": (here / "model/model.safetensors", lambda: load_model(here / "model")),
        "configuration of a model": (here / "model/config.json", lambda: load_model(here / "model")),
        "training checkpoint": (here / "step.safetensors", lambda: load_checkpoint(here / "step.safetensors")),
        "collection.json": (here / "set/collection.json", collection),
        "images.arrow, by `cnaps check`": (here / "set/images.arrow", lambda: checked("set")),
    }
    lenient = {
        "images.arrow, in use": (here / "set/images.arrow", collection),
        "project.json": (here / "project/project.json", project),
    }
    rows = []
    for title, (path, read) in (strict | lenient).items():
        whole, rng = path.read_bytes(), np.random.default_rng(1)
        outcome: Counter[str] = Counter()
        for _ in range(scale.flips):
            changed = bytearray(whole)
            changed[int(rng.integers(len(whole)))] ^= 1 << int(rng.integers(8))
            path.write_bytes(changed)
            try:
                read()
                outcome["read"] += 1
            except CnapsError as error:
                named = str(path.parent) in str(error) or path.name in str(error)
                outcome["refused" if named else f"refused without a name ({error})"] += 1
            except Exception as error:
                outcome[f"crashed with {error!r}"] += 1
        path.write_bytes(whole)
        read()
        text = ", ".join(f"{n} {what}" for what, n in outcome.items())
        allowed = {"refused"} if title in strict else {"refused", "read"}
        note = "" if title in strict else " (without `cnaps check`: a picture or a name may differ)"
        rows.append(
            Row(f"A flipped bit: {title}", f"{scale.flips} places", text + note, outcome.keys() <= allowed)
        )
    return rows


def spoiled_files(scale: Scale, folder: Path) -> list[Row]:
    """Files with a right digest and wrong content, of every format, by two processes."""
    rows, half = [], scale.mutations // 2
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        for each in fuzzing.FORMATS:
            parts = [pool.submit(_spoil, each.title, folder / str(i), half, i * half) for i in range(2)]
            found: Counter[str] = sum((part.result() for part in parts), Counter())
            text = ", ".join(f"{count:,} {what}" for what, count in found.most_common(6))
            ok = found.keys() <= {"loaded", "refused", "cannot be written"}
            title = f"Wrong content under a right digest: {each.title}"
            rows.append(Row(title, f"{2 * half:,} mutations", text, ok))
    return rows


def _spoil(title: str, folder: Path, count: int, start: int) -> Counter[str]:
    (each,) = (each for each in fuzzing.FORMATS if each.title == title)
    return fuzzing.outcomes(each, folder / title.replace(" ", "-"), count, start)


CHECKS: tuple[Callable[[Scale, Path], list[Row]], ...] = (
    through_classify,
    through_server,
    huge_images,
    flipped_bytes,
    spoiled_files,
    mixed_requests,
)
