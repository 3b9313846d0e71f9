"""WordNet files of the published form, and a slow derivation of splits and nodes beside the quick one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cnaps.data.wordnet import CARNIVORE, DEVICE, Hierarchy
from cnaps.errors import DataError

ROOT, ANIMAL, THING = "n00001740", "n00015388", "n00021939"


def ids(start: int, n: int) -> list[str]:
    return [f"n{start + index:08d}" for index in range(n)]


def write(folder: Path, edges: list[tuple[str, str]]) -> tuple[Path, Path]:
    (folder / "wordnet.is_a.txt").write_text("".join(f"{parent} {child}\n" for parent, child in edges))
    words = {ROOT: "entity", CARNIVORE: "carnivore", DEVICE: "device"}
    (folder / "words.txt").write_text("".join(f"{node}\t{word}\n" for node, word in words.items()))
    return folder / "wordnet.is_a.txt", folder / "words.txt"


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Hierarchy, list[tuple[str, str]], list[str]]:
    """1000 leaves below a tangle of nodes: several parents, single children, other leaves."""
    chance = random.Random(0)
    below = {CARNIVORE: ids(10_000_000, 158), DEVICE: ids(11_000_000, 130), ANIMAL: ids(12_000_000, 200)}
    below[THING] = ids(13_000_000, 512)
    edges = [(ROOT, ANIMAL), (ROOT, THING), (ANIMAL, CARNIVORE), (THING, DEVICE)]
    number = 20_000_000
    for root, leaves in below.items():
        nodes = [root]
        for _ in range(len(leaves) // 2):
            number += 1
            node = f"n{number:08d}"
            for parent in {chance.choice(nodes), chance.choice(nodes)}:
                edges.append((parent, node))
            nodes.append(node)
        for leaf in leaves:
            for parent in set(chance.choices(nodes, k=chance.choice([1, 1, 2]))):
                edges.append((parent, leaf))
        edges += [(chance.choice(nodes), other) for other in ids(number * 2, 30)]
    chance.shuffle(edges)
    leaves = sorted(leaf for some in below.values() for leaf in some)
    return Hierarchy.from_files(*write(tmp_path_factory.mktemp("wordnet"), edges), leaves), edges, leaves


def descendants(children: dict[str, list[str]], node: str) -> set[str]:
    return {node}.union(*(descendants(children, child) for child in children.get(node, [])))


def collapsed(edges: list[tuple[str, str]], leaves: set[str], below: str) -> dict[str, list[str]]:
    """Leaves and their ancestors below a node; nodes with one child are taken out one after the other."""
    children: dict[str, list[str]] = {}
    for parent, child in edges:
        children.setdefault(parent, []).append(child)
    kept = {node for node in descendants(children, below) if descendants(children, node) & leaves}
    graph = {node: [child for child in children.get(node, []) if child in kept] for node in kept}
    while lonely := [node for node, found in graph.items() if len(found) == 1]:
        (child,) = graph.pop(lonely[0])
        for found in graph.values():
            found[:] = [child if node == lonely[0] else node for node in found]
    return graph


def test_classes_are_split_by_carnivore_and_device(imagenet) -> None:
    hierarchy, _, leaves = imagenet
    found = hierarchy.splits()
    assert {split: len(indices) for split, indices in found.items()} == {
        "train": 712,
        "valid": 158,
        "test": 130,
    }
    assert {leaves[index][:3] for index in found["valid"]} == {"n10"}
    assert {leaves[index][:3] for index in found["test"]} == {"n11"}


@pytest.mark.parametrize(("split", "below"), [("train", ROOT), ("valid", CARNIVORE), ("test", DEVICE)])
def test_nodes_are_those_of_a_slow_derivation(imagenet, split: str, below: str) -> None:
    hierarchy, edges, leaves = imagenet
    whole = collapsed(edges, set(leaves), ROOT)
    own = {leaves[index] for index in hierarchy.splits()[split]}
    graph = collapsed([(p, c) for p, found in whole.items() for c in set(found)], own, below)
    wanted = {}
    for node in graph:
        span = descendants(graph, node) & own
        if graph[node] and 5 <= len(span) <= 392:
            wanted[node] = sorted(leaves.index(leaf) for leaf in span)
    found = {name.split()[0]: indices for name, indices in hierarchy.nodes(split).items()}
    assert len(wanted) > 10
    assert found == wanted


def test_a_node_with_a_single_child_is_one_with_it(tmp_path: Path) -> None:
    leaves = ids(10_000_000, 6)
    chain = [(ROOT, ANIMAL), (ANIMAL, THING), *((THING, leaf) for leaf in leaves)]
    hierarchy = Hierarchy.from_files(*write(tmp_path, chain), leaves)
    assert hierarchy.nodes("train") == {THING: [0, 1, 2, 3, 4, 5]}
    assert hierarchy.splits() == {"train": [0, 1, 2, 3, 4, 5]}


def test_the_description_names_the_nodes_of_all_splits(imagenet) -> None:
    hierarchy, _, _ = imagenet
    described = hierarchy.describe()
    assert described["kind"] == "wordnet"
    assert f"{DEVICE} device" in described["nodes"]
    assert described["nodes"] == hierarchy.nodes("train") | hierarchy.nodes("valid") | hierarchy.nodes("test")


def test_files_that_do_not_fit_are_refused(imagenet, tmp_path: Path) -> None:
    _, edges, leaves = imagenet
    is_a, words = write(tmp_path, edges)
    with pytest.raises(DataError, match="does not know 1 of the classes, n99999999"):
        Hierarchy.from_files(is_a, words, [*leaves, "n99999999"])
    with pytest.raises(DataError, match="cannot read"):
        Hierarchy.from_files(tmp_path / "nothing", words, leaves)
    write(tmp_path, [*edges, (leaves[0], ROOT)])
    with pytest.raises(DataError, match="circle"):
        Hierarchy.from_files(is_a, words, leaves)
    moved = [(ANIMAL if parent == CARNIVORE else parent, child) for parent, child in edges]
    write(tmp_path, [*moved, (ROOT, CARNIVORE)])
    with pytest.raises(DataError, match="but published is"):
        Hierarchy.from_files(is_a, words, leaves).splits()
    is_a.write_text("n00001740 n00015388 n1\n")
    with pytest.raises(DataError, match="line 1: expected 'parent child'"):
        Hierarchy.from_files(is_a, words, leaves)
