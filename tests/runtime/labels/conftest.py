"""Handwritten digits, and the model that ships, having learned some of them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from cnaps import FewShotClassifier

Digits = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="session")
def digits() -> Digits:
    """Images uint8 (1797, 8, 8) and labels."""
    data = load_digits()
    return (data.images * 255 / 16).astype(np.uint8), data.target


@pytest.fixture(scope="session")
def context(digits: Digits) -> Digits:
    """Six examples of each digit below five."""
    images, labels = digits
    chosen = np.concatenate([np.flatnonzero(labels == k)[:6] for k in range(5)])
    return images[chosen], labels[chosen]


@pytest.fixture(scope="session")
def pool(digits: Digits) -> Digits:
    """Six others of each digit, mixed."""
    images, labels = digits
    chosen = np.concatenate([np.flatnonzero(labels == k)[20:26] for k in range(10)])
    chosen = np.random.default_rng(0).permutation(chosen)
    return images[chosen], labels[chosen]


@pytest.fixture(scope="session")
def learned(context: Digits) -> FewShotClassifier:
    return FewShotClassifier().fit(*context)
