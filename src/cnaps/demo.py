"""`cnaps demo`: a tour of the commands on photographs and handwritten digits that come with scikit-learn."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import typer
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_digits, load_sample_images
from sklearn.linear_model import LogisticRegression

from cnaps.errors import InputError
from cnaps.files import atomic_folder
from cnaps.images.finding import find_examples
from cnaps.runtime.novelty import NONE

SHOTS = 5
# Where in the two photographs a class is to be seen: left, top, right, bottom. Leaves are of no class.
DETAILS = {
    "pagoda": ("china.jpg", (70, 60, 350, 340)),
    "trees": ("china.jpg", (330, 285, 640, 427)),
    "lake and sky": ("china.jpg", (335, 110, 550, 285)),
    "dahlia": ("flower.jpg", (165, 80, 450, 365)),
    NONE: ("flower.jpg", (0, 40, 165, 427)),
}
_OWN = re.compile(
    r"(photographs|digits)/(examples|images)/[\w ]+/[\w -]+\.(jpg|png)|digits\.(csv|html|task)|photographs\.html"
)
_CROPS = 12  # images to classify, of each class


def main(folder: Path = Path("cnaps-demo")) -> None:
    """Write images to a folder, run the commands that a person would type, and say what is next."""
    started = time.perf_counter()
    _check_own(folder)
    photographs, digits = folder / "photographs", folder / "digits"
    _say("1. Details of two photographs: four classes, five examples of each, and leaves that are none of them")
    write_photographs(photographs)
    report = folder / "photographs.html"
    _run("classify", photographs / "examples", photographs / "images", "--none-of-these", "--report", report)

    _say("2. Handwritten digits: five examples of each are read once, without a gradient step, for 1,747 others")
    write_digits(digits)
    task, table, report = folder / "digits.task", folder / "digits.csv", folder / "digits.html"
    _run("classify", digits / "examples", digits / "images", "--report", report, "--out", table, "--save", task)
    right = _linear_probe(digits / "examples", digits / "images")
    typer.echo(f"For comparison, logistic regression on the same network without adaptation: {right:.1%} right")

    _say(f"That took {time.perf_counter() - started:.0f} s. Look at {report} and {folder / 'photographs.html'}")
    typer.echo(_NEXT.format(task=task, images=digits / "images"))


_NEXT = """
Then try your own images, with a folder for each class and a few images in each:
  cnaps classify EXAMPLES IMAGES --report report.html
the same in the browser:
  cnaps studio
or what was just learned:
  cnaps predict {task} {images}
  cnaps export {task} digits.onnx"""


def write_photographs(folder: Path) -> None:
    """Details of scikit-learn's two sample photographs in folders of classes: examples and images to classify."""
    found = load_sample_images()
    pictures = {Path(name).name: image for name, image in zip(found.filenames, found.images, strict=True)}
    if folder.is_dir():  # of an earlier tour
        return
    with atomic_folder(folder, ()) as temporary:
        for k, (label, (name, region)) in enumerate(DETAILS.items()):
            squares = details(Image.fromarray(pictures[name]), region, np.random.default_rng(k))
            for i in range(_CROPS if label == NONE else SHOTS + _CROPS):
                place = temporary / ("examples" if label != NONE and i < SHOTS else "images") / label
                place.mkdir(parents=True, exist_ok=True)
                next(squares).save(place / f"{label}-{i:02d}.jpg", quality=90)


def details(
    picture: Image.Image, region: tuple[int, int, int, int], chance: np.random.Generator
) -> Iterator[Image.Image]:
    """Squares of the region of any size, place and light, some of them mirrored: as if taken on different days."""
    left, top, right, bottom = region
    while True:
        side = int(chance.uniform(0.55, 0.95) * min(right - left, bottom - top))
        x, y = int(chance.integers(left, right - side + 1)), int(chance.integers(top, bottom - side + 1))
        detail = picture.crop((x, y, x + side, y + side)).resize((256, 256), Image.Resampling.BICUBIC)
        detail = ImageEnhance.Brightness(detail).enhance(chance.uniform(0.65, 1.1))
        detail = ImageEnhance.Color(detail).enhance(chance.uniform(0.6, 1.2))
        yield ImageOps.mirror(detail) if chance.random() < 0.5 else detail


def write_digits(folder: Path) -> None:
    """Scikit-learn's digits as folders of classes: five examples of each, and all others to classify."""
    digits = load_digits()
    chosen = np.random.default_rng(0)
    if folder.is_dir():  # of an earlier tour
        return
    with atomic_folder(folder, ()) as temporary:
        for digit in range(10):
            members = chosen.permutation(np.flatnonzero(digits.target == digit))
            for place, index in enumerate(members.tolist()):
                inside = temporary / ("examples" if place < SHOTS else "images") / str(digit)
                inside.mkdir(parents=True, exist_ok=True)
                picture = Image.fromarray((digits.images[index] * 255 / 16).astype(np.uint8))
                picture.save(inside / f"{digit}-{index:04d}.png")


def _linear_probe(examples: Path, images: Path) -> float:
    """The share that logistic regression on features of the network without adaptation gets right."""
    seen, asked = find_examples(examples), find_examples(images)
    probe = LogisticRegression(C=1000.0, max_iter=1000)  # the strength that was best on validation tasks
    probe.fit(_frozen_features([path for path, _ in seen]), [label for _, label in seen])
    return float(probe.score(_frozen_features([path for path, _ in asked]), [label for _, label in asked]))


def _frozen_features(paths: list[Path]) -> np.ndarray:
    """Features (n, d) of unit length of the default model's backbone, which has seen no example."""
    from cnaps.images.inputs import stream
    from cnaps.runtime.engine import open_engine
    from cnaps.weights import DEFAULT_MODEL

    engine = open_engine(DEFAULT_MODEL)
    network = engine.frozen()
    return np.concatenate([network(pixels) for _, pixels in stream(paths, engine.image_size)])


def _run(*words: object) -> None:
    """A command as a person would type it, and what it says."""
    from cnaps.cli import app

    command = [str(word) for word in words]
    typer.secho(f"$ cnaps {shlex.join(command)}", fg="cyan")
    app(args=command, standalone_mode=False)


def _check_own(folder: Path) -> None:
    """The tour replaces its own files and no others."""
    for path in folder.rglob("*"):
        if not path.is_dir() and not _OWN.fullmatch(path.relative_to(folder).as_posix()):
            raise InputError(f"{path} is no file of the tour: name another folder, such as {folder}-tour")


def _say(text: str) -> None:
    typer.secho(f"\n{text}\n", bold=True)


if __name__ == "__main__":
    main(Path("out/demo"))
