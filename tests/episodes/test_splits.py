"""Classes land where they were published to land."""

from __future__ import annotations

import random
import tarfile
import zipfile
from itertools import chain
from pathlib import Path

import pytest

from cnaps.data.splits import alphabets, by_alphabet, published, random_by_class
from cnaps.errors import DataError

COCO = """
person bicycle car motorcycle airplane bus train truck boat traffic_light fire_hydrant stop_sign
parking_meter bench bird cat dog horse sheep cow elephant bear zebra giraffe backpack umbrella handbag
tie suitcase frisbee skis snowboard sports_ball kite baseball_bat baseball_glove skateboard surfboard
tennis_racket bottle wine_glass cup fork knife spoon bowl banana apple sandwich orange broccoli carrot
hot_dog pizza donut cake chair couch potted_plant bed dining_table toilet tv laptop mouse remote keyboard
cell_phone microwave oven toaster sink refrigerator book clock vase scissors teddy_bear hair_drier
toothbrush
"""


def named(classes: list[str], split: list[int]) -> list[str]:
    return [classes[index] for index in split]


def tar_classes(path: Path) -> list[str]:
    with tarfile.open(path) as archive:
        return sorted({name.split("/")[0] for name in archive.getnames() if "/" in name})


def test_birds_are_split_as_published(shared: Path) -> None:
    classes = tar_classes(shared / "datasets" / "cub-birds.tar")
    found = published("cu_birds", classes)
    assert {split: len(indices) for split, indices in found.items()} == {
        "train": 140,
        "valid": 30,
        "test": 30,
    }
    test, valid = named(classes, found["test"]), named(classes, found["valid"])
    assert test[:3] == ["008.Rhinoceros_Auklet", "009.Brewer_Blackbird", "015.Lazuli_Bunting"]
    assert test[-2:] == ["193.Bewick_Wren", "194.Cactus_Wren"]
    assert valid[:2] == ["044.Frigatebird", "051.Horned_Grebe"]
    assert valid[-1] == "200.Common_Yellowthroat"


def test_flowers_are_split_as_published_whatever_the_order_and_padding() -> None:
    test = {5, 9, 15, 19, 35, 40, 41, 42, 45, 46, 65, 85, 89, 94, 96, 98}
    valid = {10, 16, 17, 23, 26, 47, 53, 56, 57, 62, 82, 83, 86, 97, 102}
    numbers = list(range(1, 103))
    random.Random(0).shuffle(numbers)
    for pattern in ("{}", "{:03d}", "{:03d}.some flower"):
        found = published("vgg_flower", [pattern.format(number) for number in numbers])
        assert {numbers[index] for index in found["test"]} == test
        assert {numbers[index] for index in found["valid"]} == valid
        assert len(found["train"]) == 71


def test_drawings_are_split_as_published(shared: Path) -> None:
    with zipfile.ZipFile(shared / "datasets" / "quickdraw.zip") as archive:
        classes = [Path(name).stem for name in archive.namelist() if name.endswith(".npy")]
    random.Random(1).shuffle(classes)
    found = published("quickdraw", classes)
    assert {split: len(indices) for split, indices in found.items()} == {
        "train": 241,
        "valid": 52,
        "test": 52,
    }
    test, valid = sorted(named(classes, found["test"])), sorted(named(classes, found["valid"]))
    assert test[:4] == ["angel", "animal migration", "axe", "bat"]
    assert "house" in test
    assert test[-2:] == ["wine bottle", "yoga"]
    assert valid[:3] == ["ant", "anvil", "backpack"]
    assert valid[-1] == "wristwatch"
    assert "The Mona Lisa" in named(classes, found["train"])


def test_coco_is_split_in_the_order_of_its_file() -> None:
    classes = COCO.split()
    found = published("mscoco", classes)
    assert set(found) == {"valid", "test"}
    test, valid = named(classes, found["test"]), named(classes, found["valid"])
    assert test[:5] == ["bicycle", "car", "airplane", "bus", "truck"]
    assert test[-3:] == ["refrigerator", "vase", "scissors"]
    assert valid[:3] == ["person", "motorcycle", "train"]
    assert (len(test), len(valid)) == (40, 40)


@pytest.mark.parametrize(
    ("dataset", "sizes", "test", "valid"),
    [
        (
            "aircraft",
            (70, 15, 15),
            [4, 8, 14, 18, 34, 39, 40, 41, 44, 45],
            [9, 15, 16, 22, 25, 38, 46, 52, 55, 56],
        ),
        ("dtd", (33, 7, 7), [0, 4, 8, 20, 36, 38, 44], [15, 16, 22, 26, 31, 33, 35]),
        (
            "fungi",
            (994, 200, 200),
            [8, 9, 19, 38, 44, 53, 55, 62, 63, 69],
            [0, 4, 6, 15, 22, 28, 32, 36, 45, 58],
        ),
    ],
)
def test_classes_at_these_places_are_published_as_test_and_validation(
    dataset: str, sizes: tuple[int, int, int], test: list[int], valid: list[int]
) -> None:
    found = published(dataset, [f"{index:04d}.name" for index in range(sum(sizes))])
    assert tuple(len(found[split]) for split in ("train", "valid", "test")) == sizes
    assert sorted(chain(*found.values())) == list(range(sum(sizes)))
    assert found["test"][:10] == test
    assert found["valid"][:10] == valid


@pytest.mark.parametrize(
    ("dataset", "n"), [("traffic_sign", 43), ("mnist", 10), ("cifar10", 10), ("cifar100", 100)]
)
def test_some_sets_are_for_test_alone(dataset: str, n: int) -> None:
    assert published(dataset, [str(index) for index in range(n)]) == {"test": list(range(n))}


def test_a_set_that_is_not_whole_has_no_published_split() -> None:
    with pytest.raises(DataError, match="dtd is published with 47 classes and split by them, but here are 10"):
        published("dtd", [str(index) for index in range(10)])
    with pytest.raises(DataError, match="no published rule that splits the classes of 'pokemon'"):
        published("pokemon", ["a"])
    with pytest.raises(DataError, match="begins with its number"):
        published("cu_birds", [f"bird {index}" for index in range(200)])


def test_alphabets_go_whole_to_a_split(shared: Path) -> None:
    classes: list[str] = []
    backgrounds: set[str] = set()
    for part in ("background", "evaluation"):
        with zipfile.ZipFile(shared / "datasets" / f"omniglot-images_{part}.zip") as archive:
            found = {"/".join(name.split("/")[1:3]) for name in archive.namelist() if name.endswith(".png")}
        classes += sorted(found)
        if part == "background":
            backgrounds = {name.split("/")[0] for name in found}
    groups, splits = alphabets(classes), by_alphabet(classes)
    assert len(groups) == 50
    assert len(classes) == 1623
    of = {split: {classes[index].split("/")[0] for index in indices} for split, indices in splits.items()}
    smallest = sorted(backgrounds, key=lambda name: len(groups[name]))[:5]
    assert of["valid"] == set(smallest)
    assert of["train"] == backgrounds - set(smallest)
    assert of["test"] == set(groups) - backgrounds
    assert published("omniglot", classes) == splits
    with pytest.raises(DataError, match="'Alphabet/character01', not 'Greek'"):
        by_alphabet(["Greek"])


def test_a_name_has_its_split_whatever_the_other_names(shared: Path) -> None:
    many = tar_classes(shared / "datasets" / "ilsvrc-val.tar")
    few = tar_classes(shared / "datasets" / "tiny-imagenet.tar")
    place = {name: split for split, indices in random_by_class(many, 3).items() for name in named(many, indices)}
    for split, indices in random_by_class(few, 3).items():
        assert {place.get(name, split) for name in named(few, indices)} == {split}
    assert random_by_class(many, 3) != random_by_class(many, 4)


def test_fractions_are_kept_on_average() -> None:
    classes = [f"класс {index}" for index in range(4000)]
    found = random_by_class(classes, 0)
    assert sorted(chain(*found.values())) == list(range(4000))
    for split, fraction in zip(("train", "valid", "test"), (0.7, 0.15, 0.15), strict=True):
        assert abs(len(found[split]) / 4000 - fraction) < 0.03
