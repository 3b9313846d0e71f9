"""Which images to label next."""

from __future__ import annotations

import numpy as np
import pytest

from cnaps.errors import InputError
from cnaps.runtime.suggest import STRATEGIES, choose, uncertainty

SURE, TORN, LEANING = [0.98, 0.01, 0.01], [0.48, 0.5, 0.02], [0.6, 0.2, 0.2]
ROWS = np.array([SURE, TORN, LEANING])


@pytest.mark.parametrize("strategy", ["entropy", "margin", "variation-ratio"])
def test_a_sure_image_is_asked_for_last(strategy: str) -> None:
    assert choose(ROWS, np.eye(3), 3, strategy)[-1] == 0


def test_margin_asks_for_the_torn_and_entropy_for_the_spread() -> None:
    assert choose(ROWS, np.eye(3), 1, "margin") == [1]
    assert choose(ROWS, np.eye(3), 1, "entropy") == [2]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_doubt_is_within_nought_and_one(strategy: str) -> None:
    rows = np.random.default_rng(0).dirichlet(np.ones(5), 50)
    rows[0] = [1, 0, 0, 0, 0]
    scores = uncertainty(rows, strategy)
    assert scores.shape == (50,)
    assert (scores >= 0).all()
    assert (scores <= 1).all()


def test_uniform_probabilities_are_all_doubt() -> None:
    assert uncertainty(np.full((1, 7), 1 / 7))[0] == pytest.approx(1)


def test_a_batch_holds_no_near_duplicates_while_there_is_something_else() -> None:
    rng = np.random.default_rng(1)
    kinds = rng.normal(size=(5, 40))
    features = np.repeat(kinds, 10, axis=0) + rng.normal(scale=0.01, size=(50, 40))
    probabilities = rng.dirichlet(np.full(4, 5.0), 50)
    assert len({i // 10 for i in choose(probabilities, features, 5)}) == 5
    assert len({i // 10 for i in choose(probabilities, features, 5, "entropy")}) < 5


def test_images_that_differ_as_usual_are_asked_for_by_doubt_alone() -> None:
    rng = np.random.default_rng(2)
    probabilities = rng.dirichlet(np.ones(4), 50)
    features = rng.normal(size=(50, 2000))  # all about as far from each other
    assert choose(probabilities, features, 9) == choose(probabilities, features, 9, "margin")


def test_no_image_is_proposed_twice_even_among_equals() -> None:
    chosen = choose(np.full((6, 2), 0.5), np.ones((6, 3)), 10)
    assert sorted(chosen) == list(range(6))


def test_random_choice_repeats_with_its_seed() -> None:
    many = np.full((100, 2), 0.5)
    assert choose(many, many, 9, "random", seed=3) == choose(many, many, 9, "random", seed=3)
    assert choose(many, many, 9, "random", seed=3) != choose(many, many, 9, "random", seed=4)


def test_an_unknown_strategy_is_named_with_those_there_are() -> None:
    with pytest.raises(InputError, match=r"'best'.*entropy"):
        choose(ROWS, np.eye(3), 1, "best")
