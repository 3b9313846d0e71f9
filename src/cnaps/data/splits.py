"""Which classes are for training, validation and test: the published rules, and a rule for own folders.

Every function maps class names to ``{"train": [...], "valid": [...], "test": [...]}``: sorted indices into
the names it was given; a split without classes is left out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence

import numpy as np

from cnaps.errors import DataError

SPLITS = ("train", "valid", "test")

# How many classes Meta-Dataset uses for training, validation and test.
_PUBLISHED = {
    "aircraft": (70, 15, 15),
    "cu_birds": (140, 30, 30),
    "dtd": (33, 7, 7),
    "fungi": (994, 200, 200),
    "quickdraw": (241, 52, 52),
    "vgg_flower": (71, 15, 16),
    "mscoco": (0, 40, 40),
    "traffic_sign": (0, 0, 43),
    "mnist": (0, 0, 10),
    "cifar10": (0, 0, 10),
    "cifar100": (0, 0, 100),
}
_NUMBERED = {"cu_birds", "fungi", "vgg_flower"}  # names begin with a number, and that number is their order

# The evaluation alphabets of Omniglot, and the five background alphabets with the fewest characters.
_TEST_ALPHABETS = {
    "Angelic", "Atemayar_Qelisayer", "Atlantean", "Aurek-Besh", "Avesta", "Ge_ez", "Glagolitic", "Gurmukhi",
    "Kannada", "Keble", "Malayalam", "Manipuri", "Mongolian", "Old_Church_Slavonic_(Cyrillic)", "Oriya",
    "Sylheti", "Syriac_(Serto)", "Tengwar", "Tibetan", "ULOG",
}  # fmt: skip
_VALID_ALPHABETS = {
    "Alphabet_of_the_Magi",
    "Blackfoot_(Canadian_Aboriginal_Syllabics)",
    "Inuktitut_(Canadian_Aboriginal_Syllabics)",
    "Ojibwe_(Canadian_Aboriginal_Syllabics)",
    "Tagalog",
}


def published(dataset: str, classes: Sequence[str]) -> dict[str, list[int]]:
    """The split of Meta-Dataset, exactly.

    MSCOCO's classes must come in the order of its annotation file; the order of the others does not matter.

    >>> {split: len(found) for split, found in published("mnist", list("0123456789")).items()}
    {'test': 10}
    """
    if dataset == "omniglot":
        return by_alphabet(classes)
    if dataset == "ilsvrc_2012":
        raise DataError(
            "the published split needs wordnet.is_a.txt and words.txt beside the images; "
            "without them choose --splits random, none, or a JSON file"
        )
    if dataset not in _PUBLISHED:
        known = ", ".join(sorted([*_PUBLISHED, "omniglot"]))
        raise DataError(f"there is no published rule that splits the classes of {dataset!r}; there is for {known}")
    n_train, n_valid, n_test = _PUBLISHED[dataset]
    n = n_train + n_valid + n_test
    if len(classes) != n:
        raise DataError(
            f"{dataset} is published with {n} classes and split by them, but here are {len(classes)}; "
            "give the whole data set, or choose another split"
        )
    order = np.array(_order(dataset, classes))
    generator = np.random.RandomState(22)
    trainval = generator.choice(n, n_train + n_valid, replace=False)
    train = generator.choice(trainval, n_train, replace=False)
    found = (train, np.setdiff1d(trainval, train), np.setdiff1d(np.arange(n), trainval))
    return {name: sorted(order[part].tolist()) for name, part in zip(SPLITS, found, strict=True) if len(part)}


def by_alphabet(classes: Sequence[str]) -> dict[str, list[int]]:
    """Omniglot's split by alphabet: the evaluation ones for test, the five smallest others for validation.

    >>> by_alphabet(["Greek/character01", "Tagalog/character01", "Keble/character01", "Keble/character02"])
    {'train': [0], 'valid': [1], 'test': [2, 3]}
    """

    def place(name: str) -> str:
        alphabet = _alphabet(name)
        return "test" if alphabet in _TEST_ALPHABETS else "valid" if alphabet in _VALID_ALPHABETS else "train"

    return group(classes, place)


def alphabets(classes: Sequence[str]) -> dict[str, list[int]]:
    """The class indices of each alphabet.

    >>> alphabets(["Greek/character01", "Latin/character01", "Greek/character02"])
    {'Greek': [0, 2], 'Latin': [1]}
    """
    groups: dict[str, list[int]] = {}
    for index, name in enumerate(classes):
        groups.setdefault(_alphabet(name), []).append(index)
    return groups


def random_by_class(classes: Sequence[str], seed: int) -> dict[str, list[int]]:
    """A split by chance, 70 / 15 / 15 percent, in which a name has its place, whatever the other names are.

    So a class that two collections share is never for training in one of them and for test in the other.

    >>> random_by_class(["oak", "elm", "ash"], seed=0)
    {'train': [0, 2], 'test': [1]}
    >>> random_by_class(["oak", "elm", "ash", "fir"], seed=0)
    {'train': [0, 2], 'valid': [3], 'test': [1]}
    """

    def place(name: str) -> str:
        digest = hashlib.sha256(f"{seed}\n{name}".encode("utf-8", "surrogateescape")).digest()
        chance = int.from_bytes(digest[:8], "big") / 2**64
        return "train" if chance < 0.7 else "valid" if chance < 0.85 else "test"

    return group(classes, place)


def group(classes: Sequence[str], place: Callable[[str], str]) -> dict[str, list[int]]:
    """The split that ``place`` makes of class names."""
    places = [place(name) for name in classes]
    found = {split: [index for index, at in enumerate(places) if at == split] for split in SPLITS}
    return {split: indices for split, indices in found.items() if indices}


def _alphabet(name: str) -> str:
    alphabet, slash, _ = name.partition("/")
    if not slash:
        raise DataError(f"a class of Omniglot is called 'Alphabet/character01', not {name!r}")
    return alphabet


def _order(dataset: str, classes: Sequence[str]) -> list[int]:
    if dataset == "mscoco":
        return list(range(len(classes)))
    if dataset not in _NUMBERED:
        return sorted(range(len(classes)), key=lambda index: classes[index])

    def number(index: int) -> int:
        digits = re.match(r"\d+", classes[index])
        if not digits:
            wrong = repr(classes[index])
            raise DataError(f"a class of {dataset} begins with its number, like '014.Name', but here is {wrong}")
        return int(digits.group())

    return sorted(range(len(classes)), key=number)
