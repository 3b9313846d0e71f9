"""Every reader on a small data set made in exactly the layout that its publisher ships."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from cnaps.data.collection import Collection
from cnaps.data.prepare import prepare
from cnaps.data.readers import META_DATASET, READERS
from cnaps.errors import DataError

from .conftest import (
    Command,
    assert_shades,
    encoded,
    picture,
    shade,
    shaded,
    sizes,
    write_files,
    write_tar,
    write_zip,
)


def test_there_is_a_reader_for_every_data_set_of_the_benchmark(command: Command) -> None:
    assert set(META_DATASET) | {"folder", "huggingface", "meta-dataset-records"} == set(READERS)
    assert len(META_DATASET) == 13
    _, out, _ = command("data", "list")
    assert all(name in out for name in READERS)


@pytest.mark.parametrize("array", [np.zeros((2, 783), np.uint8), np.zeros((2, 784)), np.zeros(784, np.uint8)])
def test_drawings_of_another_shape_are_refused(array: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "cat.npy", array)
    with pytest.raises(DataError, match=r"cat\.npy"):
        prepare("quickdraw", tmp_path, tmp_path / "c")


def test_drawings_that_need_pickle_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "cat.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"cat\.npy"):
        prepare("quickdraw", tmp_path, tmp_path / "c")


def test_birds_are_read_as_published(tmp_path: Path) -> None:
    names = [f"{index:03d}.Bird_{index}" for index in range(1, 201)]
    files = {f"CUB_200_2011/images/{name}/{name}_0001.jpg": shaded(index) for index, name in enumerate(names)}
    files["CUB_200_2011/classes.txt"] = "".join(f"{i} {name}\n" for i, name in enumerate(names, 1)).encode()
    files["CUB_200_2011/images.txt"] = b"1 001.Bird_1/001.Bird_1_0001.jpg\n"
    files["CUB_200_2011/parts/parts.txt"] = b"1 back\n"
    files["attributes.txt"] = b"1 has_bill_shape::curved\n"
    write_tar(tmp_path / "CUB_200_2011.tgz", files, "w:gz")
    collection = prepare("cu_birds", tmp_path, tmp_path / "c", size=16, workers=1).collection
    assert collection.classes == names
    assert sizes(collection) == {"train": 140, "valid": 30, "test": 30}
    assert collection.keys([1]) == ["002.Bird_2/002.Bird_2_0001.jpg"]
    assert_shades(collection, {names[3]: 3, names[150]: 150})
    write_files(tmp_path / "unpacked", files)
    again = prepare(
        "cu_birds", tmp_path / "unpacked" / "CUB_200_2011", tmp_path / "d", size=16, workers=1
    ).collection
    assert again.fingerprint == collection.fingerprint


def test_textures_are_read_as_published(tmp_path: Path) -> None:
    names = [f"texture{index:02d}" for index in range(47)]
    files = {f"dtd/images/{name}/{name}_0001.jpg": shaded(index) for index, name in enumerate(names)}
    files |= {"dtd/images/texture46/.directory": b"[Dolphin]", "dtd/labels/train1.txt": b"texture00/x.jpg\n"}
    files["dtd/imdb/imdb.mat"] = b"MATLAB 5.0"
    source = write_tar(tmp_path / "dtd-r1.0.1.tar.gz", files, "w:gz")
    collection = prepare("dtd", source, tmp_path / "c", workers=1).collection
    assert collection.classes == names
    assert sizes(collection) == {"train": 33, "valid": 7, "test": 7}
    assert_shades(collection, {"texture05": 5})


def test_aircraft_are_read_as_published_and_cropped(tmp_path: Path) -> None:
    variants = [f"Boeing 7{index:02d}/A" for index in range(100)]
    files: dict[str, bytes] = {}
    lines: dict[str, list[str]] = {"trainval": [], "test": []}
    boxes = []
    for index, variant in enumerate(variants):
        name = f"{1_000_000 + index}"
        image = Image.new("RGB", (60, 50), "white")
        image.paste(picture(*shade(index), size=(20, 20)), (10, 5))
        files[f"fgvc-aircraft-2013b/data/images/{name}.jpg"] = encoded(image, quality=98)
        lines["test" if index % 3 == 0 else "trainval"].append(f"{name} {variant}")
        boxes.append(f"{name} 11 6 29 24")
    for part, rows in lines.items():
        files[f"fgvc-aircraft-2013b/data/images_variant_{part}.txt"] = ("\n".join(rows) + "\n").encode()
        files[f"fgvc-aircraft-2013b/data/images_family_{part}.txt"] = b"1000000 Boeing\n"
    files["fgvc-aircraft-2013b/data/images_box.txt"] = ("\n".join(boxes) + "\n").encode()
    source = write_tar(tmp_path / "fgvc-aircraft-2013b.tar.gz", files, "w:gz")
    collection = prepare("aircraft", source, tmp_path / "c", size=16, workers=1).collection
    assert collection.classes == variants
    assert sizes(collection) == {"train": 70, "valid": 15, "test": 15}
    assert_shades(collection, {variants[7]: 7, variants[42]: 42})
    files["fgvc-aircraft-2013b/data/images_box.txt"] = b"1000000 1 2 3\n"
    with pytest.raises(DataError, match=r"images_box\.txt"):
        prepare("aircraft", write_files(tmp_path / "bad", files), tmp_path / "d")


def test_fungi_are_read_as_published(tmp_path: Path) -> None:
    count = 1394
    categories = [{"id": index, "name": f"Fungus{index % 700}"} for index in range(count)]
    image = {index: shaded(index, "PNG", (8, 8)) for index in range(count)}
    files: dict[str, bytes] = {}
    for part in ("train", "val"):
        ids = range(count) if part == "train" else range(0, count, 100)
        paths = {index: f"images/{index:04d}.Fungus{index % 700}/{part}{index}.JPG" for index in ids}
        files |= {path: image[index] for index, path in paths.items()}
        content = {
            "info": {"year": 2018},
            "images": [{"id": 5000 + index, "file_name": path, "width": 8} for index, path in paths.items()],
            "annotations": [{"id": index, "image_id": 5000 + index, "category_id": index} for index in ids],
            "categories": categories,
        }
        files[f"{part}.json"] = json.dumps(content).encode()
    write_tar(tmp_path / "fungi_train_val.tgz", {n: c for n, c in files.items() if n.startswith("images")}, "w:gz")
    write_tar(tmp_path / "train_val_annotations.tgz", {n: c for n, c in files.items() if "json" in n}, "w:gz")
    collection = prepare("fungi", tmp_path, tmp_path / "c", size=8, workers=1).collection
    assert len(collection.classes) == count
    assert collection.classes[701] == "0701.Fungus1"
    assert collection.counts[:3].tolist() == [2, 1, 1]
    assert sizes(collection) == {"train": 994, "valid": 200, "test": 200}
    assert_shades(collection, {"0701.Fungus1": 701, "1393.Fungus693": 1393})


def test_flowers_are_read_as_published(tmp_path: Path) -> None:
    from scipy.io import savemat

    numbers = [1 + (index * 7) % 102 for index in range(204)]
    files = {f"jpg/image_{i:05d}.jpg": shaded(number) for i, number in enumerate(numbers, 1)}
    write_tar(tmp_path / "102flowers.tgz", files, "w:gz")
    savemat(tmp_path / "imagelabels.mat", {"labels": np.array([numbers], np.uint8)})
    collection = prepare("vgg_flower", tmp_path, tmp_path / "c", size=16, workers=1).collection
    assert len(collection.classes) == 102
    assert collection.classes[89] == "090.canna lily"
    assert sizes(collection) == {"train": 71, "valid": 15, "test": 16}
    assert_shades(collection, {"090.canna lily": 90, "001.pink primrose": 1})
    (tmp_path / "imagelabels.mat").write_bytes(b"no MATLAB file")
    with pytest.raises(DataError, match=r"imagelabels\.mat"):
        prepare("vgg_flower", tmp_path, tmp_path / "d")


def test_traffic_signs_are_read_as_published(tmp_path: Path) -> None:
    root = "GTSRB/Final_Training/Images"
    files = {f"{root}/{i:05d}/00000_0000{frame}.ppm": shaded(i, "PPM") for i in range(43) for frame in range(2)}
    files |= {f"{root}/{i:05d}/GT-{i:05d}.csv": b"Filename;Width;Height\n" for i in range(43)}
    files["GTSRB/Readme-Images.txt"] = b"The German Traffic Sign Recognition Benchmark"
    source = write_zip(tmp_path / "GTSRB_Final_Training_Images.zip", files)
    collection = prepare("traffic_sign", source, tmp_path / "c", size=16, workers=1).collection
    assert collection.classes == [f"{index:05d}" for index in range(43)]
    assert set(collection.counts.tolist()) == {2}
    assert sizes(collection) == {"test": 43}
    assert collection.keys([1]) == ["00000/00000_00001.ppm"]
    assert_shades(collection, {"00017": 17})


def test_coco_is_read_as_published_and_cropped(tmp_path: Path) -> None:
    ids = [index + 1 + index // 9 for index in range(80)]  # with gaps, as COCO's
    names = [f"thing {80 - index}" for index in range(80)]  # not sorted, as COCO's
    files: dict[str, bytes] = {}
    annotations: list[dict[str, Any]] = []
    for index, category in enumerate(ids):
        image = Image.new("RGB", (100, 80), "white")
        image.paste(picture(*shade(index), size=(48, 36)), (26, 22))
        files[f"train2017/{category:012d}.jpg"] = encoded(image, quality=98)
        annotations.append(
            {"id": 900 + index, "image_id": category, "category_id": category, "iscrowd": index % 2}
        )
        annotations[-1]["bbox"] = [30.0, 25.0, 40.0, 30.0]
    annotations.append({"id": 1, "image_id": ids[0], "category_id": ids[0], "bbox": [500.0, 500.0, 10.0, 10.0]})
    content = {
        "images": [{"id": category, "file_name": f"{category:012d}.jpg"} for category in ids],
        "annotations": annotations,
        "categories": [{"id": category, "name": name} for category, name in zip(ids, names, strict=True)],
    }
    write_zip(tmp_path / "train2017.zip", files)
    label = {
        "annotations/instances_train2017.json": json.dumps(content).encode(),
        "annotations/captions.json": b"{}",
    }
    write_zip(tmp_path / "annotations_trainval2017.zip", label)
    collection = prepare("mscoco", tmp_path, tmp_path / "c", size=64, workers=1).collection
    assert collection.classes == names, "the order of the annotation file"
    assert sizes(collection) == {"valid": 40, "test": 40}
    assert [key for key, _ in collection.broken] == ["train2017/000000000001.jpg#1"]
    assert collection.keys([2]) == [f"train2017/{ids[2]:012d}.jpg#902"]
    assert_shades(collection, {names[3]: 3, names[79]: 79})


def test_a_box_of_coco_is_enlarged_about_its_centre() -> None:
    from cnaps.data.readers.annotated import enlarge

    left, top, right, bottom = enlarge([100.0, 200.0, 50.0, 30.0])
    assert abs((left + right) / 2 - 125) <= 1
    assert abs((top + bottom) / 2 - 215) <= 1
    assert abs((right - left) - 60) <= 1
    assert abs((bottom - top) - 36) <= 1


def cifar_batch(labels: list[int], key: bytes) -> bytes:
    rows = np.stack([np.repeat(np.array(shade(label), np.uint8), 1024) for label in labels])  # (N, 3072), planes
    return pickle.dumps(
        {b"data": rows, key: labels, b"batch_label": b"a batch", b"filenames": [b"x.png"]}, protocol=2
    )


def test_cifar10_is_read_as_published(tmp_path: Path) -> None:
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    root = "cifar-10-batches-py"
    files = {f"{root}/data_batch_{i}": cifar_batch(list(range(10)), b"labels") for i in range(1, 6)}
    files[f"{root}/test_batch"] = cifar_batch([3, 3, 4], b"labels")
    files[f"{root}/batches.meta"] = pickle.dumps({b"label_names": [name.encode() for name in names]}, protocol=2)
    files[f"{root}/readme.html"] = b"<html>"
    source = write_tar(tmp_path / "cifar-10-python.tar.gz", files, "w:gz")
    collection = prepare("cifar10", source, tmp_path / "c", workers=1).collection
    assert collection.classes == names
    assert collection.counts.tolist() == [5, 5, 5, 7, 6, 5, 5, 5, 5, 5]
    assert sizes(collection) == {"test": 10}
    assert_shades(collection, {"cat": 3, "truck": 9}, tolerance=1)
    assert collection.keys(collection.rows(3))[-1] == "test_batch/1"


def test_cifar100_is_read_as_published(tmp_path: Path) -> None:
    names = [f"thing_{index:02d}" for index in range(100)]
    root = "cifar-100-python"
    files = {f"{root}/{part}": cifar_batch(list(range(100)), b"fine_labels") for part in ("train", "test")}
    meta = {b"fine_label_names": [name.encode() for name in names], b"coarse_label_names": [b"things"]}
    files[f"{root}/meta"] = pickle.dumps(meta, protocol=2)
    source = write_files(tmp_path / "unpacked", files)
    collection = prepare("cifar100", source, tmp_path / "c", workers=1).collection
    assert collection.classes == names
    assert set(collection.counts.tolist()) == {2}
    assert_shades(collection, {"thing_77": 77}, tolerance=1)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, ("echo harm > harm.txt",)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "in", {"data_batch_1": pickle.dumps({b"data": Evil()}), "batches.meta": b""})
    (tmp_path / "in" / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"a"]}))
    with pytest.raises(DataError, match="no part of an array"):
        prepare("cifar10", tmp_path / "in", tmp_path / "c")
    assert not (tmp_path / "harm.txt").exists()


# ILSVRC with a small WordNet in the published format.

PARENTS = {
    "n00001740": ["n00015388", "n00021939"],  # entity: animal, artifact
    "n00015388": ["n02075296", "n01503061"],  # animal: carnivore, bird
    "n00021939": ["n03183080", "n03122748"],  # artifact: device, covering
    "n02075296": [f"n0208500{i}" for i in range(6)],
    "n01503061": [f"n0151800{i}" for i in range(5)],
    "n03183080": [f"n0270800{i}" for i in range(7)],
    "n03122748": [f"n0280700{i}" for i in range(5)],
}
LEAVES = sorted(leaf for node in list(PARENTS)[3:] for leaf in PARENTS[node])


def wordnet() -> dict[str, bytes]:
    edges = [f"{parent} {child}" for parent, below in PARENTS.items() for child in below]
    words = [f"{node}\tthing {node}, other name" for node in [*PARENTS, *LEAVES]]
    return {"wordnet.is_a.txt": "\n".join(edges).encode(), "words.txt": "\n".join(words).encode()}


def check_ilsvrc(collection: Collection) -> None:
    assert collection.classes == LEAVES
    assert sizes(collection) == {"train": 10, "valid": 6, "test": 7}
    assert collection.hierarchy is not None
    assert collection.hierarchy["kind"] == "wordnet"
    nodes = {name.split()[0]: found for name, found in collection.hierarchy["nodes"].items()}
    assert {len(nodes[node]) for node in ("n02075296", "n03183080", "n01503061")} == {5, 6, 7}
    assert_shades(collection, {leaf: index for index, leaf in enumerate(LEAVES)})


@pytest.mark.parametrize("layout", ["folders", "tar of tars", "tars"])
def test_ilsvrc_is_read_as_published(layout: str, tmp_path: Path) -> None:
    source = tmp_path / "ILSVRC2012_img_train"
    source.mkdir()
    write_files(source, wordnet())
    images = {leaf: {f"{leaf}_{i}.JPEG": shaded(index) for i in (10, 7)} for index, leaf in enumerate(LEAVES)}
    if layout == "folders":
        write_files(
            source, {f"{leaf}/{name}": content for leaf in LEAVES for name, content in images[leaf].items()}
        )
    else:
        for leaf in LEAVES:
            write_tar(source / f"{leaf}.tar", images[leaf])
    if layout == "tar of tars":
        inner = {path.name: path.read_bytes() for path in sorted(source.glob("*.tar"))}
        for path in source.glob("*.tar"):
            path.unlink()
        source = write_tar(source / "ILSVRC2012_img_train.tar", inner)  # WordNet's files lie beside it
    collection = prepare("ilsvrc_2012", source, tmp_path / "c", size=16, workers=1).collection
    check_ilsvrc(collection)
    assert collection.keys([0]) == [f"{LEAVES[0]}/{LEAVES[0]}_10.JPEG"]


def test_wordnet_may_lie_elsewhere_and_splits_other_images_of_imagenet_too(tmp_path: Path) -> None:
    write_files(tmp_path / "wordnet", wordnet())
    images = {f"{leaf}/{i}.JPEG": shaded(index) for index, leaf in enumerate(LEAVES) for i in (10, 7)}
    write_files(tmp_path / "in", images)
    options: dict[str, Any] = {"size": 16, "workers": 1, "wordnet": tmp_path / "wordnet"}
    check_ilsvrc(prepare("ilsvrc_2012", tmp_path / "in", tmp_path / "c", **options).collection)
    other = prepare("folder", tmp_path / "in", tmp_path / "tiny", splits="published", **options).collection
    assert sizes(other) == {"train": 10, "valid": 6, "test": 7}
    assert other.hierarchy is None  # whatever is no part of Meta-Dataset has no nodes to draw from


def test_duplicates_of_other_data_sets_are_left_out_of_ilsvrc(tmp_path: Path) -> None:
    files = {f"{leaf}/{leaf}_{i}.JPEG": shaded(0) for leaf in LEAVES for i in range(2)}
    listed = f"# a comment\n{LEAVES[0]}/{LEAVES[0]}_1.JPEG  # bird.jpg\n"
    write_files(tmp_path / "in", files | wordnet() | {"ImageNet_CUBirds_duplicates.txt": listed.encode()})
    collection = prepare("ilsvrc_2012", tmp_path / "in", tmp_path / "c", size=16, workers=1).collection
    assert collection.counts.tolist() == [1] + [2] * (len(LEAVES) - 1)


def test_ilsvrc_without_wordnet_needs_another_split(shared: Path, tmp_path: Path, command: Command) -> None:
    write_files(tmp_path / "in", {f"{leaf}/{leaf}_1.JPEG": shaded(0) for leaf in LEAVES})
    code, _, err = command("data", "prepare", "ilsvrc_2012", tmp_path / "in", tmp_path / "c")
    assert code == 2
    assert "wordnet.is_a.txt" in err
    options = ("--splits", "random", "--size", 16)
    assert command("data", "prepare", "ilsvrc_2012", tmp_path / "in", tmp_path / "c", *options)[0] == 0
    assert sum(sizes(Collection.open(tmp_path / "c")).values()) == len(LEAVES)


# Hugging Face.


def hf_table(labels: list[Any], names: list[str] | None) -> pa.Table:
    image = pa.array(
        [{"bytes": shaded(label if isinstance(label, int) else len(label)), "path": None} for label in labels],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    table = pa.table({"image": image, "label": pa.array(labels)})
    if names is None:
        return table
    label = {"_type": "ClassLabel", "names": names}
    info = {"info": {"features": {"image": {"_type": "Image"}, "label": label}}}
    return table.replace_schema_metadata({"huggingface": json.dumps(info)})


@pytest.mark.parametrize("kind", ["stream", "file", "parquet"])
def test_a_hugging_face_folder_is_read(kind: str, tmp_path: Path, command: Command) -> None:
    names = ["zebra", "ant", "bee"]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for part, labels in {"train": [0, 1, 2, 2], "test": [1, -1]}.items():
        folder = tmp_path / "in" / part
        folder.mkdir()
        (folder / "state.json").write_text("{}")
        table = hf_table(labels, names)
        if kind == "parquet":
            parquet.write_table(table, folder / "data.parquet")
            continue
        with pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink:
            writer = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
            with writer(sink, table.schema) as output:
                output.write_table(table)
    assert command("data", "prepare", "huggingface", tmp_path / "in", tmp_path / "mine")[0] == 0
    collection = Collection.open(tmp_path / "mine")
    assert collection.name == "mine"
    assert collection.classes == names
    assert collection.counts.tolist() == [1, 2, 2]
    assert_shades(collection, {"zebra": 0, "ant": 1, "bee": 2})


def test_hugging_face_labels_may_be_words(tmp_path: Path) -> None:
    parquet.write_table(hf_table(["bee", "ant", "bee"], None), tmp_path / "data.parquet")
    collection = prepare("huggingface", tmp_path, tmp_path / "c").collection
    assert (collection.classes, collection.counts.tolist()) == (["ant", "bee"], [1, 2])


def test_other_tables_are_refused(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"text": ["a"]}), tmp_path / "data.parquet")
    with pytest.raises(DataError, match="no columns of images"):
        prepare("huggingface", tmp_path, tmp_path / "c")
    (tmp_path / "data.parquet").write_bytes(b"PAR1 damaged")
    with pytest.raises(DataError, match="damaged"):
        prepare("huggingface", tmp_path, tmp_path / "c")
