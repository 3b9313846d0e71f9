"""The calibration temperature: what logits are divided by, so that probabilities mean what they say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

# By tools/compare_temperatures.py on tasks of domains that training never saw.
_DOUBT = 3.0  # how strongly a task is held to what the model says of all tasks: as by about as many examples
_FEWER = 0.2  # examples were judged by one less, so log T is too high: by this, divided by the examples of a class
_WIDEST = 1.2  # of what a task adds to log T


def temperature(notes: Mapping[str, Any], ways: int, shots: float) -> float:
    """T of tasks like this by a model's notes: log T = a + b log(ways) + c log(shots), `"calibration": [a, b, c]`.

    >>> temperature({"calibration": [0, 1, 0]}, ways=5, shots=2)
    5.0
    """
    a, b, c = notes.get("calibration", (0.0, 0.0, 0.0))
    return round(math.exp(a + b * math.log(ways) + c * math.log(max(shots, 1.0))), 9)


def own_calibration(logits: np.ndarray, labels: np.ndarray) -> float:
    """What a task adds to log T: its left-out examples are likeliest there; held back where they are few.

    Logits (N, C) of each example by a classifier of the others, divided by the T that the model says; rows of NaN
    stand for examples that could not be left out.

    >>> sure_and_wrong = np.array([[9.0, 0.0], [9.0, 0.0]] * 9), np.array([0, 1] * 9)
    >>> own_calibration(*sure_and_wrong) > 0.5, own_calibration(np.full((2, 2), np.nan), np.array([0, 1]))
    (True, 0.0)
    """
    known, shots = np.isfinite(logits).all(1), len(logits) / logits.shape[1]
    logits, labels = logits[known], labels[known]
    if not len(labels):
        return 0.0

    def cost(more: float) -> float:
        scaled = logits / math.exp(more)
        right = scaled[np.arange(len(labels)), labels]
        return float((np.logaddexp.reduce(scaled, axis=1) - right).sum()) + _DOUBT * more**2

    low, high = -_WIDEST, _WIDEST
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(30):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if cost(left) < cost(right) else (left, high)
    return (low + high) / 2 - _FEWER / shots
