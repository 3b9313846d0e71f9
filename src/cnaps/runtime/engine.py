"""What turns images into adapted features: one small protocol, and the engine that needs onnxruntime alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from cnaps.errors import CheckpointError, InputError
from cnaps.maths.arrays import members_of
from cnaps.maths.heads import Head
from cnaps.parallel import thread_count
from cnaps.runtime.bundle import Bundle, Site, Weights, has_bundle, read_bundle
from cnaps.runtime.onnx import write_model
from cnaps.weights import INSTALLED, list_models

BACKBONES = ("transformers:", "timm:")  # networks by name, used frozen
PIXELS = 2 * 224 * 224  # that are run at once: few enough for a processor's cache, and for little memory
Network: TypeAlias = Callable[[np.ndarray], np.ndarray]  # pixels uint8 (n, 3, S, S) -> embedded features (n, d)


@dataclass(frozen=True)
class Support:
    """Examples as an engine reads them: pixels uint8 (N, 3, S, S) and classes 0..ways-1 (N,).

    Weights (N,) are for class statistics: FiLM reads every example once.
    """

    pixels: np.ndarray
    labels: np.ndarray
    ways: int
    weights: np.ndarray | None = None


@dataclass(frozen=True)
class Adaptation:
    """What one pass over the examples gives."""

    film: np.ndarray  # (F,) gamma and beta, site by site
    features: np.ndarray  # (N, d) of the examples, as the head's classifier reads them
    embedding: np.ndarray  # (E,) z_G, the mean over these examples and those before
    network: Network  # with this FiLM


@runtime_checkable
class Engine(Protocol):
    """A model that adapts. The runtime's own is `OnnxEngine`; others come from packages that are installed."""

    name: str  # of a model that comes with the package; empty for others
    fingerprint: str
    image_size: int
    head: Head
    film_numbers: int
    embedding_size: int
    notes: dict[str, Any]
    normalisation: tuple[tuple[float, ...], tuple[float, ...]]  # mean, std of pixels of 0..255

    def check_size(self, size: int) -> int:
        """A size at which images can be read, or an error that says which can."""

    def adapt(self, support: Support, earlier: tuple[np.ndarray, int] | None = None) -> Adaptation:
        """FiLM for a task; `earlier` is the task embedding so far, and of how many images."""

    def embedding(self, pixels: np.ndarray) -> np.ndarray:
        """The task embedding of these images alone (E,)."""

    def network(self, film: np.ndarray, image_size: int) -> Network:
        """The network with the FiLM of a task at this size."""

    def frozen(self) -> Network:
        """The pre-trained backbone as it is, for comparisons."""

    def bundle(self) -> Bundle:
        """Its graphs and weights, for export."""


class OnnxEngine:
    """A bundle run by onnxruntime."""

    def __init__(self, bundle: Bundle, name: str = "", folder: str = "") -> None:
        self._bundle, self.name, self._folder = bundle, name, folder
        self.fingerprint, self.image_size, self.head = bundle.fingerprint, bundle.image_size, bundle.head
        self.film_numbers, self.embedding_size = bundle.film_numbers, bundle.embedding_size
        self.notes = bundle.notes
        about = bundle.about["normalisation"]
        self.normalisation = tuple(about["mean"]), tuple(about["std"])
        self._sessions: dict[str, Any] = {}  # of what no task changes
        self._layers: dict[int, Weights] = {}  # at the size that was last learned at; prediction needs none
        self._process = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and other processes open the model again: a pickle holds its name, not the network."""
        if not self._folder:
            return OnnxEngine, (self._bundle, self.name)
        return reopen, (self.name or self._folder, self.fingerprint)

    def check_size(self, size: int) -> int:
        """A size that the graphs can be used at."""
        return self._bundle.check_size(size)

    def bundle(self) -> Bundle:
        """What it runs."""
        return self._bundle

    def adapt(self, support: Support, earlier: tuple[np.ndarray, int] | None = None) -> Adaptation:
        """One pass: before each stage its FiLM is made, and the session with it then reads the examples."""
        bundle = self._bundle
        embedding = self.embedding(support.pixels)
        if earlier is not None:
            before, count = earlier
            share = len(support.pixels) / (len(support.pixels) + count)
            embedding = before.astype(np.float64) + share * (embedding - before.astype(np.float64))
        given: dict[str, np.ndarray] = {}
        if bundle.embedding_size:
            given["embedding"] = embedding.astype(np.float32)
        if bundle.autoregressive:
            given["members"] = members_of(support.labels, support.ways, np.empty(0, np.float32))
        size = support.pixels.shape[-1]
        layers = self._layers.get(size)
        if layers is None:  # read once above: another thread may learn at another size meanwhile
            layers = bundle.layers(size)
            self._layers = {size: layers}
        stem = self._fixed("stem", "stem", layers)  # the same at every size
        chunks = [_run(stem, self._images(part)) for part in _chunks(support.pixels)]
        film: list[np.ndarray] = []
        sessions, pooled = [stem], []
        for stage, name in enumerate(bundle.stages):
            if bundle.sites[stage]:
                if bundle.autoregressive:
                    given["pooled"] = np.concatenate([mean for _, mean in chunks])
                film.append(self._film(stage, given))
                layers = with_film(layers, bundle.sites[stage], film[-1])
            sessions.append(self._stage(stage, size, layers))
            for i, (maps, _) in enumerate(chunks):
                chunks[i] = _run(sessions[-1], maps)
            if bundle.settings["features"] == "all" or name == bundle.stages[-1]:
                pooled.append(np.concatenate([mean for _, mean in chunks]))
        features = self.head.embed(np.concatenate(pooled, 1))
        vector = np.concatenate(film) if film else np.empty(0, np.float32)
        network = self._network(lambda: self._with(vector, size), sessions)
        return Adaptation(vector, features, embedding, network)

    def embedding(self, pixels: np.ndarray) -> np.ndarray:
        """The mean over the rows of the set encoder."""
        if not self.embedding_size:
            return np.empty(0)
        size = self._bundle.about["set_encoder_size"]
        images = np.concatenate([_shrink(self._images(part), size) for part in _chunks(pixels)])
        session = self._side("set_encoder")
        whole = [images] if self._bundle.settings["set_encoder_norm"] == "context" else _chunks(images)
        with _explained("the set encoder"):
            rows = np.concatenate([session.run(None, {"images": part})[0] for part in whole])
        if rows.shape != (len(images), self.embedding_size):
            raise CheckpointError("this model cannot be used: its set encoder gives no embeddings")
        return rows.mean(0, dtype=np.float64)

    def network(self, film: np.ndarray, image_size: int) -> Network:
        """Stem and stages with FiLM in their weights."""
        return self._network(lambda: self._with(film, image_size))

    def frozen(self) -> Network:
        """Without FiLM and without what training added to the weights."""

        def make() -> list[Any]:
            layers = self._bundle.frozen_layers
            return [self._session(name, layers) for name in ("stem", *self._bundle.stages)]

        return self._network(make)

    def _with(self, film: np.ndarray, image_size: int) -> list[Any]:
        """The sessions of stem and stages with FiLM."""
        layers = with_film(self._bundle.layers(image_size), chain(*self._bundle.sites), film)
        stages = (self._stage(stage, image_size, layers) for stage in range(len(self._bundle.stages)))
        return [self._fixed("stem", "stem", layers), *stages]

    def _network(self, make: Callable[[], Sequence[Any]], made: Sequence[Any] = ()) -> Network:
        """One session after the other; made again in a forked process, which has not got their threads."""
        every, process, sessions = self._bundle.settings["features"] == "all", os.getpid(), made or make()

        def run(pixels: np.ndarray) -> np.ndarray:
            nonlocal sessions, process
            if process != os.getpid():
                sessions, process = make(), os.getpid()
            rows = []
            for part in _chunks(pixels):
                maps, pooled = self._images(part), []
                for session in sessions:
                    maps, mean = _run(session, maps)
                    pooled.append(mean)
                rows.append(np.concatenate(pooled[1:] if every else pooled[-1:], 1))
            return self.head.embed(np.concatenate(rows))

        return run

    def _film(self, stage: int, given: dict[str, np.ndarray]) -> np.ndarray:
        session = self._side(f"film.{stage}")
        with _explained("a generator of FiLM"):
            film: np.ndarray = session.run(None, given)[0]
        if film.shape != (2 * sum(site.channels for site in self._bundle.sites[stage]),):
            raise CheckpointError("this model cannot be used: a generator gives another number of FiLM numbers")
        return film

    def _images(self, pixels: np.ndarray) -> np.ndarray:
        return (pixels.astype(np.float32) - self._bundle.mean) / self._bundle.std

    def _stage(self, stage: int, image_size: int, layers: Weights) -> Any:
        name = self._bundle.stages[stage]
        if self._bundle.sites[stage]:
            return self._session(name, layers)
        return self._fixed(f"{name} at {image_size}", name, layers)

    def _side(self, name: str) -> Any:
        """The set encoder, or a stage's generators."""
        return self._fixed(name, name, self._bundle.weights(name))

    def _fixed(self, key: str, name: str, weights: Weights) -> Any:
        """A session that all tasks share."""
        if self._process != os.getpid():
            self._sessions, self._process = {}, os.getpid()
        if key not in self._sessions:
            self._sessions[key] = self._session(name, weights)
        return self._sessions[key]

    def _session(self, name: str, weights: Weights) -> Any:
        graph = self._bundle.graph(name)
        used = {key: value for key, value in weights.items() if key in graph.reads}
        return _make_session(write_model(graph, used))


def with_film(layers: Weights, sites: Iterable[Site], film: np.ndarray) -> Weights:
    """All layers, those at the sites with FiLM: weight * gamma, bias * gamma + beta."""
    filmed, place = dict(layers), 0
    for site in sites:
        gamma, beta = film[place : place + site.channels], film[place + site.channels : place + 2 * site.channels]
        weight, bias = filmed[f"{site.layer}.weight"], filmed.get(f"{site.layer}.bias", np.float32(0))
        filmed[f"{site.layer}.weight"] = weight * gamma.reshape(-1, *[1] * (weight.ndim - 1))
        filmed[f"{site.layer}.bias"] = bias * gamma + beta
        place += 2 * site.channels
    return filmed


def _run(session: Any, maps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with _explained("a stage"):
        (port,) = session.get_inputs()
        found, mean = session.run(None, {port.name: maps})
    return found, mean


@contextmanager
def _explained(part: str) -> Iterator[None]:
    """What onnxruntime makes of a graph that nobody should have written; its errors have no class in common."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime") and not isinstance(error, ValueError):
            raise
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"this model cannot be used: {part} does not run ({reason})") from error


def _chunks(images: np.ndarray) -> list[np.ndarray]:
    count = max(1, PIXELS // (images.shape[-1] * images.shape[-2]))
    return [images[i : i + count] for i in range(0, len(images), count)]


def _shrink(images: np.ndarray, size: int | None) -> np.ndarray:
    """The mean over what each pixel of the smaller image covers (area interpolation)."""
    side = images.shape[-1]
    if size is None or side <= size:
        return images
    if side % size == 0:  # whole squares: sums of rows, then of columns
        step = side // size
        rows = images.reshape(*images.shape[:2], size, step, side).sum(3)
        return np.asarray(sum(rows[..., i::step] for i in range(step)) / np.float32(step**2))
    cover = np.zeros((size, side), np.float32)
    for i in range(size):
        first, last = i * side // size, -(-(i + 1) * side // size)
        cover[i, first:last] = 1 / (last - first)
    return np.ascontiguousarray(cover @ images @ cover.T)


def _make_session(model: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = thread_count()
    options.log_severity_level = 4  # its errors are raised as well
    # a network is several sessions that take turns: threads of one must not wait busily while another works
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # nor must each keep memory for its largest batch, and a plan of it for every number of images it has seen
    _share_memory()
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.enable_mem_pattern = False
    with _explained("a graph"):
        session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
    session._model_bytes = None  # kept for the fallback that is switched off, and as large as the weights
    return session


@cache
def _share_memory() -> None:
    """One arena for all sessions of this process that ask for it."""
    import onnxruntime as ort

    arena = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    plain = {"max_mem": 0, "arena_extend_strategy": -1, "initial_chunk_size_bytes": -1}
    ort.create_and_register_allocator(arena, ort.OrtArenaCfg({**plain, "max_dead_bytes_per_chunk": -1}))


def open_engine(source: Any, device: str = "auto") -> Engine:
    """The engine of a model: by its name (see `list_models`), its folder, or an object that another engine knows.

    `hub:OWNER/NAME` is a model on the hub. `transformers:FOLDER` and `timm:NAME` are backbones as they are, with a
    closed-form head and nothing trained.

    What this layer cannot run (a torch model, a model without graphs, a GPU) is offered to the engines of
    installed packages, by their entry points in the group `cnaps.engines`.
    """
    if isinstance(source, Engine):
        return source
    if isinstance(source, str) and source.startswith("hub:"):
        from cnaps.runtime.hub import fetch  # which reads task files, and those need engines

        source = fetch(source)
    if isinstance(source, str | os.PathLike) and not os.fspath(source).startswith(BACKBONES):
        named = os.fspath(source) in list_models()
        folder = INSTALLED / os.fspath(source) if named else Path(source)
        if has_bundle(folder) and device in ("auto", "cpu"):
            stamp = (folder / "config.json").stat().st_mtime_ns
            return _open_bundle(str(folder.absolute()), os.fspath(source) if named else "", stamp)
        if not (folder / "config.json").is_file():
            names = ", ".join(list_models()) or "none"
            raise CheckpointError(f"no model at {folder}: there is no config.json (models by name: {names})")
    for entry in entry_points(group="cnaps.engines"):
        try:
            opened: Engine | None = entry.load()(source, device)
        except ImportError:
            continue
        if opened is not None:
            return opened
    raise InputError(
        f"{source} cannot be used without torch: pip install 'cnaps[train]', or `cnaps ship` it first"
    )


@lru_cache(maxsize=4)
def _open_bundle(folder: str, name: str, stamp: int) -> OnnxEngine:
    return OnnxEngine(read_bundle(folder), name, folder)


def reopen(source: str, fingerprint: str) -> Engine:
    """A model by its name or folder, which must be the one that it was."""
    engine = open_engine(source)
    if engine.fingerprint != fingerprint:
        raise CheckpointError(f"the model {source} is another one now ({engine.fingerprint}, not {fingerprint})")
    return engine
