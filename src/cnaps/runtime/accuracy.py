"""How many answers are right, where the truth is known: a share with its interval, and what was taken for what."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

_MATRIX = 12  # classes that fit a terminal; beyond it the commonest mistakes are listed instead
_CELL, _LINE = 14, 80  # characters of a column at most; of all columns, where few classes leave room


_Z = NormalDist().inv_cdf(0.975)  # of intervals that hold with 95% confidence


def wilson(correct: int, total: int) -> tuple[float, float]:
    """A 95% interval for a share of successes that stays sensible for small numbers.

    >>> [round(x, 2) for x in wilson(9, 10)]
    [0.6, 0.98]
    """
    if total == 0:
        return 0.0, 1.0
    share, z2 = correct / total, _Z * _Z / total
    middle, half = share + z2 / 2, _Z * math.sqrt(share * (1 - share) / total + z2 / (4 * total))
    return max(0.0, (middle - half) / (1 + z2)), min(1.0, (middle + half) / (1 + z2))


def share_of(correct: int, total: int) -> dict[str, float]:
    """A share of right answers as pages get it: how many of how many, and its interval."""
    low, high = wilson(correct, total)
    return {"correct": correct, "total": total, "low": low, "high": high}


@dataclass(frozen=True)
class Accuracy:
    """Counts of pairs (true class, answer) and what follows from them."""

    counts: Counter[tuple[str, str]]

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> Accuracy:
        """From the true class and the answer of each image.

        >>> str(Accuracy.of([("cat", "cat"), ("cat", "dog"), ("dog", "dog")]))
        '2 of 3 right: 66.7% (between 20.8% and 93.9%, at 95% confidence)'
        """
        return cls(Counter(pairs))

    @property
    def total(self) -> int:
        """Images whose true class is known."""
        return self.counts.total()

    @property
    def correct(self) -> int:
        """Those of them that were answered right."""
        return sum(count for (truth, answer), count in self.counts.items() if truth == answer)

    @property
    def names(self) -> list[str]:
        """Every class that is a truth or an answer, sorted."""
        return sorted({name for pair in self.counts for name in pair})

    def mistakes(self) -> list[tuple[str, str, int]]:
        """True class, answer and how often, the commonest first."""
        wrong = [(*pair, count) for pair, count in self.counts.items() if pair[0] != pair[1]]
        return sorted(wrong, key=lambda each: (-each[2], each[0], each[1]))

    def __str__(self) -> str:
        low, high = wilson(self.correct, self.total)
        share = self.correct / max(self.total, 1)
        return (
            f"{self.correct:,} of {self.total:,} right: {share:.1%} "
            f"(between {low:.1%} and {high:.1%}, at 95% confidence)"
        )

    def table(self) -> list[str]:
        """The confusion matrix as lines of text, or the commonest mistakes where there are too many classes.

        >>> print("\\n".join(Accuracy.of([("cat", "cat"), ("cat", "dog"), ("dog", "dog")]).table()))
        true \\ answer  cat  dog
        cat              1    1
        dog              .    1
        """
        names = self.names
        if len(names) > _MATRIX:
            return [
                f"{count:5,} x  {truth}  taken for  {answer}" for truth, answer, count in self.mistakes()[:_MATRIX]
            ]
        widest = max(_CELL, _LINE // max(len(names), 1))
        widths = [max(min(len(name), widest), 3) for name in names]
        corner = "true \\ answer"
        left = max(len(corner), max(map(len, names), default=0))
        heading = "".join(f"  {_short(name, width):>{width}}" for name, width in zip(names, widths, strict=True))
        lines = [f"{corner:{left}}{heading}"]
        for truth in names:
            row = [self.counts[truth, answer] for answer in names]
            if any(row):
                cells = (f"  {count or '.':>{width}}" for count, width in zip(row, widths, strict=True))
                lines.append(f"{truth:{left}}{''.join(cells)}")
        return lines


def _short(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"
