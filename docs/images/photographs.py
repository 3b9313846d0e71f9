"""Draws photographs.png beside it: what is learned from details of photographs, and said of other details.

They come with scikit-learn and with scikit-image, which only this drawing needs: china.jpg by Daniel Büchele and
flower.jpg by vultilion (CC BY 2.0); the cat by Stefan van der Walt and the coffee by Rachel Michetti (CC0); the
rocket by SpaceX and the astronaut by NASA (public domain).
"""

from itertools import islice
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image
from skimage import data
from sklearn.datasets import load_sample_images

from cnaps import FewShotClassifier
from cnaps.demo import DETAILS, details
from cnaps.runtime.novelty import NONE

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SHOTS, SHOWN = 4, 15
RIGHT, WRONG = "#1d6b45", "#c0392b"

samples = load_sample_images()
named = {Path(name).name: picture for name, picture in zip(samples.filenames, samples.images, strict=True)}
PHOTOGRAPHS = [  # what it is, the photograph, and where in it: left, top, right, bottom
    ("cat", data.chelsea(), (0, 0, 451, 300)),
    ("coffee", data.coffee(), (50, 0, 500, 400)),
    *((label, named[DETAILS[label][0]], DETAILS[label][1]) for label in ("dahlia", "pagoda")),
    (NONE, data.rocket(), (180, 60, 520, 427)),
    (NONE, data.astronaut(), (60, 0, 512, 512)),
]
seen, asked = [], []
for k, (label, picture, region) in enumerate(PHOTOGRAPHS):
    drawn = details(Image.fromarray(picture), region, np.random.default_rng(k))
    if label != NONE:
        seen += [(np.asarray(image), label) for image in islice(drawn, SHOTS)]
    asked += [(np.asarray(image), label) for image in islice(drawn, 3 if label != NONE else 2)]
asked = [asked[i] for i in np.random.default_rng(0).permutation(len(asked))[:SHOWN]]
classifier = FewShotClassifier().fit([image for image, _ in seen], [label for _, label in seen])
pictures = [image for image, _ in asked]
probabilities, novelty = classifier.predict_proba(pictures), classifier.novelty(pictures)

names = list(dict.fromkeys(label for _, label in seen))
figure = plt.figure(figsize=(11, 4), facecolor="white")
left, right = figure.subfigures(1, 2, width_ratios=(1, 1.2))
left.suptitle("you show a few of each", fontsize=12)
right.suptitle("it says what the others are", fontsize=12)
for row, name in zip(left.subplots(len(names), SHOTS), names, strict=True):
    for axis, (image, _) in zip(row, [each for each in seen if each[1] == name], strict=True):
        axis.imshow(image)
        axis.axis("off")
    row[0].text(-0.12, 0.5, name, transform=row[0].transAxes, ha="right", va="center")
correct = 0
for axis, (image, label), p, new in zip(right.subplots(3, 5).flat, asked, probabilities, novelty, strict=True):
    stranger = new > classifier.novelty_threshold_
    answer = NONE if stranger else classifier.classes_[p.argmax()]
    correct += answer == label
    axis.imshow(image)
    axis.set_title(answer if stranger else f"{answer} {min(p.max(), 0.99):.0%}", fontsize=10, pad=3,
                   color=RIGHT if answer == label else WRONG)  # fmt: skip
    axis.axis("off")
left.subplots_adjust(0.2, 0.02, 0.97, 0.88, wspace=0.06, hspace=0.06)
right.subplots_adjust(0.03, 0.02, 0.99, 0.83, wspace=0.08, hspace=0.28)
picture = Path(__file__).with_suffix(".png")
figure.savefig(picture, dpi=110)
Image.open(picture).convert("RGB").quantize(255).save(picture, optimize=True)  # a third of the size
print(f"{correct} of {SHOWN} are right")
