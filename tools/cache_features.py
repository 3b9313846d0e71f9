"""Pooled features of tasks, stored once, so that heads can be compared in seconds.

    python tools/cache_features.py OUT.pt COLLECTION:SPLIT ... --size 160 --tasks 12 --seed 7 --film own

For every task the file holds pooled features of context and targets (all stages side by side, before the head's
`embed`), of images of other classes with `--outside` (of the other collections with `--foreign`), labels, FiLM and
z_G. `--film`: own, identity (LoRA terms only), frozen (the backbone as it is), or a file of FiLM vectors by
collection (tools/mean_film.py).
"""

from __future__ import annotations

import argparse
import io
import time
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from cnaps.data.collection import Collection
from cnaps.episodes import Limits, Sampler, TaskDescription
from cnaps.episodes.task import flat_rows
from cnaps.images.sizes import auto_size
from cnaps.maths.arrays import members_of
from cnaps.nn.checkpoints import load_model
from cnaps.nn.film import StageFilm, fold
from cnaps.training.augment import augment_task
from cnaps.training.config import Augmentation
from cnaps.training.tasks import open_collections, task_generator

CHUNK = 32


def read(collection: Collection, rows: list[int], size: int, aspect: str) -> Tensor:
    """Images as squares: squeezed, padded with the mean of their rim, or cut in the middle."""
    if aspect == "squeeze":
        return collection.read(rows, size)
    out = np.empty((len(rows), size, size, 3), np.uint8)
    for place, (column, index) in enumerate(collection._cells(rows, "image")):
        image = Image.open(io.BytesIO(column[index].as_buffer())).convert("RGB")
        w, h = image.size
        if aspect == "crop":
            s = min(w, h)
            box = ((w - s) / 2, (h - s) / 2, (w + s) / 2, (h + s) / 2)
            out[place] = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))
            continue
        if aspect == "half":  # half of the way: the longer side is cut and squeezed alike
            s = (min(w, h) * max(w, h)) ** 0.5
            cw, ch = (s, h) if w > h else (w, s)
            box = ((w - cw) / 2, (h - ch) / 2, (w + cw) / 2, (h + ch) / 2)
            out[place] = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))
            continue
        scale = size / max(w, h)
        small = np.asarray(
            image.resize((max(1, round(w * scale)), max(1, round(h * scale))), Image.Resampling.BILINEAR)
        )
        rim = np.concatenate([small[0], small[-1], small[:, 0], small[:, -1]]).mean(0)
        out[place] = rim.astype(np.uint8)
        top, left = (size - small.shape[0]) // 2, (size - small.shape[1]) // 2
        out[place, top : top + small.shape[0], left : left + small.shape[1]] = small
    return torch.from_numpy(out).permute(0, 3, 1, 2)


def enlarged(images: Tensor, size: int) -> Tensor:
    """Small images as they are read at a larger size."""
    wide = interpolate(images.float(), size=(size, size), mode="bilinear", align_corners=False)
    return wide.round().to(torch.uint8)


class Known:
    """FiLM of training tasks: that of other tasks is kept `within` so far of the nearest training set's mean.

    Distances of a stage are in parts of the root mean square distance of sets' means from the mean of all.
    """

    def __init__(self, train: str, within: float) -> None:
        by_set: dict[str, list[list[Tensor]]] = defaultdict(list)
        for t in torch.load(train, weights_only=False):
            by_set[t["set"]].append([flat(stage) for stage in t["film"]])
        sets = [[torch.stack(stage).mean(0) for stage in zip(*tasks, strict=True)] for tasks in by_set.values()]
        self.means = [torch.stack(stage) for stage in zip(*sets, strict=True)]  # of each stage (sets, numbers)
        self.spread = [(m - m.mean(0)).square().sum(1).mean().sqrt() for m in self.means]
        self.within = within

    def __call__(self, stage: int, _before: Tensor, own: StageFilm) -> StageFilm:
        """FiLM of a stage on the line to the nearest mean, where it is further away."""
        film = flat(own)
        far = (self.means[stage] - film).square().sum(1).sqrt() / self.spread[stage]
        nearest = int(far.argmin())
        film = torch.lerp(self.means[stage][nearest], film, min(1.0, self.within / float(far[nearest])))
        return sites_of(film, own)


class Kinds:
    """FiLM of kinds of images (tools/film_bases.py), added to a task's own by how near it lies to each.

    Distances are between mean features before a stage, in parts of how far tasks of one kind lie apart.
    """

    def __init__(self, file: str, sharpness: float) -> None:
        found = torch.load(file)
        self.bases, tasks = found["bases"], found["tasks"]  # of each stage (kinds, numbers), (kinds, tasks, C)
        self.places = [each.mean(1) for each in tasks]
        self.apart = [(each - each.mean(1, keepdim=True)).square().sum(2).mean() for each in tasks]
        self.sharpness = sharpness

    def __call__(self, stage: int, before: Tensor, own: StageFilm) -> StageFilm:
        """FiLM of a stage and, by shares, that of the kinds."""
        far = (self.places[stage] - normalize(before, dim=1).mean(0)).square().sum(1) / self.apart[stage]
        return sites_of(flat(own) + torch.softmax(-self.sharpness * far, 0) @ self.bases[stage], own)


class Familiar:
    """A task's own FiLM where it is like what training knew, and the mean of that elsewhere (tools/film_known.py).

    Distances are those of mean features before a stage, of unit length, from the nearest kind, squared, in parts
    of the mean squared distance of the kinds from their centre. Between `near` and `far` it goes from one to the
    other.
    """

    def __init__(self, file: str, near: float, far: float) -> None:
        found = torch.load(file)
        self.means, self.places = found["means"], found["places"]  # of each stage (numbers,), (kinds, C)
        self.spread = [(each - each.mean(0)).square().sum(1).mean() for each in self.places]
        self.near, self.far = near, far

    def __call__(self, stage: int, before: Tensor, own: StageFilm) -> StageFilm:
        """FiLM of a stage, so far from the mean as the task is known."""
        gap = (self.places[stage] - normalize(before, dim=1).mean(0)).square().sum(1).amin() / self.spread[stage]
        share = float(((self.far - gap) / (self.far - self.near)).clamp(0, 1))
        return sites_of(torch.lerp(self.means[stage], flat(own), share), own)


def sites_of(film: Tensor, like: StageFilm) -> StageFilm:
    """Undo `flat`."""
    sites = film.split([2 * len(gamma) for gamma, _ in like])
    return [(gamma, beta) for gamma, beta in (site.chunk(2) for site in sites)]


def flat(stage: StageFilm) -> Tensor:
    """Gamma and beta, site by site, in one row."""
    return torch.cat([torch.cat(site).float() for site in stage])


class Network:
    """A model's network, stage by stage, with pooled outputs; FiLM may be other than the task's own."""

    def __init__(
        self,
        name: str,
        *,
        lora: float | None = None,
        distance: float = 1.0,
        change: Known | Kinds | Familiar | None = None,
    ) -> None:
        self.model = load_model(name)
        self.around: list | None = None
        self.distance, self.lora, self.change = distance, lora, change

    @torch.no_grad()
    def run(self, images: Tensor, labels: Tensor, context: int, film: str | list) -> tuple[Tensor, list, Tensor]:
        """Pooled features (n, d) of all images, FiLM and z_G, which are made from the first ones, the context."""
        model, b = self.model, self.model.backbone
        pixels = model.preprocess(images).contiguous(memory_format=torch.channels_last)
        z = model.task_embedding(pixels[:context], {"chunk_size": CHUNK})
        members = members_of(labels[:context], int(labels.max()) + 1, z)
        share = model.lora_share(images.shape[-1]) if self.lora is None else self.lora
        stem, films, means = model._stem(), [], []
        parts = [stem(p) for p in pixels.split(CHUNK)]
        for i in range(len(b.stages)):
            if film == "frozen":
                module = fold(b.stages[i], b.stage_units[i], fuse=True)
            elif film == "identity":
                module = model._stage(i, None, share)
            else:
                before = torch.cat([b.pools[i](p) for p in parts])[:context]
                assert model.adaptation is not None
                own = film[i] if isinstance(film, list) else model.adaptation.stage_film(i, z, before, members)
                if self.distance != 1:
                    own = self._further(i, own)
                if self.change is not None:
                    own = self.change(i, before, own)
                films.append([(g.half(), b.half()) for g, b in own])
                module = model._stage(i, tuple(own), share)
            parts = [module(p) for p in parts]
            means.append(torch.cat([b.pools[i + 1](p) for p in parts]))
        return torch.cat(means, 1), films, z

    def _further(self, stage: int, own: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
        """FiLM `distance` times as far from the mean FiLM, or from identity."""
        middle = self.around[stage] if self.around else [(torch.ones_like(g), torch.zeros_like(b)) for g, b in own]
        return [
            (torch.lerp(mg.float(), g, self.distance), torch.lerp(mb.float(), b, self.distance))
            for (g, b), (mg, mb) in zip(own, middle, strict=True)
        ]


def outside_rows(collection: Collection, split: str | None, d: TaskDescription, each: int) -> list[int]:
    """Images of as many other classes of the split, for measures of novelty."""
    chance = np.random.default_rng(d.index)
    every = range(len(collection.classes)) if split is None else collection.splits[split]
    others = chance.permutation(sorted(set(every) - set(d.classes)))[: d.ways].tolist()
    return [row for k in others for row in chance.permutation(collection.rows(k))[:each].tolist()]


def foreign_images(others: Sequence[tuple[Collection, str | None]], count: int, size: int, seed: int) -> Tensor:
    """Images of other collections, about as many of each: strangers that are not even of the task's kind."""
    chance = np.random.default_rng(seed)
    found = []
    for collection, split in others:
        every = range(len(collection.classes)) if split is None else collection.splits[split]
        classes = chance.choice(list(every), max(1, count // len(others)))
        rows = [int(chance.choice(collection.rows(k))) for k in classes.tolist()]
        found.append(collection.read(rows, size))
    return torch.cat(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("collections", nargs="+")
    parser.add_argument("--model", default="cnaps-lite0")
    parser.add_argument("--size", default="auto")
    parser.add_argument("--tasks", type=int, default=12)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--film", default="own")
    parser.add_argument("--lora", type=float, help="the share of LoRA terms, if not by size")
    parser.add_argument("--distance", type=float, default=1.0, help="FiLM's distance from --around times this")
    parser.add_argument("--around", help="a file of tools/mean_film.py; identity unless given")
    parser.add_argument("--near", help="a file of training tasks: FiLM is kept near theirs")
    parser.add_argument("--within", type=float, default=0.3, help="how near, in parts of the spread between sets")
    parser.add_argument("--kinds", help="a file of tools/film_bases.py: FiLM of kinds of images is added")
    parser.add_argument("--sharpness", type=float, default=0.1, help="how much nearer kinds count more")
    parser.add_argument("--familiar", help="a file of tools/film_known.py: unknown kinds get the mean FiLM")
    parser.add_argument("--border", type=float, nargs=2, default=(0.7, 0.9), help="what is near, and what is far")
    parser.add_argument("--aspect", default="squeeze")
    parser.add_argument("--max-context", type=int, default=120)
    parser.add_argument("--max-ways", type=int, default=20)
    parser.add_argument("--targets", type=int, default=6)
    parser.add_argument("--outside", type=int, default=0, help="images of each of as many other classes")
    parser.add_argument("--foreign", type=int, default=0, help="images of the other collections, instead")
    parser.add_argument("--augment", help="a training configuration whose [augmentation] is applied")
    parser.add_argument("--coarse", type=int, help="shrink the images to this many pixels first")
    o = parser.parse_args()
    torch.set_num_threads(1)
    table = Augmentation()
    if o.augment:
        table = Augmentation(**tomllib.loads(Path(o.augment).read_text())["augmentation"])
    around = torch.load(o.around, weights_only=False) if o.around else None
    change: Known | Kinds | Familiar | None = None
    if o.near:
        change = Known(o.near, o.within)
    elif o.kinds:
        change = Kinds(o.kinds, o.sharpness)
    elif o.familiar:
        change = Familiar(o.familiar, *o.border)
    network = Network(o.model, lora=o.lora, distance=o.distance, change=change)
    films = torch.load(o.film, weights_only=False) if o.film not in ("own", "identity", "frozen") else None
    limits = Limits(max_ways=o.max_ways, max_context=o.max_context, max_targets_per_class=max(o.targets, 1))
    found, started = [], time.time()
    opened = list(open_collections(o.collections, "valid"))
    for collection, split in opened:
        others = [(each, of) for each, of in opened if each.name != collection.name]
        sampler = Sampler([collection], split, limits=limits, seed=o.seed)
        network.around = around[collection.name] if around else None
        for index in range(o.tasks):
            d = sampler.describe(index)
            context, c_labels = flat_rows(d.context)
            targets, t_labels = flat_rows(d.targets)
            targets, t_labels = (targets, t_labels) if o.targets else (targets[:0], t_labels[:0])
            labels = torch.from_numpy(np.concatenate([c_labels, t_labels]))
            outside = outside_rows(collection, split, d, o.outside) if o.outside else []
            size = auto_size(collection.looks(context.tolist())) if o.size == "auto" else int(o.size)
            rows = [*context.tolist(), *targets.tolist(), *outside]
            images = read(collection, rows, o.coarse or size, o.aspect)
            if o.foreign:
                images = torch.cat([images, foreign_images(others, o.foreign, o.coarse or size, index)])
            if o.coarse:
                images = enlarged(images, size)
            n = len(context)
            if o.augment:
                changed = augment_task(images[:n], images[n:], table, task_generator(o.seed, index))
                images = torch.cat([changed.context, changed.targets])
            mean, film, z = network.run(images, labels, n, o.film if films is None else films[collection.name])
            shown = len(labels)
            found.append(
                {
                    "set": collection.name + (f"@{o.coarse}" if o.coarse else ""),
                    "index": index,
                    "size": size,
                    "context": n,
                    "labels": labels,
                    "mean": mean[:shown].half(),
                    "outside": mean[shown:].half(),
                    "film": film,
                    "z": z,
                }
            )
        print(collection.name, size, len(found), round(time.time() - started), "s", flush=True)
        torch.save(found, o.out)


if __name__ == "__main__":
    main()
