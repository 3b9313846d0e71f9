"""`make demo`: real handwritten digits, five examples of each, everything else classified."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from cnaps.files import atomic_folder
from cnaps.images.finding import images_below
from cnaps.progress import track
from cnaps.runtime.engine import open_engine
from cnaps.runtime.report import write_report
from cnaps.runtime.results import Result, write_results
from cnaps.runtime.task import Examples, FittedTask
from cnaps.runtime.taskfile import write_task
from cnaps.weights import DEFAULT_MODEL

SHOTS = 5


def main(folder: Path = Path("out/demo")) -> None:
    """Draw the examples, classify the rest, compare with a linear probe, write the report, say what is next."""
    started = time.perf_counter()
    examples, images = _write_digits(folder / "digits")
    truth = [path.stem.split("-")[0] for path in images]
    print(f"{len({label for _, label in examples})} classes of digits, {SHOTS} examples each, in {folder}/digits")

    network = open_engine(DEFAULT_MODEL)
    learned = Examples.read([path for path, _ in examples], [label for _, label in examples], network.image_size)
    ready = time.perf_counter()
    fitted = FittedTask.learn(network, learned)
    print(f"learned in {time.perf_counter() - ready:.2f} s, without a gradient step")

    rest = Examples.read(images, truth, network.image_size)
    frozen = network.frozen()
    probe = LogisticRegression(C=10, max_iter=1000).fit(frozen(learned.pixels), learned.names)
    results: list[Result] = []
    right = probe_right = 0
    for start in track(range(0, len(images), 64), f"classifying {len(images):,} others"):
        part = slice(start, start + 64)
        pixels, names = rest.pixels[part], rest.names[part]
        probabilities = fitted.probabilities(fitted.features(pixels))
        found = [
            Result.of(str(path), fitted.names, p, 3) for path, p in zip(images[part], probabilities, strict=True)
        ]
        right += sum(result.label == name for result, name in zip(found, names, strict=True))
        probe_right += int((probe.predict(frozen(pixels)) == np.array(names)).sum())
        results += found

    write_report(folder / "report.html", results, [], examples, title=f"{len(images):,} handwritten digits")
    write_results(folder / "results.csv", results, [])
    write_task(folder / "digits.task", fitted)
    print(f"accuracy on the {len(images):,} others: {right / len(images):.1%} (cnaps), ", end="")
    print(f"{probe_right / len(images):.1%} (a linear probe on the same frozen network)")
    print(f"took {time.perf_counter() - started:.0f} s in all")
    print(_NEXT.format(folder=folder))


_NEXT = """
Look at {folder}/report.html: the least certain first.

Then try your own images, with a folder for each class and a few images in each:
  cnaps classify EXAMPLES IMAGES --report report.html
or use what was just learned:
  cnaps predict {folder}/digits.task {folder}/digits/images
  cnaps export {folder}/digits.task digits.onnx"""


def _write_digits(folder: Path) -> tuple[list[tuple[Path, str]], list[Path]]:
    """Examples as folders of classes, all other images side by side, as a person would have them."""
    digits = load_digits()
    chosen = np.random.default_rng(0)
    examples: list[tuple[Path, str]] = []
    images: list[Path] = []
    if folder.is_dir():  # of an earlier demo: the same ones
        examples = [(path, path.parent.name) for path in images_below(folder / "examples")]
        return examples, images_below(folder / "images")
    with atomic_folder(folder, ()) as temporary:
        for digit in range(10):
            members = chosen.permutation(np.flatnonzero(digits.target == digit))
            for place, index in enumerate(members.tolist()):
                inside = Path("examples", str(digit)) if place < SHOTS else Path("images")
                name = inside / f"{digit}-{index:04d}.png"
                (temporary / inside).mkdir(parents=True, exist_ok=True)
                Image.fromarray((digits.images[index] * 255 / 16).astype(np.uint8)).save(temporary / name)
                if place < SHOTS:
                    examples.append((folder / name, str(digit)))
                else:
                    images.append(folder / name)
    return examples, images


if __name__ == "__main__":
    main()
