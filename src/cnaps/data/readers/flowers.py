"""VGG Flower: ``jpg/image_00001.jpg`` ..., with their classes in ``imagelabels.mat``."""

from __future__ import annotations

import io
from pathlib import PurePosixPath

from cnaps.data.archives import Tree
from cnaps.data.readers.base import Item, Part, Plan, Reader, class_folders, find, is_image, plan_files
from cnaps.errors import DataError

_HOME = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102"

# The file of labels has numbers alone; these are the names of 1..102.
_NAMES = """
    pink primrose, hard-leaved pocket orchid, canterbury bells, sweet pea, english marigold, tiger lily,
    moon orchid, bird of paradise, monkshood, globe thistle, snapdragon, colt's foot, king protea,
    spear thistle, yellow iris, globe-flower, purple coneflower, peruvian lily, balloon flower,
    giant white arum lily, fire lily, pincushion flower, fritillary, red ginger, grape hyacinth,
    corn poppy, prince of wales feathers, stemless gentian, artichoke, sweet william, carnation,
    garden phlox, love in the mist, mexican aster, alpine sea holly, ruby-lipped cattleya, cape flower,
    great masterwort, siam tulip, lenten rose, barbeton daisy, daffodil, sword lily, poinsettia,
    bolero deep blue, wallflower, marigold, buttercup, oxeye daisy, common dandelion, petunia,
    wild pansy, primula, sunflower, pelargonium, bishop of llandaff, gaura, geranium, orange dahlia,
    pink-yellow dahlia, cautleya spicata, japanese anemone, black-eyed susan, silverbush,
    californian poppy, osteospermum, spring crocus, bearded iris, windflower, tree poppy, gazania,
    azalea, water lily, rose, thorn apple, morning glory, passion flower, lotus, toad lily, anthurium,
    frangipani, clematis, hibiscus, columbine, desert-rose, tree mallow, magnolia, cyclamen, watercress,
    canna lily, hippeastrum, bee balm, ball moss, foxglove, bougainvillea, camellia, mallow,
    mexican petunia, bromelia, blanket flower, trumpet creeper, blackberry lily
"""
NAMES = [name.strip() for name in _NAMES.split(",")]


def read(tree: Tree) -> Plan:
    """Classes are called ``001.pink primrose``; folders with the numbers 1..102 are read as well."""
    found: dict[str, list[Item]] = {}
    if any(name.endswith("imagelabels.mat") for name in tree.names()):
        numbers = _labels(tree)
        for name in tree.names():
            path = PurePosixPath(name)
            if is_image(name) and path.stem.startswith("image_"):
                position = path.stem.removeprefix("image_")
                if not position.isdecimal() or not 1 <= int(position) <= len(numbers):
                    raise DataError(f"imagelabels.mat has {len(numbers)} labels, and none for {name}")
                label = _name(numbers[int(position) - 1])
                found.setdefault(label, []).append(Item(f"{label}/{path.name}", name))
        return plan_files(tree, found)
    for folder, items in class_folders(tree).items():
        label = _name(int(folder)) if folder.isdecimal() else folder
        found[label] = [Item(f"{label}/{PurePosixPath(item.file).name}", item.file) for item in items]
    return plan_files(tree, found)


def _name(number: int) -> str:
    if not 1 <= number <= len(NAMES):
        raise DataError(f"VGG Flower has the classes 1..{len(NAMES)}, not {number}")
    return f"{number:03d}.{NAMES[number - 1]}"


def _labels(tree: Tree) -> list[int]:
    from scipy.io import loadmat  # type: ignore[import-untyped]

    try:
        return [
            int(label) for label in loadmat(io.BytesIO(tree.read(find(tree, "imagelabels.mat"))))["labels"].ravel()
        ]
    except Exception as error:  # a damaged file makes the MATLAB reader raise almost anything
        raise DataError(f"imagelabels.mat in {tree.path} is damaged: {error}") from error


READER = Reader(
    "vgg_flower",
    "VGG Flower: 102 flowers of the United Kingdom",
    read,
    licence="research",
    parts=(
        Part("102flowers.tgz", f"{_HOME}/102flowers.tgz", ("jpg",)),
        Part("imagelabels.mat", f"{_HOME}/imagelabels.mat"),
    ),
)
