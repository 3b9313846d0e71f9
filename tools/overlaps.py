"""Which training classes show what is tested: by name and by WordNet id. Writes the splits without them.

    python tools/overlaps.py DATASETS REFERENCE configs/splits
    python tools/overlaps.py DATASETS REFERENCE configs/splits/published --published

DATASETS holds the archives, REFERENCE words.txt and wordnet.is_a.txt. A class of caltech101 or fruits overlaps
where a test class of ilsvrc_2012 or tiny_imagenet (their split by chance, seed 0, or the published one) has its
name among its names, or lies one step above or below a sense of that name; the ten digits of fonts, math-symbols
and plate-characters overlap with mnist, and stop_sign with traffic_sign. The others are written as NAME.json, for
`cnaps data prepare --splits`.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
from collections import defaultdict
from pathlib import Path

from cnaps.data.splits import random_by_class
from cnaps.data.wordnet import Hierarchy

ROLE = {
    "caltech101": "train",
    "fruits": "train",
    "fonts": "train",
    "math-symbols": "train",
    "plate-characters": "valid",
}
DIGITS = {
    "fonts": {f"Sample{n:03d}" for n in range(1, 11)},
    "math-symbols": set("0123456789"),
    "plate-characters": set("0123456789"),
}
OTHER = {"stop_sign": "traffic_sign"}


def classes_of(archive: Path) -> list[str]:
    """The names of the folders in an archive."""
    with tarfile.open(archive) as tar:
        return sorted({member.name.split("/")[0] for member in tar if member.isfile()})


def names_of(label: str) -> set[str]:
    """What a folder's name may mean, in the singular: 'Apple Granny Smith 1' is an apple and a Granny Smith.

    >>> sorted(names_of("Limes 1"))
    ['lime', 'limes']
    """
    words = re.sub(r"[\d_]+", " ", label).lower().split()
    parts = {" ".join(words), words[0], " ".join(words[1:])} - {""}
    return parts | {part.removesuffix("s") for part in parts}


def main(datasets: Path, reference: Path, out: Path, *, published: bool = False) -> None:
    """List the overlaps, and write the splits; with `published`, those of ImageNet's published split."""
    senses: dict[str, set[str]] = defaultdict(set)  # of a name
    titles: dict[str, str] = {}
    for line in (reference / "words.txt").read_text(encoding="utf-8").splitlines():
        wnid, _, names = line.partition("\t")
        titles[wnid] = names
        for name in names.lower().split(","):
            senses[name.strip().replace("-", " ")].add(wnid)
    near: dict[str, set[str]] = defaultdict(set)
    for line in (reference / "wordnet.is_a.txt").read_text(encoding="utf-8").splitlines():
        above, below = line.split()
        near[above].add(below)
        near[below].add(above)
    images = sorted({*classes_of(datasets / "ilsvrc-val.tar"), *classes_of(datasets / "tiny-imagenet.tar")})
    if published:
        files = reference / "wordnet.is_a.txt", reference / "words.txt"
        split = Hierarchy.from_files(*files, images).splits()
    else:
        split = random_by_class(images, seed=0)
    tested = {images[i] for i in split["test"]}
    out.mkdir(parents=True, exist_ok=True)
    for name, role in ROLE.items():
        if published and name in DIGITS:  # ImageNet's split is nothing to them
            continue
        kept, left_out = [], []
        for label in classes_of(datasets / f"{name}.tar"):
            reason = OTHER.get(label) or ("mnist" if label in DIGITS.get(name, ()) else None)
            if reason is None and name not in DIGITS:
                own = set().union(*(senses.get(each, set()) for each in names_of(label)))
                found = sorted(tested & (own | set().union(*(near[each] for each in own))))
                reason = "; ".join(f"{wnid} {titles[wnid]}" for wnid in found) or None
            (kept.append(label) if reason is None else left_out.append((label, reason)))
        (out / f"{name}.json").write_text(json.dumps({role: kept}, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {len(kept)} classes stay, {len(left_out)} are left out")
        for label, reason in left_out:
            print(f"  {label}: {reason}")


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]), published="--published" in sys.argv)
