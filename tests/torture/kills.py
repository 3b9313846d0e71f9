"""Processes killed at random moments: nothing acknowledged is lost, and no half file is read as a whole one."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from cnaps import load_model
from cnaps.data.collection import Collection, write_collection
from cnaps.errors import CnapsError
from cnaps.runtime.taskfile import read_task, write_task
from cnaps.studio.store import Project
from cnaps.training.checkpoint import load_checkpoint
from cnaps.training.run import checkpoints

from . import independent, victims
from .common import BACKBONE, Row, Scale, digits, encoded, small_model, small_task, start


def _kill(process: BaseProcess, ready: str, wait: float) -> bool:
    """Kill a process some time after it said that it is ready; whether it was still at work."""
    flag = Path(f"{ready}.{process.pid}")
    while process.exitcode is None and not flag.exists():
        time.sleep(0.005)
    process.join(wait)
    alive = process.exitcode is None
    if alive:
        os.kill(process.pid, signal.SIGKILL)  # type: ignore[arg-type]
        process.join()
    assert alive or process.exitcode == 0, f"it ended with {process.exitcode}"
    flag.unlink(missing_ok=True)
    return alive


def _waits(scale: Scale, longest: float) -> list[float]:
    return np.random.default_rng(0).uniform(0, longest, scale.kills).tolist()


def saving(scale: Scale, folder: Path) -> list[Row]:
    """A task file and a model folder that are written over and over."""
    here = folder / "saving"
    here.mkdir()
    model = small_model()
    tasks = [small_task(model, shift=shift) for shift in range(2)]
    known = [model.fingerprint(), small_model(1).fingerprint()]
    write_task(here / "task.safetensors", tasks[0])
    model.save(here / "model")
    for wait in _waits(scale, 0.2):
        process = start(victims.save_tasks_and_models, str(here))
        assert _kill(process, str(here), wait)
        independent.whole_task(here / "task.safetensors")
        independent.whole_model(here / "model")
        found = read_task(here / "task.safetensors", model)
        whole = [bool((found.statistics.means == t.statistics.means).all()) for t in tasks]
        assert any(whole), "the task is neither the old nor the new one"
        assert load_model(here / "model").fingerprint() in known, "the model is neither the old nor the new one"
    return [
        Row(
            "SIGKILL while saving",
            f"{scale.kills} kills",
            "task and model always whole by their bytes, old or new",
            True,
        )
    ]


def training(scale: Scale, folder: Path) -> list[Row]:
    """A run that is killed and resumed ends with the same bits."""
    images, labels = digits()
    order = np.argsort(labels, kind="stable")
    data = folder / "digits"
    write_collection(
        data,
        name="digits",
        classes=[str(d) for d in range(10)],
        examples=((int(labels[i]), str(i), images[i]) for i in order),
        size=8,
        splits={"train": [0, 1, 2, 3, 4, 5], "valid": [6, 7, 8, 9]},
    )
    settings: dict[str, Any] = {
        "data": {"train": [str(data)], "valid": [str(data)], "image_size": 32},
        "model": {"backbone": BACKBONE, "embedding_size": 8, "generator_width": 8},
        "init": {"backbone": "random"},
        "tasks": {"total": 8 * scale.kills, "per_step": 2, "ways": 3, "shots": 2, "targets": 2},
        "validation": {"every": 16, "tasks_per_set": 2},
        "checkpoint_every": 1,
        "tensorboard": False,
    }

    def finish(run: Path) -> Path:
        process = start(victims.train, settings, str(run), str(folder / "ready"))
        process.join()
        assert process.exitcode == 0
        return checkpoints(run)[-1]

    alive = 0
    for wait in _waits(scale, 1.0):
        process = start(victims.train, settings, str(folder / "killed"), str(folder / "ready"))
        alive += _kill(process, str(folder / "ready"), wait)
        for path in checkpoints(folder / "killed"):
            independent.whole_checkpoint(path)
    whole, killed = (load_checkpoint(finish(folder / name)) for name in ("whole", "killed"))
    same = (
        all((whole[0][name] == killed[0][name]).all() for name in whole[0]) and whole[0].keys() == killed[0].keys()
    )
    text = (
        f"resumed each time; final weights {'bit for bit those' if same else 'NOT those'} of an uninterrupted run"
    )
    return [Row("SIGKILL while training", f"{alive} kills at work of {scale.kills}", text, same and alive > 0)]


def preparing(scale: Scale, folder: Path) -> list[Row]:
    """A preparation goes on after a kill; replacing a collection leaves the old or the new one."""
    images, labels = digits()
    source, dest = folder / "source", folder / "prepared"
    for i in range(640):
        (source / str(labels[i])).mkdir(parents=True, exist_ok=True)
        (source / str(labels[i]) / f"{i}.png").write_bytes(encoded(images[i]))
    fingerprint = None
    alive = half = 0
    for number, wait in enumerate(_waits(scale, 0.4)):
        if number % 5 == 0:
            shutil.rmtree(dest, ignore_errors=True)  # begun anew, where otherwise one replaces another
        process = start(victims.prepare, str(source), str(dest), str(folder / "ready"), True)
        alive += _kill(process, str(folder / "ready"), wait)
        if dest.exists():
            half += independent.whole_collection(dest) != 640
            found = Collection.open(dest)
            found.read(range(0, len(found), 40))
            fingerprint = fingerprint or found.fingerprint
            half += found.fingerprint != fingerprint or len(found) != 640
    process = start(victims.prepare, str(source), str(dest), str(folder / "ready"), False)
    process.join()
    done = process.exitcode == 0 and len(Collection.open(dest)) == 640
    text = f"continued each time; {half} half collections; all 640 images in the end: {'yes' if done else 'NO'}"
    return [Row("SIGKILL while preparing", f"{alive} kills at work of {scale.kills}", text, done and not half)]


def labelling(scale: Scale, folder: Path) -> list[Row]:
    """A studio project: what was acknowledged is there after a kill."""
    here, ready = folder / "project", str(folder / "label")
    lost = acknowledged = 0
    log = Path(f"{ready}.log")
    for wait in _waits(scale, 0.3):
        process = start(victims.label, str(here), ready)
        known = log.stat().st_size if log.exists() else 0
        while process.exitcode is None and (not log.exists() or log.stat().st_size == known):
            time.sleep(0.005)  # until it is at work
        assert _kill(process, ready, wait)
        said = dict(line.split() for line in log.read_text().splitlines() if line.count(" ") == 1)
        kept = independent.whole_project(here)
        lost += sum(kept.get(key) != place for key, place in said.items())
        project = Project(here, victims.DecoderHere())  # type: ignore[arg-type]
        acknowledged = len(said)
        lost += sum(project.images.get(key, {}).get("place") != place for key, place in said.items())
        for key in list(said)[-5:]:
            assert project.files.pixels(key).shape == (32, 32, 3)
        project.close()
    text = f"{acknowledged} labelled images acknowledged, {lost} lost; the project opened each time"
    return [Row("SIGKILL while labelling", f"{scale.kills} kills", text, lost == 0 and acknowledged > 0)]


def two_writers(scale: Scale, folder: Path) -> list[Row]:
    """Two processes with one project, one run or one file."""
    project = Project(folder / "shared", victims.DecoderHere())  # type: ignore[arg-type]
    try:
        Project(folder / "shared", victims.DecoderHere())  # type: ignore[arg-type]
        refused = "NOT refused"
    except CnapsError as error:
        refused = f"the second is told: {str(error).replace(str(folder), '')[1:]}"
    project.close()
    path = folder / "shared.safetensors"
    write_task(path, small_task(small_model()))
    writers = [start(victims.save_one_task, str(path), shift, scale.kills * 2) for shift in range(2)]
    model, reads = small_model(), 0
    while any(writer.exitcode is None for writer in writers):
        read_task(path, model)
        reads += 1
        time.sleep(0.01)
    for writer in writers:
        writer.join()
    return [
        Row("Two studios on one project", "opened twice", refused, refused != "NOT refused"),
        Row(
            "Two processes saving one task file",
            f"{scale.kills * 4} writes, {reads} reads meanwhile",
            "each read gave a whole task",
            reads > 0 and all(writer.exitcode == 0 for writer in writers),
        ),
    ]


CHECKS: tuple[Callable[[Scale, Path], list[Row]], ...] = (saving, training, preparing, labelling, two_writers)
