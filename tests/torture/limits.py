"""Full and read-only disks, odd names, and tasks at the edge of what makes sense."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from cnaps import load_model
from cnaps.data.prepare import prepare
from cnaps.errors import CnapsError
from cnaps.runtime.engine import open_engine
from cnaps.runtime.results import Result, write_results
from cnaps.runtime.task import Examples, FittedTask
from cnaps.runtime.taskfile import read_task, write_task
from cnaps.studio.store import Project
from cnaps.training.checkpoint import load_checkpoint, save_checkpoint

from . import victims
from .common import (
    Row,
    Scale,
    command,
    digits,
    encoded,
    example_folder,
    light_model,
    photographs,
    small_model,
    small_task,
)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path | None]:
    """A file system in memory of a given size, if this user may mount one."""
    folder.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    mounted = os.name == "posix" and subprocess.run(line, capture_output=True).returncode == 0
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def _writers(disk: Path, source: Path) -> dict[str, Callable[[], object]]:
    model, project = small_model(), None

    def studio() -> None:
        nonlocal project
        project = project or Project(disk / "project", victims.DecoderHere())  # type: ignore[arg-type]
        for i, image in enumerate(digits()[0][:300]):
            refused = project.add([(f"{i}.png", encoded(image))], "pool")["refused"]
            if refused:
                raise CnapsError(refused[0]["reason"])

    results = [Result(f"image {i}", (("a", 0.5), ("b", 0.5))) for i in range(2000)]
    return {
        "task file": lambda: write_task(disk / "task", small_task(model)),
        "model": lambda: model.save(disk / "model"),
        "checkpoint": lambda: save_checkpoint(disk / "step", dict(model.state_dict()), {"step": 1}),
        "results": lambda: write_results(disk / "results.csv", results, []),
        "collection": lambda: prepare("folder", source, disk / "set", size=64, workers=1),
        "project": studio,
    }


def _refusals(writers: dict[str, Callable[[], object]]) -> tuple[list[str], list[str]]:
    told: list[str] = []
    other: list[str] = []
    for name, write in writers.items():
        try:
            write()
            other.append(f"{name} was written")
        except CnapsError as error:
            (told if "cannot" in str(error) or "read-only" in str(error).lower() else other).append(name)
        except Exception as error:
            other.append(f"{name}: {error!r}")
    return told, other


def full_disk(scale: Scale, folder: Path) -> list[Row]:
    """Everything that is written, where there is no room; what was there before stays whole."""
    source = example_folder(folder / "source")
    with small_disk(folder / "full", "1m") as disk:
        if disk is None:
            return [Row("A full disk", "not tried", "this user may not mount a small disk", True)]
        model = small_model()
        task = small_task(model)
        write_task(disk / "task", task)
        model.save(disk / "model")
        save_checkpoint(disk / "step", dict(model.state_dict()), {"step": 0})
        with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
            while ballast.write(b"x" * 512):
                pass
        told, other = _refusals(_writers(disk, source))
        read_task(disk / "task", model)
        same = load_model(disk / "model").fingerprint() == model.fingerprint()
        same = same and load_checkpoint(disk / "step")[1] == {"step": 0}
        left = [path.name for path in disk.rglob("*.tmp")]
    text = f"told: {', '.join(told)}; {'; '.join(other) or 'nothing else'}"
    text += f"; earlier files {'whole' if same else 'LOST'}; half files left: {', '.join(left) or 'none'}"
    return [
        Row("A full disk (tmpfs of 1 MB)", f"{len(told) + len(other)} kinds of file", text, same and not other)
    ]


def read_only(scale: Scale, folder: Path) -> list[Row]:
    """Everything that is written, where nothing may be."""
    source = example_folder(folder / "sources")
    with small_disk(folder / "read-only", "1m") as disk:
        if disk is None:
            return [Row("A read-only disk", "not tried", "this user may not mount a disk", True)]
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        told, other = _refusals(_writers(disk, source))
        done = command("classify", source, source, "--out", disk / "out.csv")
        if done.returncode == 2 and "Traceback" not in done.stderr:
            told.append("classify --out (before any work)")
        else:
            other.append(done.stderr[-300:])
    text = f"told: {', '.join(told)}; {'; '.join(other) or 'nothing else'}"
    return [Row("A read-only disk", f"{len(told) + len(other)} kinds of file", text, not other)]


def small_files_only(scale: Scale, folder: Path) -> list[Row]:
    """A limit on the size of files: writing fails in the middle."""
    import signal

    model = small_model()
    model.save(folder / "limited")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        small_model(1).save(folder / "limited")
        said = "NOT refused"
    except CnapsError as error:
        said = str(error).replace(str(folder), "FOLDER")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    same = load_model(folder / "limited").fingerprint() == model.fingerprint()
    text = f"'{said}'; the earlier model is {'whole' if same else 'LOST'}"
    return [Row("Writing that fails half-way", "a model over another", text, same and said != "NOT refused")]


ODD = [
    "".join(map(chr, range(1, 32))), "".join(chr(c) for c in range(32, 127) if chr(c) != "/"), "-rf", "--out", "*",
    "%s %d {0} {name}", "$(touch x)`id`", "'; drop table --", '"quoted", with comma', "<script>alert(1)<script>",
    "日本語 العربية עברית ไทย", "👩‍👩‍👧 🏳️‍🌈", "a\u202eb\u200bc\ufeff", "e\u0301 \u00e9", "CON",
    "x" * 200, " spaces ", "a\nb\rc\td", "[red]rich[bold]", "~", "é" * 100, "\u2028\u2029\x85",
]  # fmt: skip


def odd_names(scale: Scale, folder: Path) -> list[Row]:
    """Classes and files of every odd name, and file names that are no UTF-8."""
    examples, images, out = folder / "odd", folder / "odd images", folder / "odd.json"
    images.mkdir()
    pieces = photographs()
    for i, name in enumerate(ODD):
        (examples / name).mkdir(parents=True)
        (examples / name / f"{name[:40]}.png").write_bytes(encoded(pieces[i % 30]))
        (images / f"{name[:60]}.png").write_bytes(encoded(pieces[(i + 1) % 30]))
    Path(os.fsdecode(os.fsencode(images) + b"/no \xff\xfe utf-8.png")).write_bytes(encoded(pieces[0]))
    line = (
        "classify",
        examples,
        images,
        "--out",
        out,
        "--report",
        folder / "odd.html",
        "--save",
        folder / "odd.task",
    )
    done = command(*line)
    found = json.loads(out.read_text()) if out.exists() else {"results": []}
    again = command("predict", folder / "odd.task", images, "--out", folder / "odd.csv")
    labels = {each["label"] for each in found["results"]}
    page = (folder / "odd.html").read_text() if (folder / "odd.html").exists() else "<script>"
    ok = done.returncode == again.returncode == 0 and len(found["results"]) == len(ODD) + 1 and labels <= set(ODD)
    ok = ok and "<script>alert" not in page
    text = "every image classified, every name kept in JSON and task file, nothing run by the page"
    if not ok:
        text = f"exit codes {done.returncode} and {again.returncode}: {(done.stderr + again.stderr)[-300:]}"
    return [Row("Odd names of classes and files", f"{len(ODD)} names", text, ok)]


def _learn(pixels: np.ndarray, labels: list[str]) -> tuple[FittedTask, float]:
    begun = time.monotonic()
    planes = np.ascontiguousarray(pixels).transpose(0, 3, 1, 2)
    return FittedTask.learn(open_engine(light_model()), Examples(planes, list(labels))), time.monotonic() - begun


def _patches(count: int) -> np.ndarray:
    """Different pieces of photographs, uint8 (count, 32, 32, 3)."""
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng(0)
    pages = load_sample_images().images
    corners = [(int(rng.integers(390)), int(rng.integers(600)), i % 2) for i in range(count)]
    return np.stack([pages[page][y : y + 32, x : x + 32] for y, x, page in corners])


def _sound(fitted: FittedTask, pixels: np.ndarray) -> np.ndarray:
    """Probabilities, checked to be such, of images and after saving."""
    planes = np.ascontiguousarray(pixels).transpose(0, 3, 1, 2)
    found = fitted.probabilities(fitted.features(planes))
    assert np.isfinite(found).all()
    assert np.allclose(found.sum(1), 1)
    return found


def extreme_tasks(scale: Scale, folder: Path) -> list[Row]:
    """The model that comes with the package, at 32 pixels."""
    rows = []
    patches = _patches(scale.classes)
    task, _ = _learn(patches, [f"class {i:04d}" for i in range(scale.classes)])
    found = _sound(task, patches[:100])
    right = int((found.argmax(1) == np.arange(len(found))).sum())
    write_task(folder / "many", task)
    again = read_task(folder / "many", light_model())
    size = (folder / "many").stat().st_size / 1e6
    same = np.allclose(_sound(again, patches[:5]), found[:5], atol=2e-3)
    rows.append(Row(
        f"{scale.classes:,} classes, one image each", f"task file of {size:.1f} MB",
        f"{right} of {len(found)} context images recognised again", same and right > 0.9 * len(found),
    ))  # fmt: skip
    for title, pixels in (
        ("Identical images in both classes", np.repeat(patches[:1], 6, 0)),
        ("All-black images", np.zeros((6, 32, 32, 3), np.uint8)),
    ):
        task, _ = _learn(pixels, ["a", "b"] * 3)
        found = _sound(task, np.concatenate([pixels[:1], patches[:5]]))
        gap = float(np.abs(found[0] - 0.5).max())
        rows.append(Row(title, "2 classes, 3 each", f"one half each to {gap:.0e}", gap < 1e-3))
    many = _patches(scale.context)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    task, seconds = _learn(many, [f"class {i % 50}" for i in range(scale.context)])
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
    _sound(task, many[:50])
    rows.append(Row(
        f"{scale.context:,} context images", "50 classes, 32 pixels",
        f"learned in {seconds:.0f} s; peak memory {grown:.0f} MB above that of small tasks", grown < 2_000,
    ))  # fmt: skip
    return rows


CHECKS: tuple[Callable[[Scale, Path], list[Row]], ...] = (
    full_disk,
    read_only,
    small_files_only,
    odd_names,
    extreme_tasks,
)
