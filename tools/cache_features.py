"""Pooled features of tasks, stored once, so that heads can be compared in seconds.

    python tools/cache_features.py OUT.pt COLLECTION:SPLIT ... --size 160 --tasks 12 --seed 7 --film own

For every task the file holds pooled features of context and targets (all stages side by side, before the head's
`embed`), labels, FiLM and z_G. `--film`: own, identity (shared terms only), frozen (the backbone as it is), or a
file of FiLM vectors by collection (tools/mean_film.py). The pass runs in bfloat16, which is three times as fast.
"""

from __future__ import annotations

import argparse
import io
import time
import tomllib
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from cnaps.data.collection import Collection
from cnaps.episodes import Limits, Sampler
from cnaps.episodes.task import flat_rows
from cnaps.nn.checkpoints import load_model
from cnaps.nn.film import bind_folded, fold
from cnaps.training.augment import augment_task
from cnaps.training.config import Augmentation
from cnaps.training.tasks import open_collections, task_generator

STATISTICS = ("mean", "gem")


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


class Network:
    """The shipped network, stage by stage, with pooled outputs."""

    def __init__(self, name: str) -> None:
        self.model = model = load_model(name)
        b = model.backbone
        self.stem = fold(b.stem, b.stem_units)
        self.frozen = [fold(s, u) for s, u in zip(b.stages, b.stage_units, strict=True)]

    def pooled(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.float()
        return x.mean((2, 3)), x.clamp_min(0).pow(3).mean((2, 3)).pow(1 / 3)

    @torch.no_grad()
    def run(
        self, images: Tensor, labels: Tensor, context: int, film: str | list
    ) -> tuple[Tensor, Tensor, list, Tensor]:
        """Features of context and targets; FiLM is made from the context alone."""
        model = self.model
        pixels = model.preprocess(images).contiguous(memory_format=torch.channels_last)
        z = model._task_embedding(pixels[:context], 32)
        films, means, last = [], [], torch.zeros(0)
        with torch.autocast("cpu", torch.bfloat16):
            parts = [self.stem(p) for p in pixels.split(32)]
            before = torch.cat([p.float().mean((2, 3)) for p in parts])
            for i in range(len(model.backbone.stages)):
                if film == "frozen":
                    module = self.frozen[i]
                elif film == "identity":
                    module = model._folded(i)
                else:
                    with torch.autocast("cpu", enabled=False):
                        if isinstance(film, str):
                            own = model.adaptation.stage_film(i, z, before[:context], labels[:context])
                        else:
                            own = film[i]
                        if self.share != 1:
                            own = [(1 + self.share * (g - 1), self.share * b) for g, b in own]
                        films.append([(g.half(), b.half()) for g, b in own])
                        b = model.backbone
                        module = bind_folded(model._folded(i), b.stage_units[i], b.sites[i], own, fuse=False)
                parts = [module(p) for p in parts]
                before = torch.cat([p.float().mean((2, 3)) for p in parts])
                means.append(before)
            last = torch.cat([self.pooled(p)[1] for p in parts])
        return torch.cat(means, 1), last, films, z


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("collections", nargs="+")
    parser.add_argument("--model", default="cnaps-lite0")
    parser.add_argument("--size", default="160")
    parser.add_argument("--tasks", type=int, default=12)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--film", default="own")
    parser.add_argument("--shared", type=float, default=1.0, help="the shared terms times this")
    parser.add_argument("--share", type=float, default=1.0, help="FiLM's distance from identity times this")
    parser.add_argument("--aspect", default="squeeze")
    parser.add_argument("--max-context", type=int, default=120)
    parser.add_argument("--max-ways", type=int, default=20)
    parser.add_argument("--targets", type=int, default=6)
    parser.add_argument("--augment", help="a training configuration whose [augmentation] is applied")
    parser.add_argument("--coarse", type=int, help="shrink the images to this many pixels first")
    o = parser.parse_args()
    torch.set_num_threads(1)
    network = Network(o.model)
    network.share = o.share
    if o.shared != 1:
        network.model.shared.scale(o.shared)
    table = Augmentation()
    if o.augment:
        table = Augmentation(**tomllib.loads(Path(o.augment).read_text())["augmentation"])
    films = torch.load(o.film, weights_only=False) if o.film not in ("own", "identity", "frozen") else None
    limits = Limits(max_ways=o.max_ways, max_context=o.max_context, max_targets_per_class=o.targets)
    sizes = [int(s) for s in o.size.split(",")]
    found, started = [], time.time()
    for collection, split in open_collections(o.collections, "valid"):
        sampler = Sampler([collection], split, limits=limits, seed=o.seed)
        for index in range(o.tasks):
            d = sampler.describe(index)
            context, c_labels = flat_rows(d.context)
            targets, t_labels = flat_rows(d.targets)
            labels = torch.from_numpy(np.concatenate([c_labels, t_labels]))
            size = sizes[index % len(sizes)]
            images = read(collection, [*context.tolist(), *targets.tolist()], o.coarse or size, o.aspect)
            if o.coarse:
                images = (
                    torch.nn.functional.interpolate(
                        images.float(), size=(size, size), mode="bilinear", align_corners=False
                    )
                    .round()
                    .to(torch.uint8)
                )
            n = len(context)
            if o.augment:
                changed = augment_task(images[:n], images[n:], table, task_generator(o.seed, index))
                images = torch.cat([changed.context, changed.targets])
            film = o.film if films is None else films[collection.name]
            mean, gem, film, z = network.run(images, labels, n, film)
            found.append(
                {
                    "set": collection.name,
                    "index": index,
                    "size": size,
                    "context": n,
                    "labels": labels,
                    "mean": mean.half(),
                    "gem": gem.half(),
                    "film": film,
                    "z": z,
                }
            )
        print(collection.name, len(found), round(time.time() - started), "s", flush=True)
        torch.save(found, o.out)


if __name__ == "__main__":
    main()
