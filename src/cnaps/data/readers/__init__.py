"""The data sets that can be prepared: what they are, which files are published where, and how those are read."""

from __future__ import annotations

from functools import partial

from cnaps.data.readers.annotated import read_aircraft, read_flowers, read_fungi, read_mscoco
from cnaps.data.readers.arrays import read_cifar10, read_cifar100, read_mnist, read_quickdraw
from cnaps.data.readers.base import Part, Reader
from cnaps.data.readers.folders import read_below, read_folder, read_ilsvrc, read_omniglot
from cnaps.data.readers.huggingface import read_huggingface
from cnaps.data.readers.records import read_records
from cnaps.errors import InputError

_OXFORD = "https://www.robots.ox.ac.uk/~vgg/data"
_RESEARCH = "non-commercial research and education"


def _one(home: str, file: str, *others: str) -> Part:
    """A file, the address of the folder it is published in, and what else shows that it is there."""
    return Part(file, f"{home}/{file}", others)


_FLOWERS, _CIFAR = f"{_OXFORD}/flowers/102", "https://www.cs.toronto.edu/~kriz"
_COCO, _FUNGI = "http://images.cocodataset.org", "https://labs.gbif.org/fgvcx/2018"
_OMNIGLOT = "https://github.com/brendenlake/omniglot/raw/master/python"
_MNIST = "https://storage.googleapis.com/cvdf-datasets/mnist"
_MNIST_FILES = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
_SKETCHES = "https://console.cloud.google.com/storage/browser/quickdraw_dataset/full/numpy_bitmap"

_META_DATASET = [
    Reader(
        "ilsvrc_2012", "ILSVRC-2012: photographs of 1000 WordNet classes", read_ilsvrc, _RESEARCH,
        (
            Part(
                "ILSVRC2012_img_train.tar", "https://image-net.org/challenges/LSVRC/2012/2012-downloads.php",
                ("n????????.tar", "n????????", "ILSVRC2012_img_train"),
            ),
            _one("https://image-net.org/data", "wordnet.is_a.txt"),
            _one("https://image-net.org/data", "words.txt"),
        ),
    ),
    Reader(
        "omniglot", "Omniglot: handwritten characters of 50 alphabets", read_omniglot, "MIT",
        tuple(_one(_OMNIGLOT, f"{part}.zip", part) for part in ("images_background", "images_evaluation")),
    ),
    Reader(
        "aircraft", "FGVC Aircraft: 100 variants of aircraft", read_aircraft, "non-commercial research",
        (_one(f"{_OXFORD}/fgvc-aircraft/archives", "fgvc-aircraft-2013b.tar.gz", "fgvc-aircraft-2013b"),),
    ),
    Reader(
        "cu_birds", "CUB-200-2011: birds of 200 species", partial(read_below, "images"), _RESEARCH,
        (Part("CUB_200_2011.tgz", "https://data.caltech.edu/records/65de6-vp158", ("CUB_200_2011",)),),
    ),
    Reader(
        "dtd", "Describable Textures: 47 textures", partial(read_below, "images"), "research",
        (_one(f"{_OXFORD}/dtd/download", "dtd-r1.0.1.tar.gz", "dtd/images"),),
    ),
    Reader(
        "quickdraw", "Quick, Draw!: sketches of 345 categories", read_quickdraw, "CC BY 4.0",
        (Part("*.npy", _SKETCHES),),
    ),
    Reader(
        "fungi", "FGVCx Fungi: 1394 species of mushrooms", read_fungi, _RESEARCH,
        (
            _one(_FUNGI, "fungi_train_val.tgz", "images"),
            _one(_FUNGI, "train_val_annotations.tgz", "train.json"),
        ),
    ),
    Reader(
        "vgg_flower", "VGG Flower: 102 flowers of the United Kingdom", read_flowers, "research",
        (_one(_FLOWERS, "102flowers.tgz", "jpg"), _one(_FLOWERS, "imagelabels.mat")),
    ),
    Reader(
        "traffic_sign", "GTSRB: 43 German traffic signs", partial(read_below, "Images"), "research",
        (
            _one(
                "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370",
                "GTSRB_Final_Training_Images.zip", "GTSRB*Training_Images.zip", "GTSRB",
            ),
        ),
    ),
    Reader(
        "mscoco", "MSCOCO 2017: objects of 80 categories, cut out of photographs", read_mscoco,
        "annotations CC BY 4.0; images under their owners' Flickr terms",
        (
            _one(f"{_COCO}/zips", "train2017.zip", "train2017"),
            _one(f"{_COCO}/annotations", "annotations_trainval2017.zip", "annotations"),
        ),
    ),
    Reader(
        "mnist", "MNIST: handwritten digits", read_mnist, "CC BY-SA 3.0",
        tuple(_one(_MNIST, f"{file}.gz", file) for file in _MNIST_FILES),
    ),
    Reader(
        "cifar10", "CIFAR-10: small photographs of 10 classes", read_cifar10,
        "not stated by its authors; research", (_one(_CIFAR, "cifar-10-python.tar.gz", "cifar-10-batches-py"),),
    ),
    Reader(
        "cifar100", "CIFAR-100: small photographs of 100 classes", read_cifar100,
        "not stated by its authors; research", (_one(_CIFAR, "cifar-100-python.tar.gz", "cifar-100-python"),),
    ),
]  # fmt: skip
_GENERAL = [
    Reader(
        "folder", "your own images: class folders, an archive of them, or a CSV of path and label", read_folder,
        default_splits="none",
    ),
    Reader("huggingface", "a local folder of a Hugging Face data set", read_huggingface, default_splits="none"),
    Reader(
        "meta-dataset-records",
        "the TFRecord files that Meta-Dataset's own conversion writes, with dataset_spec.json", read_records,
    ),
]  # fmt: skip
META_DATASET = tuple(reader.name for reader in _META_DATASET)
READERS = {reader.name: reader for reader in (*_META_DATASET, *_GENERAL)}


def get_reader(name: str) -> Reader:
    """The reader of a data set."""
    if name not in READERS:
        raise InputError(f"there is no reader called {name!r}; choose one of {', '.join(READERS)}")
    return READERS[name]
