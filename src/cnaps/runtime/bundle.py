"""A model for the runtime: the settings and weights that torch reads too, and the network as ONNX graphs.

`bundle.json` says how weights become the numbers of the graphs: batch norms are folded into convolutions, low-rank
terms (LoRA) added to them. FiLM of a task is then one factor and one shift more of the same numbers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from cnaps import values
from cnaps.errors import CheckpointError, CnapsError, InputError, explained
from cnaps.files import read_json
from cnaps.images.sizes import LARGE, lora_share
from cnaps.maths.heads import Head, create_head
from cnaps.maths.statistics import ClassStatistics
from cnaps.runtime.onnx import Graph, check_graph, read_graph
from cnaps.weights import current_names, current_settings, digest_of, package_weights

FORMAT, VERSION = "cnaps-bundle", 1
BUNDLE, GRAPHS = "bundle.json", "graphs"
INPUT = "normalised"  # what the stem reads: float images

Weights = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Site:
    """Where FiLM goes: the layer whose weight it multiplies and whose bias it multiplies and shifts."""

    layer: str
    channels: int


class Bundle:
    """Graphs, weights and the few numbers that hold a model together."""

    def __init__(
        self, settings: Mapping[str, Any], about: Mapping[str, Any], state: Weights, graphs: Mapping[str, bytes]
    ) -> None:
        self.settings = settings  # of the model, as `ModelConfig` has them
        self.about = about
        self.notes: dict[str, Any] = {}
        self._state, self._graphs = state, graphs
        self._parsed: dict[str, Graph] = {}
        self.fingerprint: str = about["fingerprint"]
        self.image_size: int = about["image_size"]
        self.channels: list[int] = about["channels"]
        self.sites = [[Site(str(layer), int(n)) for layer, n in stage] for stage in about["sites"]]
        self.mean, self.std = (
            np.array(about["normalisation"][name], np.float32).reshape(1, -1, 1, 1) for name in ("mean", "std")
        )

    @property
    def stages(self) -> list[str]:
        """Names of the graphs of the stages, in order."""
        return [f"stages.{i}" for i in range(len(self.channels) - 1)]

    @property
    def groups(self) -> list[int]:
        """The widths of the pooled features that the head reads."""
        return self.channels[1:] if self.settings["features"] == "all" else self.channels[-1:]

    @property
    def film_numbers(self) -> int:
        """How many FiLM numbers a task has."""
        return 2 * sum(site.channels for stage in self.sites for site in stage)

    @property
    def embedding_size(self) -> int:
        """Of the task embedding z_G; 0 where there is none."""
        return int(self.settings["embedding_size"])

    @property
    def autoregressive(self) -> bool:
        """Whether the FiLM of a stage depends on the activations before it."""
        return self.settings["adaptation"] == "film+ar"

    def check_size(self, size: int) -> int:
        """A size that the graphs can be used at."""
        smallest, step = self.about["min_image_size"], self.about["size_step"]
        if step == 0 and size != self.image_size:
            raise InputError(f"this model reads images of {self.image_size} pixels, not {size}")
        if size < smallest or (step and (size - self.image_size) % step):
            raise InputError(
                f"images cannot be read at {size} pixels: take {smallest} or more, in steps of {step}"
            )
        return size

    @cached_property
    def head(self) -> Head:
        """The head, on numpy arrays."""
        numbers = {k.removeprefix("head."): v for k, v in self._state.items() if k.startswith("head.")}
        return create_head(self.settings["head"], self.groups, numbers)

    def graph(self, name: str) -> Graph:
        """A graph without its weights."""
        if name not in self._parsed:
            self._parsed[name] = read_graph(self._graphs[name], f"the graph {name}")
        return self._parsed[name]

    def weights(self, graph: str) -> Weights:
        """The weights of a graph that no task changes: of the set encoder, or of a stage's FiLM generators."""
        starts: tuple[str, ...] = ("set_encoder.",)
        if graph.startswith("film."):
            stage = graph.removeprefix("film.")
            starts = (f"adaptation.stage_encoders.{stage}.", f"adaptation.generators.{stage}.")
        return {name: value for name, value in self._state.items() if name.startswith(starts)}

    def layers(self, image_size: int) -> Weights:
        """The numbers of stem and stages without FiLM: folded, with the share of LoRA terms that this size has."""
        return self._folded(lora_share(image_size, self.settings.get("lora_large", 1.0)))

    @property
    def frozen_layers(self) -> Weights:
        """The same of the backbone as it was pre-trained."""
        return self._folded(0.0)

    def _folded(self, share: float) -> Weights:
        """Made anew each time, in some milliseconds; who learns again and again keeps those of one size."""
        theta = dict(self._theta)
        for conv, how in self.about["folded"].items():
            weight = theta[f"{conv}.weight"]
            if share and "lora" in how:
                outer, inner = (self._state[f"lora.{part}.{how['lora']}"] for part in ("outer", "inner"))
                weight = weight + (np.float32(share) * (outer @ inner))[:, :, None, None]
            if "norm" in how:
                norm = how["norm"]
                scale = theta[f"{norm}.weight"] / np.sqrt(theta[f"{norm}.running_var"] + np.float32(how["eps"]))
                bias = theta.get(f"{conv}.bias", np.float32(0))
                theta[f"{conv}.bias"] = (bias - theta[f"{norm}.running_mean"]) * scale + theta[f"{norm}.bias"]
                weight = weight * scale[:, None, None, None]
            theta[f"{conv}.weight"] = weight
        return theta

    @cached_property
    def _theta(self) -> Weights:
        package = self.about["package"]
        if package is not None and not any(name.startswith("backbone.") for name in self._state):
            held = package_weights(package["name"])
            return {ours: held[theirs] for ours, theirs in package["keys"].items()}
        start = "backbone."
        return {name.removeprefix(start): value for name, value in self._state.items() if name.startswith(start)}


def read_bundle(folder: str | os.PathLike[str]) -> Bundle:
    """Open the bundle in a model's folder; whatever does not fit its digest, or is nonsense, is refused."""
    folder = Path(folder)
    config, about = _read_json(folder / "config.json"), _read_json(folder / BUNDLE)
    if about.get("format") != FORMAT or not isinstance(about.get("version"), int):
        raise CheckpointError(f"{folder / BUNDLE} is no bundle of cnaps")
    if about["version"] > VERSION:
        raise CheckpointError(f"{folder / BUNDLE} was written by a newer version of cnaps: upgrade to read it")
    weights = folder / "model.safetensors"
    with explained(CheckpointError, f"{folder} is damaged", OSError, SafetensorError, ValueError, KeyError):
        raw = weights.read_bytes()
        graphs = {path.stem: path.read_bytes() for path in sorted((folder / GRAPHS).glob("*.onnx"))}
        state = {name: _single(value) for name, value in load(raw).items()}
    if config.get("digest") != digest_of(config, [raw]) or about.get("digest") != graphs_digest(about, graphs):
        raise CheckpointError(f"{folder} is damaged: its files do not fit their digests")
    try:
        values.check_numbers(state)
        _check_about(about)
        bundle = Bundle(current_settings(config["model"]), about, current_names(state), graphs)
        bundle.notes = values.model_notes(config.get("notes") or {})
        with np.errstate(all="ignore"):  # what is not finite is refused
            _check_parts(bundle, graphs)
    except CnapsError as error:
        raise CheckpointError(f"{folder} cannot be used: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{folder} is no bundle that this version knows: {error}") from error
    return bundle


def _check_about(about: Mapping[str, Any]) -> None:
    values.name(about["fingerprint"], "the fingerprint")
    for name, least in (("image_size", 1), ("min_image_size", 1), ("size_step", 0)):
        values.count(about[name], name, least, 4096)
    if about["set_encoder_size"] is not None:
        values.count(about["set_encoder_size"], "set_encoder_size", 1, 4096)
    for channels in values.items(about["channels"], "channels"):
        values.count(channels, "channels", 1, 2**20)
    if len(about["channels"]) < 2 or len(values.items(about["sites"], "sites")) != len(about["channels"]) - 1:
        raise ValueError("the sites of FiLM do not fit the stages")
    for name, lowest in (("mean", -1e4), ("std", 1e-4)):
        for value in values.items(values.table(about["normalisation"], "normalisation")[name], name):
            values.number(value, name, lowest, 1e4)
        if len(about["normalisation"][name]) not in (1, 3):
            raise ValueError(f"{name} is not one number a channel")


def _check_parts(bundle: Bundle, graphs: Mapping[str, bytes]) -> None:
    """Every graph there and harmless, weights and head as the graphs will need them."""
    settings = bundle.settings
    for name in ("features", "adaptation", "head", "set_encoder_norm"):
        values.name(settings[name], name)
    values.count(settings["embedding_size"], "embedding_size", 0, 4096)
    filmed = [f"film.{i}" for i, sites in enumerate(bundle.sites) if sites]
    for name in ("stem", *bundle.stages, *filmed, *(["set_encoder"] if bundle.embedding_size else [])):
        check_graph(graphs[name], f"the graph {name}")
    values.number(settings.get("lora_large", 1.0), "lora_large", 0, 2)
    layers = bundle.layers(LARGE)
    values.check_numbers(layers)
    for site in (site for stage in bundle.sites for site in stage):
        if layers[f"{site.layer}.weight"].shape[:1] != (site.channels,):
            raise ValueError(f"FiLM of {site.layer} is for another number of channels")
    some = bundle.head.embed(np.arange(4 * sum(bundle.groups), dtype=np.float32).reshape(4, -1) % 7)
    statistics = ClassStatistics.of(some, np.array([0, 0, 1, 1]), 2, scatter=bundle.head.needs_scatter)
    if np.shape(bundle.head.classifier(statistics)(some)) != (4, 2):
        raise ValueError("its head makes no classifier")


def has_bundle(folder: str | os.PathLike[str]) -> bool:
    """Whether a model's folder holds its graphs."""
    return (Path(folder) / BUNDLE).is_file()


def graphs_digest(about: Mapping[str, Any], graphs: Mapping[str, bytes]) -> str:
    """Of everything that a bundle adds to a model."""
    return digest_of(about, [part for name in sorted(graphs) for part in (name.encode(), graphs[name])])


def _read_json(path: Path) -> dict[str, Any]:
    with explained(CheckpointError, f"{path} cannot be read", OSError, ValueError):
        return values.table(read_json(path), "it")


def _single(value: np.ndarray) -> np.ndarray:
    if value.dtype.kind == "f":
        return value.astype(np.float32)
    if value.dtype != np.int64:
        raise ValueError(f"its weights hold {value.dtype}")
    return value
