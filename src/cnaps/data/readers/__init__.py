"""The data sets that can be prepared, by name."""

from __future__ import annotations

import importlib
from functools import cache

from cnaps.data.readers.base import Reader
from cnaps.errors import InputError

# In the order of Meta-Dataset, then the general ones.
_MODULES = (
    "ilsvrc", "omniglot", "aircraft", "birds", "dtd", "quickdraw", "fungi", "flowers", "traffic", "mscoco",
    "mnist", "cifar", "folders", "huggingface", "records",
)  # fmt: skip
META_DATASET = (
    "ilsvrc_2012", "omniglot", "aircraft", "cu_birds", "dtd", "quickdraw", "fungi", "vgg_flower",
    "traffic_sign", "mscoco", "mnist", "cifar10", "cifar100",
)  # fmt: skip


@cache
def readers() -> dict[str, Reader]:
    """All readers by the name of their data set."""
    found: dict[str, Reader] = {}
    for name in _MODULES:
        module = importlib.import_module(f"cnaps.data.readers.{name}")
        found |= {reader.name: reader for reader in getattr(module, "READERS", None) or (module.READER,)}
    return found


def get_reader(name: str) -> Reader:
    """The reader of a data set."""
    if name not in readers():
        raise InputError(f"there is no reader called {name!r}; choose one of {', '.join(readers())}")
    return readers()[name]
