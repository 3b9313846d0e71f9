"""Draws photographs.png beside it: what `cnaps demo` learns from details of two photographs, and says.

The photographs come with scikit-learn (CC BY 2.0): china.jpg by Daniel Büchele, flower.jpg by vultilion.
"""

import tempfile
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image

from cnaps import FewShotClassifier
from cnaps.demo import write_photographs
from cnaps.images.finding import find_examples
from cnaps.runtime.novelty import NONE

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SHOWN = 18
RIGHT, WRONG = "#1d6b45", "#c0392b"

with tempfile.TemporaryDirectory() as folder:
    write_photographs(Path(folder) / "photographs")
    examples = find_examples(Path(folder) / "photographs/examples")
    images = find_examples(Path(folder) / "photographs/images")
    order = np.random.default_rng(3).permutation(len(images))[:SHOWN]
    images = [images[i] for i in order]
    classifier = FewShotClassifier().fit([path for path, _ in examples], [label for _, label in examples])
    paths = [path for path, _ in images]
    probabilities, novelty = classifier.predict_proba(paths), classifier.novelty(paths)
    seen = [(np.asarray(Image.open(path)), label) for path, label in examples]
    asked = [(np.asarray(Image.open(path)), label) for path, label in images]

names = list(dict.fromkeys(label for _, label in examples))
figure = plt.figure(figsize=(11, 3.6), facecolor="white")
left, right = figure.subfigures(1, 2, width_ratios=(1, 1.35))
left.suptitle("you show a few of each", fontsize=12)
right.suptitle("it says what the others are", fontsize=12)
for row, name in zip(left.subplots(len(names), 5), names, strict=True):
    for axis, (image, _) in zip(row, [each for each in seen if each[1] == name], strict=True):
        axis.imshow(image)
        axis.axis("off")
    row[0].text(-0.12, 0.5, name.replace(" and ", "\nand "), transform=row[0].transAxes, ha="right", va="center")
correct = 0
for axis, (image, label), p, new in zip(right.subplots(3, 6).flat, asked, probabilities, novelty, strict=True):
    stranger = new > classifier.novelty_threshold_
    answer = NONE if stranger else classifier.classes_[p.argmax()]
    correct += answer == label
    axis.imshow(image)
    axis.set_title(answer if stranger else f"{answer} {min(p.max(), 0.99):.0%}", fontsize=8, pad=2,
                   color=RIGHT if answer == label else WRONG)  # fmt: skip
    axis.axis("off")
left.subplots_adjust(0.2, 0.02, 0.97, 0.88, wspace=0.06, hspace=0.06)
right.subplots_adjust(0.03, 0.02, 0.99, 0.83, wspace=0.08, hspace=0.28)
picture = Path(__file__).with_suffix(".png")
figure.savefig(picture, dpi=110)
Image.open(picture).convert("RGB").quantize(255).save(picture, optimize=True)  # a third of the size
print(f"{correct} of {SHOWN} are right")
