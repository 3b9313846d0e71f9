"""Draws digits.png beside it: five examples of each digit, and what the default model says of 24 others."""

from pathlib import Path

import matplotlib
import numpy as np
from sklearn.datasets import load_digits

from cnaps import FewShotClassifier

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SHOTS, SHOWN = 5, 24
RIGHT, WRONG = "#1d6b45", "#c0392b"

digits = load_digits()
images, labels = digits.images / 16, digits.target
order = np.random.default_rng(0).permutation(len(labels))
examples = np.concatenate([order[labels[order] == digit][:SHOTS] for digit in range(10)])
others = order[~np.isin(order, examples)][:SHOWN]

classifier = FewShotClassifier().fit(images[examples], labels[examples])
probabilities = classifier.predict_proba(images[others])

figure = plt.figure(figsize=(10, 2.7), facecolor="white")
left, right = figure.subfigures(1, 2, width_ratios=(1, 1))
left.suptitle(f"{SHOTS} examples of each class", fontsize=11)
right.suptitle(f"what the model says of {SHOWN} others", fontsize=11)
for axis, i in zip(left.subplots(SHOTS, 10).T.flat, examples, strict=True):
    axis.imshow(images[i], cmap="gray", interpolation="bilinear")
    axis.axis("off")
for axis, i, p in zip(right.subplots(3, SHOWN // 3).flat, others, probabilities, strict=True):
    axis.imshow(images[i], cmap="gray", interpolation="bilinear")
    colour = RIGHT if p.argmax() == labels[i] else WRONG
    axis.set_title(f"{p.argmax()}  {p.max():.0%}", fontsize=8, color=colour, pad=1)
    axis.axis("off")
left.subplots_adjust(0.02, 0.03, 0.94, 0.87, wspace=0.08, hspace=0.08)
right.subplots_adjust(0.04, 0.02, 0.99, 0.81, wspace=0.1, hspace=0.4)
figure.savefig(Path(__file__).with_suffix(".png"), dpi=140)
right_ones = (probabilities.argmax(1) == labels[others]).sum()
print(f"{right_ones} of {SHOWN} are right")
