"""From a torch model to a bundle: the same network as ONNX graphs, for the runtime, which has no torch.

The torch model stays the one source of truth. A bundle is its folder (settings and weights) and beside them the
graphs, without weights: those are put in when the bundle is opened, folded from the same tensors that torch reads.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cnaps.errors import InputError, MissingPackageError
from cnaps.files import atomic_folder, write_json
from cnaps.nn.adaptation import FilmGenerator
from cnaps.nn.backbones.base import PackageWeights
from cnaps.nn.encoders import SetEncoder, StageEncoder
from cnaps.nn.film import fold
from cnaps.nn.model import CNAPs
from cnaps.runtime.bundle import BUNDLE, GRAPHS, INPUT, VERSION, Bundle, graphs_digest
from cnaps.runtime.engine import OnnxEngine, Support

_AGREEMENT = 3e-3  # of the largest feature: rounding is a hundredth of it


def write_bundle(model: CNAPs, folder: str | os.PathLike[str]) -> None:
    """Add the graphs of a saved model to its folder."""
    if model.config.backbone_norm == "batch":
        raise InputError("a model that normalises by batch statistics has no bundle: train it two-stage")
    folder = Path(folder)
    graphs = make_graphs(model)
    about = describe(model)
    _check_agreement(model, about, graphs)
    with atomic_folder(folder / GRAPHS, [f"{name}.onnx" for name in graphs]) as temporary:
        for name, data in graphs.items():
            (temporary / f"{name}.onnx").write_bytes(data)
    about["digest"] = graphs_digest(about, graphs)
    write_json(folder / BUNDLE, about)


def _check_agreement(model: CNAPs, about: dict[str, Any], graphs: dict[str, bytes]) -> None:
    """Refuse graphs that adapt otherwise than the model: torch's exporter knows most operations, and not all."""
    state = {name: value.detach().cpu().numpy() for name, value in model.state_dict().items()}
    light = OnnxEngine(Bundle(asdict(model.config), about, state, graphs))
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, model.image_size, model.image_size), np.uint8)
    labels = np.array([0, 0, 1, 1])
    found = light.adapt(Support(pixels, labels, 2)).features
    adapted = model.adapt(model.preprocess(torch.from_numpy(pixels)), torch.from_numpy(labels))
    wanted = adapted.context_features.cpu().numpy()
    gap = float(np.abs(found - wanted).max() / max(float(np.abs(wanted).max()), 1e-6))
    if not gap < _AGREEMENT:
        raise InputError(
            f"the graphs of this network do not compute what torch computes (features differ by {gap:.1%}), so it "
            "has no bundle: use the model as it is, with torch installed"
        )


@contextmanager
def _explained_by_age() -> Iterator[None]:
    """Exporters of older torch fail in many ways; of this one's, none is expected."""
    try:
        yield
    except Exception as error:
        if torch.__version__ >= torch.torch_version.TorchVersion("2.13"):
            raise
        raise InputError(
            f"torch {torch.__version__} cannot write this network as ONNX graphs: install torch 2.13 or newer"
        ) from error


def describe(model: CNAPs) -> dict[str, Any]:
    """What the runtime has to know beside the graphs and the model's settings."""
    backbone, config = model.backbone, model.config
    folded: dict[str, dict[str, Any]] = {}
    places = ["stem", *(f"stages.{i}" for i in range(len(backbone.stages)))]
    for place, units in zip(places, [backbone.stem_units, *backbone.stage_units], strict=True):
        module = backbone.get_submodule(place)
        for unit in units:
            norm = cast(nn.BatchNorm2d, module.get_submodule(unit.norm))
            folded[f"{place}.{unit.conv}"] = {"norm": f"{place}.{unit.norm}", "eps": norm.eps}
    terms = [] if model.lora is None else model.lora.names
    with_terms = [f"stages.{stage}.{name}" for stage, names in enumerate(terms) for name in names]
    for number, conv in enumerate(with_terms):
        folded.setdefault(conv, {})["lora"] = number
    sites = []
    for stage, names in enumerate(backbone.sites):
        convs = {unit.norm: unit.conv for unit in backbone.stage_units[stage]}
        targets = [f"stages.{stage}.{convs.get(name, name)}" for name in names]
        sites.append(list(zip(targets, backbone.site_channels[stage], strict=True)))
    package = backbone.pretrained if isinstance(backbone.pretrained, PackageWeights) else None
    return {
        "format": "cnaps-bundle",
        "version": VERSION,
        "fingerprint": model.fingerprint(),
        "normalisation": {"mean": backbone.normalisation.mean, "std": backbone.normalisation.std},
        "image_size": model.image_size,
        "min_image_size": backbone.min_image_size,
        "size_step": backbone.size_step,
        "channels": backbone.channels,
        "sites": sites if model.adaptation is not None else [[] for _ in sites],
        "folded": folded,
        "package": None if package is None else {"name": package.package, "keys": dict(package.keys)},
        "set_encoder_size": config.set_encoder_size,
    }


def make_graphs(model: CNAPs) -> dict[str, bytes]:
    """Stem, stages, set encoder and FiLM generators as ONNX files without the weights that the model has."""
    backbone, adaptation = model.backbone, model.adaptation
    size = model.image_size
    graphs: dict[str, bytes] = {}
    x = torch.zeros(2, 3, size, size)
    before = INPUT
    with torch.no_grad():
        modules = [("stem", fold(backbone.stem, backbone.stem_units))]
        modules += [
            (f"stages.{i}", fold(model.unadapted(i), units)) for i, units in enumerate(backbone.stage_units)
        ]
        for i, (place, module) in enumerate(modules):
            outputs = [f"{place}.map", f"{place}.pooled"]
            prefixes = {"module.": f"{place}.", "pool.": f"pools.{i}."}
            graphs[place] = _export(_Pooled(module, backbone.pools[i]), [x], [before], outputs, place, prefixes)
            x, before = module(x), outputs[0]
        if model.set_encoder is not None:
            small = model.config.set_encoder_size or size
            graphs["set_encoder"] = _export(
                _Rows(model.set_encoder),
                [torch.zeros(2, 3, small, small)],
                ["images"],
                ["rows"],
                "set_encoder",
                {"encoder.": "set_encoder."},
            )
        if adaptation is not None:
            for i, generator in enumerate(adaptation.generators):
                graphs[f"film.{i}"] = _film_graph(model, i, cast(FilmGenerator, generator))
    return graphs


def _film_graph(model: CNAPs, stage: int, generator: FilmGenerator) -> bytes:
    assert model.adaptation is not None
    encoder = None
    values: list[Tensor] = []
    names: list[str] = []
    if model.adaptation.autoregressive:
        encoder = cast(StageEncoder, model.adaptation.stage_encoders[stage])
        values += [torch.zeros(4, model.backbone.channels[stage]), torch.eye(2).repeat(1, 2)]
        names += ["pooled", "members"]
    if model.config.embedding_size:
        values.append(torch.zeros(model.config.embedding_size))
        names.append("embedding")
    prefixes = {"encoder.": f"adaptation.stage_encoders.{stage}.", "generator.": f"adaptation.generators.{stage}."}
    return _export(_StageFilm(encoder, generator), values, names, ["film"], f"film.{stage}", prefixes)


class _Pooled(nn.Module):
    """A stem or a stage: its maps or tokens, and what they are pooled to."""

    def __init__(self, module: nn.Module, pool: nn.Module) -> None:
        super().__init__()
        self.module, self.pool = module, pool

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(N, C_in, H, W) -> (N, C, H', W'), (N, C), or tokens (N, T, C) alike."""
        maps = self.module(x)
        return maps, self.pool(maps)


class _Rows(nn.Module):
    """The set encoder without chunks."""

    def __init__(self, encoder: SetEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, S, S) -> (N, width)."""
        x = images
        for layer, conv in enumerate(self.encoder.convs):
            x = conv(x)
            if len(self.encoder.norms):
                norm = cast(nn.BatchNorm2d, self.encoder.norms[layer])
                mean = x.mean((0, 2, 3), keepdim=True)
                variance = ((x - mean) ** 2).mean((0, 2, 3), keepdim=True)
                scale = torch.rsqrt(variance + norm.eps) * norm.weight[:, None, None]
                x = (x - mean) * scale + norm.bias[:, None, None]
            x = F.max_pool2d(F.relu(x), 2)
        return x.mean((2, 3))


class _StageFilm(nn.Module):
    """From the pooled context to the FiLM numbers of a stage."""

    def __init__(self, encoder: StageEncoder | None, generator: FilmGenerator) -> None:
        super().__init__()
        self.encoder, self.generator = encoder, generator

    def forward(self, *inputs: Tensor) -> Tensor:
        """Pooled (N, C) and members (ways, N) where there is an encoder, then the embedding (E,) -> (numbers,)."""
        given = list(inputs)
        parts = []
        if self.encoder is not None:
            parts.append(self.encoder(given.pop(0), given.pop(0)))
        return self.generator.vector(torch.cat(parts + given))


def _export(
    module: nn.Module,
    values: Sequence[Tensor],
    inputs: Sequence[str],
    outputs: Sequence[str],
    title: str,
    prefixes: dict[str, str],
) -> bytes:
    """A graph whose tensors are named after the model's weights, which are left out, or after the graph."""
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingPackageError("writing graphs", "onnx", "onnxscript") from error
    free = {"pooled": {0: "n"}, "members": {0: "ways", 1: "n"}, "embedding": {}}
    named_axes = [free.get(name, {0: "n"}) for name in inputs]
    shapes = tuple({k: torch.export.Dim(v, min=1) for k, v in axes.items()} for axes in named_axes)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), _explained_by_age():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module.eval(),
            tuple(values),
            dynamo=True,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=(shapes,) if isinstance(module, _StageFilm) else shapes,
            verbose=False,
            optimize=False,
        )
        model = program.model_proto  # type: ignore[union-attr]
    graph = model.graph
    kept = {*inputs, *outputs}

    def named(name: str) -> str:
        for start, full in prefixes.items():
            if name.startswith(start):
                return full + name.removeprefix(start)
        return name if name in kept or not name else f"{title}/{name}"

    for operation in graph.node:
        operation.input[:] = [named(name) for name in operation.input]
        operation.output[:] = [named(name) for name in operation.output]
        operation.name = ""
        del operation.metadata_props[:]
        operation.doc_string = ""
    weights = {prefixes[start] + key for start in prefixes for key in _keys(module, start)}
    own = [tensor for tensor in graph.initializer if named(tensor.name) not in weights]
    for tensor in own:
        tensor.name = named(tensor.name)
    stays = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in own]
    del graph.initializer[:]
    graph.initializer.extend(stays)
    del graph.value_info[:]
    for port in (*graph.input, *graph.output):
        for axis, size in enumerate(port.type.tensor_type.shape.dim):
            if axis > 1 or size.dim_param:
                size.dim_param = f"{port.name}.{axis}"
    del graph.metadata_props[:]
    graph.doc_string = ""
    model.producer_version = ""
    return model.SerializeToString()


def _keys(module: nn.Module, start: str) -> set[str]:
    """Names of the tensors that a graph takes from the model: learned ones, and those of folded convolutions."""
    part = getattr(module, start.rstrip("."))
    if part is None:
        return set()
    keys = set(part.state_dict())
    for name, inner in part.named_modules():
        if isinstance(inner, nn.Conv2d):
            keys |= {f"{name}.{tensor}" if name else tensor for tensor in ("weight", "bias")}
    return keys
