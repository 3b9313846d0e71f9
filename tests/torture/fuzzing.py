"""Files whose digest fits and whose content does not: structure-aware mutations of every format that is read.

A byte flipped at random is caught by a digest; what is behind the digest is reached only by files that carry the
right one. Each mutation changes a value, type, size or name, and writes the digest anew.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import math
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save

from cnaps import CNAPs
from cnaps.data.collection import Collection
from cnaps.episodes import Sampler, read_manifest
from cnaps.errors import CnapsError
from cnaps.nn.checkpoints import load_model
from cnaps.runtime.bundle import read_bundle
from cnaps.runtime.engine import OnnxEngine, open_engine
from cnaps.runtime.task import Examples, FittedTask
from cnaps.runtime.taskfile import read_task, write_task
from cnaps.training.config import TrainConfig
from cnaps.training.distributed import World
from cnaps.training.engine import Job, restore
from cnaps.training.episodic import EpisodicJob
from cnaps.training.run import check_environment, latest_checkpoint
from cnaps.training.settings import build, build_saved, read_settings
from cnaps.training.start import build_model

from ..compatibility import make

STORED = make.STORED
CHECKPOINT = "checkpoints/step-00000001.safetensors"
ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2**31, 2**63, -(2**70), 10**400, 0.5, -0.0, 1e308, 1e-320, math.nan, math.inf,
    -math.inf, "", "x", "x" * 5000, "\x1b[2J", "\ud800", "²", "../../etc/passwd", "NaN", [], {}, [[]], [None],
    {"": None}, [0] * 50, ["a", 1], {"a": {"b": []}},
]  # fmt: skip
TYPES = [torch.int64, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.bool, torch.int8]


def change(value: Any, rng: np.random.Generator) -> Any:
    """The same JSON with one thing about it changed."""
    value = copy.deepcopy(value)
    paths = list(_paths(value))
    *above, last = paths[int(rng.integers(len(paths)))]
    place = value
    for step in above:
        place = place[step]
    how = int(rng.integers(6))
    if how == 0:
        del place[last]
    elif how == 1 and isinstance(place, dict):
        place[str(rng.choice(["", "odd", "x" * 3000, str(last).upper()]))] = place.pop(last)
    elif how == 2 and isinstance(place, list):
        place.insert(int(rng.integers(len(place) + 1)), copy.deepcopy(place[last]))
    elif how == 3 and isinstance(place[last], int | float):
        place[last] = place[last] * rng.choice([-1, 1000, 0.1, 1e20]).item()
    elif how == 4:
        deep: Any = []
        for _ in range(900):
            deep = [deep]
        place[last] = deep
    else:
        place[last] = copy.deepcopy(ODD[int(rng.integers(len(ODD)))])
    return value


def _paths(value: Any, above: tuple[Any, ...] = ()) -> Any:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(inside)[:40]:
        yield (*above, key)
        yield from _paths(item, (*above, key))


def change_tensors(tensors: dict[str, torch.Tensor], rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """The same tensors with one thing about them changed."""
    tensors = dict(tensors)
    name = sorted(tensors)[int(rng.integers(len(tensors)))]
    tensor = tensors[name]
    how = int(rng.integers(9))
    if how == 0:
        del tensors[name]
    elif how == 1:
        tensors[name + "x"] = tensors.pop(name)
    elif how == 2:
        tensors[name] = tensor.to(TYPES[int(rng.integers(len(TYPES)))])
    elif how == 3:
        tensors[name] = tensor.flatten()[:-1] if rng.random() < 0.5 else tensor[None]
    elif how == 4:
        tensors[name] = tensor[:0] if tensor.ndim else tensor[None]
    elif how == 5:
        tensors[name] = torch.cat([tensor, tensor]) if tensor.ndim else tensor.expand(3).clone()
    elif tensor.numel() and how == 6:
        tensors[name] = tensor * rng.choice([-1, 1000]).item()
    elif tensor.numel():
        worst = [math.nan, math.inf, -math.inf, -1, 1e30, 3e38, 0]
        worst = worst if tensor.is_floating_point() else [-1, 2**40, 0]
        flat = tensor.clone().contiguous().view(-1)
        some = rng.integers(0, flat.numel(), 1 if rng.random() < 0.5 else flat.numel())
        bad = worst[int(rng.integers(len(worst)))]
        with contextlib.suppress(RuntimeError):  # too large for the type
            flat[torch.from_numpy(some)] = bad
        tensors[name] = flat.view(tensor.shape)
    return tensors


def text_of(value: Any, rng: np.random.Generator) -> str:
    """As JSON, now and then no such thing."""
    text = json.dumps(value)
    how = int(rng.integers(25))
    return {0: text[: len(text) // 2], 1: "[" * 100_000, 2: "", 3: f"[{text}]", 4: text + "}"}.get(how, text)


@dataclass(frozen=True)
class Format:
    """How a file is spoiled, and how it is read."""

    title: str
    spoil: Callable[[Path, np.random.Generator], None]
    read: Callable[[Path], object]


@cache
def content(path: Path) -> bytes:
    return path.read_bytes()


@cache
def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path)


def _digest(about: str, tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256(about.encode("utf-8", "surrogatepass"))
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _metadata(path: Path) -> dict[str, str]:
    data = content(path)
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]


def spoil_task(folder: Path, rng: np.random.Generator) -> None:
    path = STORED / "task-2.safetensors"
    tensors, metadata = tensors_of(path), _metadata(path)
    if rng.random() < 0.5:
        metadata["about"] = text_of(change(json.loads(metadata["about"]), rng), rng)
    else:
        tensors = change_tensors(tensors, rng)
    if rng.random() < 0.1:
        metadata["version"] = str(rng.choice(["²", "", "-1", "0", "1", "x", "9" * 5000, "2.0"]))
    if rng.random() < 0.05:
        del metadata[str(rng.choice(["about", "format", "version"]))]
    if rng.random() < 0.05:
        metadata["about"] = metadata.get("about", "") * 0
    metadata["digest"] = _digest(metadata.get("about", ""), tensors)
    (folder / "task").write_bytes(save({name: t.contiguous() for name, t in tensors.items()}, metadata))


@cache
def whole_model() -> CNAPs:
    return load_model(STORED / "model")


@cache
def pixels() -> torch.Tensor:
    """Some images, uint8 (6, 3, 32, 32)."""
    return torch.randint(256, (6, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def read_task_file(folder: Path) -> None:
    """Loaded, it must also answer, and be written again."""
    found = read_task(folder / "task", whole_model())
    _check_answers(found)
    write_task(folder / "again", found)


def _check_answers(found: FittedTask) -> None:
    answers = found.probabilities(found.features(pixels()[:2].numpy()))
    assert np.isfinite(answers).all(), "it answers nonsense"
    assert np.allclose(answers.sum(1), 1), "it answers nonsense"


def spoil_model(folder: Path, rng: np.random.Generator) -> None:
    (folder / "model").mkdir(exist_ok=True)
    config = json.loads(content(STORED / "model/config.json"))
    weights = content(STORED / "model/model.safetensors")
    if rng.random() < 0.6:
        config = change(config, rng)
    else:
        tensors = change_tensors(tensors_of(STORED / "model/model.safetensors"), rng)
        weights = save({name: t.contiguous() for name, t in tensors.items()})
    (folder / "model/model.safetensors").write_bytes(weights)
    config.pop("digest", None)
    config["digest"] = hashlib.sha256(json.dumps(config, sort_keys=True).encode() + weights).hexdigest()
    (folder / "model/config.json").write_text(text_of(config, rng))


def read_model(folder: Path) -> None:
    """Loaded, it must also learn and answer."""
    model = load_model(folder / "model")
    _check_answers(FittedTask.learn(open_engine(model), Examples(pixels().numpy(), ["a", "b"] * 3)))


def spoil_collection(folder: Path, rng: np.random.Generator) -> None:
    if not (folder / "collection").exists():
        shutil.copytree(STORED / "collection", folder / "collection")
    held = change(json.loads(content(STORED / "collection/collection.json")), rng)
    if "digest" in held or rng.random() < 0.8:
        held.pop("digest", None)
        held["digest"] = hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()
    (folder / "collection/collection.json").write_text(text_of(held, rng))


def read_collection(folder: Path) -> None:
    """Opened, it must give tasks and images."""
    found = Collection.open(folder / "collection")
    found.keys(range(len(found)))
    for split in (None, *found.splits):
        sampler = Sampler([found], split, ways=2, shots=1, targets=1)
        task = sampler.describe(0)
        found.read([row for rows in task.context for row in rows])


def spoil_manifest(folder: Path, rng: np.random.Generator) -> None:
    lines = content(STORED / "tasks.jsonl").decode().splitlines()
    at = int(rng.integers(len(lines)))
    lines[at] = text_of(change(json.loads(lines[at]), rng), rng)
    (folder / "tasks.jsonl").write_text("\n".join(lines) + "\n")


@cache
def whole_collection() -> Collection:
    return Collection.open(STORED / "collection")


def read_tasks(folder: Path) -> None:
    """Read, its tasks must be drawn from the collection."""
    digits = whole_collection()
    for task in read_manifest(folder / "tasks.jsonl", {"digits": digits}):
        for rows in (*task.context, *task.targets):
            digits.read(rows)


def spoil_run(folder: Path, rng: np.random.Generator) -> None:
    (folder / "run/checkpoints").mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "environment.json", CHECKPOINT):
        (folder / "run" / name).write_bytes(content(STORED / "run" / name))
    tensors, metadata = tensors_of(STORED / "run" / CHECKPOINT), _metadata(STORED / "run" / CHECKPOINT)
    which = rng.random()
    if which < 0.4:
        metadata["state"] = text_of(change(json.loads(metadata["state"]), rng), rng)
    elif which < 0.7:
        tensors = change_tensors(tensors, rng)
    else:
        name = str(rng.choice(["config.json", "environment.json"]))
        spoiled = change(json.loads(content(STORED / "run" / name)), rng)
        (folder / "run" / name).write_text(text_of(spoiled, rng))
        return
    digest = hashlib.sha256(metadata["state"].encode("utf-8", "surrogatepass"))
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    metadata["digest"] = digest.hexdigest()
    plain = {name: t.contiguous() for name, t in tensors.items()}
    (folder / "run" / CHECKPOINT).write_bytes(save(plain, metadata))


@cache
def whole_job() -> Job:
    config = build_saved(TrainConfig, STORED / "run")
    with contextlib.chdir(STORED):  # where its data is
        return EpisodicJob(build_model(config), config, World(device="cpu"))


def read_run(folder: Path) -> None:
    """As resuming does, up to the first step."""
    build_saved(TrainConfig, folder / "run")
    saved = latest_checkpoint(folder / "run")
    check_environment(folder / "run", {"data": whole_job().fingerprints})
    assert saved is not None
    restore(whole_job(), saved)


def spoil_settings(folder: Path, rng: np.random.Generator) -> None:
    config = change(json.loads(content(STORED / "run/config.json")), rng)
    if rng.random() < 0.5:
        (folder / "settings.json").write_text(text_of(config, rng))
        (folder / "settings.toml").write_text("")
        return
    odd = ["1979-05-27", "nan", "inf", "-inf", "[" * 3000, "{a=1}", '"\\u0000"', "1e999", "[[]]", "-1", "''"]
    key = str(rng.choice(["tasks.total", "optimiser.learning_rate", "data.train", "seed", "model", "loss", "x.y"]))
    (folder / "settings.toml").write_text(f'data.train = ["set"]\n{key} = {rng.choice(odd)}\n')


def read_config(folder: Path) -> None:
    toml = folder / "settings.toml"
    table = read_settings(toml if toml.stat().st_size else folder / "settings.json")
    json.dumps(build(TrainConfig, table).__dict__, default=lambda part: part.__dict__, allow_nan=False)


def spoil_project(folder: Path, rng: np.random.Generator) -> None:
    shutil.rmtree(folder / "project", ignore_errors=True)
    shutil.copytree(STORED / "project", folder / "project")
    path = folder / "project/project.json"
    held = change(json.loads(path.read_text()), rng)
    if rng.random() < 0.5:
        held.pop("digest", None)
        rest = json.dumps(held, sort_keys=True).encode()
        held["digest"] = hashlib.blake2b(rest, digest_size=16).hexdigest()
    path.write_text(text_of(held, rng))


class _Here:
    size = 32

    def decode(self, data: bytes, size: int | None = None) -> Any:
        from cnaps.serving.decoding import _decode

        return _decode(data, size or self.size)


def read_project(folder: Path) -> None:
    from cnaps.studio.store import Project

    Project(folder / "project", _Here()).close()  # type: ignore[arg-type]


def spoil_archive(folder: Path, rng: np.random.Generator) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("one/a.png", "two/b.png", "two/c.png"):
            archive.writestr(name, bytes(int(rng.integers(1, 3000))))
    data = bytearray(out.getvalue())
    _spoil_headers(data, rng)
    (folder / "a.zip").write_bytes(data)


def _spoil_headers(data: bytearray, rng: np.random.Generator) -> None:
    for _ in range(int(rng.integers(1, 4))):
        signature = (b"PK\3\4", b"PK\1\2", b"PK\5\6")[int(rng.integers(3))]
        at = data.find(signature) + 4 + int(rng.integers(24))
        data[at : at + 2] = rng.integers(0, 256, 2, np.uint8).tobytes()


def read_archive(folder: Path) -> None:
    from cnaps.images.archives import open_tree

    tree = open_tree(folder / "a.zip", folder)
    for name in tree.names():
        tree.read(name)


@cache
def whole_bundle() -> tuple[dict[str, Any], dict[str, Any], dict[str, bytes]]:
    """Settings and description of a small model for the runtime, and its graphs."""
    from cnaps.bridge.bundle import describe, make_graphs

    model = whole_model()
    about = json.loads(json.dumps(describe(model)))
    return json.loads(content(STORED / "model/config.json")), about, make_graphs(model)


def spoil_bundle(folder: Path, rng: np.random.Generator) -> None:
    (folder / "bundle/graphs").mkdir(parents=True, exist_ok=True)
    config, about, graphs = whole_bundle()
    weights = content(STORED / "model/model.safetensors")
    which = rng.random()
    if which < 0.4:
        about = change(about, rng)
    elif which < 0.55:
        config = change(config, rng)
    elif which < 0.8:
        tensors = change_tensors(tensors_of(STORED / "model/model.safetensors"), rng)
        weights = save({name: t.contiguous() for name, t in tensors.items()})
    else:
        name = sorted(graphs)[int(rng.integers(len(graphs)))]
        changed = bytearray(graphs[name])
        for at in rng.integers(0, len(changed), int(rng.integers(1, 5))):
            changed[at] = int(rng.integers(256))
        graphs = {**graphs, name: bytes(changed)} if rng.random() < 0.9 else {**graphs, name: b""}
    for table, parts in (
        (config, [weights]),
        (about, [part for name in sorted(graphs) for part in (name.encode(), graphs[name])]),
    ):
        table.pop("digest", None)
        table["digest"] = hashlib.sha256(json.dumps(table, sort_keys=True).encode() + b"".join(parts)).hexdigest()
    (folder / "bundle/model.safetensors").write_bytes(weights)
    for name, data in graphs.items():
        (folder / f"bundle/graphs/{name}.onnx").write_bytes(data)
    (folder / "bundle/config.json").write_text(json.dumps(config))
    (folder / "bundle/bundle.json").write_text(text_of(about, rng))


def read_whole_bundle(folder: Path) -> None:
    """Opened without torch, it must also learn and answer."""
    engine = OnnxEngine(read_bundle(folder / "bundle"))
    _check_answers(FittedTask.learn(engine, Examples(pixels().numpy(), ["a", "b"] * 3)))


@cache
def whole_project_zip() -> bytes:
    from cnaps.studio.archive import write_zip
    from cnaps.studio.store import Project

    with tempfile.TemporaryDirectory() as scratch:
        shutil.copytree(STORED / "project", Path(scratch) / "project")
        out = io.BytesIO()
        project = Project(Path(scratch) / "project", _Here())  # type: ignore[arg-type]
        write_zip(project, out)
        project.close()
    return out.getvalue()


def spoil_project_zip(folder: Path, rng: np.random.Generator) -> None:
    parts = {}
    with zipfile.ZipFile(io.BytesIO(whole_project_zip())) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    held = json.loads(parts["project.json"])
    if (which := rng.random()) < 0.6:
        held = change(held, rng)
        if rng.random() < 0.7:
            held.pop("digest", None)
            rest = json.dumps(held, sort_keys=True).encode()
            held["digest"] = hashlib.blake2b(rest, digest_size=16).hexdigest()
    names = sorted(parts.keys() - {"project.json"})
    if 0.5 < which < 0.7:
        odd = ["../../x.png", "/etc/passwd", "project.json", "a\\b", "x" * 60_000, "con", names[0].upper()]
        name = names[int(rng.integers(len(names)))]
        parts[str(rng.choice(odd))] = parts.pop(name)
    parts["project.json"] = text_of(held, rng).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED if rng.random() < 0.5 else zipfile.ZIP_STORED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    whole = bytearray(out.getvalue())
    if which > 0.7:
        _spoil_headers(whole, rng)
    (folder / "p.zip").write_bytes(whole)


def read_project_zip(folder: Path) -> None:
    """Merged whole into a project, or refused without a trace in it."""
    from cnaps.studio.archive import read_zip
    from cnaps.studio.store import Project

    shutil.rmtree(folder / "own", ignore_errors=True)
    shutil.copytree(STORED / "project", folder / "own")
    project = Project(folder / "own", _Here())  # type: ignore[arg-type]
    before = (folder / "own/project.json").read_bytes()
    try:
        with (folder / "p.zip").open("rb") as file:
            read_zip(project, file, lambda data: 2)
    except CnapsError:
        assert (folder / "own/project.json").read_bytes() == before, "a refused project left a trace"
        raise
    finally:
        project.close()
        outside = {path.name for path in folder.iterdir()} - {"p.zip", "own"}
        assert not outside, f"written outside of the project: {outside}"
    Project(folder / "own", _Here()).close()  # type: ignore[arg-type]


FORMATS = (
    Format("task file", spoil_task, read_task_file),
    Format("model", spoil_model, read_model),
    Format("bundle", spoil_bundle, read_whole_bundle),
    Format("collection", spoil_collection, read_collection),
    Format("manifest", spoil_manifest, read_tasks),
    Format("run", spoil_run, read_run),
    Format("settings", spoil_settings, read_config),
    Format("project", spoil_project, read_project),
    Format("project zip", spoil_project_zip, read_project_zip),
    Format("archive", spoil_archive, read_archive),
)


def outcomes(each: Format, folder: Path, count: int, start: int = 0) -> Counter[str]:
    """What came of so many spoiled files: loaded, refused, or the exception that is a bug."""
    found: Counter[str] = Counter()
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(start, start + count):
        rng = np.random.default_rng(number)
        try:
            each.spoil(folder, rng)
        except (UnicodeEncodeError, OverflowError):
            found["cannot be written"] += 1
            continue
        try:
            each.read(folder)
            found["loaded"] += 1
        except CnapsError as error:
            sentence = 0 < len(str(error)) < 2000 and "\n" not in str(error)
            found["refused" if sentence else f"no sentence: {error}"[:300]] += 1
        except Exception as error:
            found[f"{type(error).__name__}: {error}"[:300] + f" (number {number})"] += 1
    return found
