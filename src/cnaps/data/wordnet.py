"""ILSVRC's classes as leaves of WordNet: the split by "device" and "carnivore", and the nodes of tasks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from cnaps.data.splits import SPLITS, group
from cnaps.errors import DataError

CARNIVORE, DEVICE = "n02075296", "n03183080"
_ROOTS = {"valid": CARNIVORE, "test": DEVICE}
MIN_LEAVES, MAX_LEAVES = 5, 392
PUBLISHED = {"train": 712, "valid": 158, "test": 130}

Graph = dict[str, set[str]]  # a node's children


def is_wordnet_id(name: str) -> bool:
    """Whether a class is named by its id in WordNet, as ImageNet's are.

    >>> is_wordnet_id("n02075296"), is_wordnet_id("newt")
    (True, False)
    """
    return re.fullmatch(r"n\d{8}", name) is not None


class Hierarchy:
    """The part of WordNet above some leaves.

    ``leaves`` are the WordNet ids of the classes; class indices everywhere are positions in it.
    """

    def __init__(self, children: Mapping[str, set[str]], words: Mapping[str, str], leaves: Sequence[str]) -> None:
        known = set(children).union(*children.values())
        missing = [leaf for leaf in leaves if leaf not in known]
        if missing:
            raise DataError(
                f"WordNet's is-a file does not know {len(missing)} of the classes, {missing[0]} among them; "
                "take wordnet.is_a.txt as ImageNet publishes it"
            )
        self.leaves = list(leaves)
        self.words = dict(words)
        self._index = {leaf: index for index, leaf in enumerate(self.leaves)}
        self._graph = _contract(children, self.leaves)
        spans = _spans(self._graph, self._index)
        self._split = dict.fromkeys(self.leaves, "train")
        for split, root in _ROOTS.items():
            self._split.update(dict.fromkeys(spans.get(root, ()), split))

    @classmethod
    def from_files(cls, is_a_path: str | Path, words_path: str | Path, leaves: Sequence[str]) -> Hierarchy:
        """Read ``wordnet.is_a.txt`` (a line: parent child) and ``words.txt`` (a line: id, tab, words)."""
        children: Graph = {}
        for number, line in enumerate(_lines(is_a_path), 1):
            pair = line.split()
            if len(pair) != 2 or not all(map(is_wordnet_id, pair)):
                where = f"{is_a_path}, line {number}"
                raise DataError(f"{where}: expected 'parent child' as WordNet ids, not {line[:80]!r}")
            children.setdefault(pair[0], set()).add(pair[1])
        words = dict(line.split("\t", 1) for line in _lines(words_path) if "\t" in line)
        return cls(children, words, leaves)

    def splits(self) -> dict[str, list[int]]:
        """Leaves below "carnivore" are for validation, below "device" for test, the rest for training."""
        found = group(self.leaves, self._split.__getitem__)
        counts = {split: len(indices) for split, indices in found.items()}
        if len(self.leaves) == sum(PUBLISHED.values()) and counts != PUBLISHED:
            raise DataError(f"this WordNet splits ILSVRC's classes {counts}, but published is {PUBLISHED}")
        return found

    def nodes(self, split: str) -> dict[str, list[int]]:
        """The inner nodes that a split's tasks come from, each with the class indices of the leaves it spans.

        Only the split's own leaves count, and a node with a single child is one with that child.
        """
        leaves = [leaf for leaf in self.leaves if self._split[leaf] == split]
        graph = _contract(self._graph, leaves, _ROOTS.get(split))
        spans = _spans(graph, leaves)
        return {
            f"{node} {self.words.get(node, '')}".strip(): sorted(self._index[leaf] for leaf in spans[node])
            for node in sorted(graph)
            if graph[node] and MIN_LEAVES <= len(spans[node]) <= MAX_LEAVES
        }

    def describe(self) -> dict[str, object]:
        """What a collection keeps as its hierarchy: the nodes of all splits."""
        nodes = {name: found for split in SPLITS for name, found in self.nodes(split).items()}
        return {"kind": "wordnet", "nodes": nodes}


def _contract(children: Mapping[str, set[str]], leaves: Sequence[str], root: str | None = None) -> Graph:
    """The leaves and their ancestors below ``root``, without nodes of a single child; children first."""
    parents: Graph = {}
    for node, below in children.items():
        for child in below:
            parents.setdefault(child, set()).add(node)
    kept = _reach(parents, leaves)
    if root is not None:
        kept &= _reach(children, [root])
    inner = {node: children.get(node, set()) & kept for node in kept}
    stands_for: dict[str, str] = {}
    graph: Graph = {}
    leaf_set = set(leaves)
    try:
        for node in TopologicalSorter(inner).static_order():
            if len(inner[node]) == 1 and node not in leaf_set:
                stands_for[node] = stands_for[next(iter(inner[node]))]
            else:
                stands_for[node] = node
                graph[node] = {stands_for[child] for child in inner[node]}
    except CycleError as error:
        raise DataError(f"WordNet's is-a file has a circle: {' -> '.join(error.args[1][:5])}") from error
    return graph


def _reach(edges: Mapping[str, set[str]], start: Iterable[str]) -> set[str]:
    found = set(start)
    queue = list(found)
    while queue:
        for node in edges.get(queue.pop(), ()):
            if node not in found:
                found.add(node)
                queue.append(node)
    return found


def _spans(graph: Graph, leaves: Iterable[str]) -> dict[str, set[str]]:
    leaf_set = set(leaves)
    spans: dict[str, set[str]] = {}
    for node, below in graph.items():  # children come first
        spans[node] = ({node} & leaf_set).union(*(spans[child] for child in below))
    return spans


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
