"""The figure of accuracy against shots, ways and imbalance."""

from __future__ import annotations

from typing import Any

from cnaps.paper.experiments.scores import BINS, Score, Scores
from cnaps.paper.experiments.sizes import DRAWN, sizes_report


def measured(**tasks: int) -> dict[str, Any]:
    """Two data sets along shots, with so many tasks of each method."""
    scores = [
        Score(f"{who} shots {shots}", name, i, 0, 0, 0.5 + 0.1 * (i % 2), [], [[0.0] * BINS] * 3, 0.1)
        for who, count in tasks.items()
        for shots in (1, 2)
        for name in ("one", "other")
        for i in range(count)
    ]
    facts = {"learners": list(tasks), "points": {"shots": [1, 2]}, "used": {"shots": {"one": 2, "other": 2}}}
    return {**facts, "unseen": [], "scores": Scores.of(scores).to_json()}


def test_a_line_of_few_tasks_is_in_the_table_and_not_in_the_figure() -> None:
    report = sizes_report(measured(cnaps=25, quick=DRAWN, slow=DRAWN - 1))
    assert {line.get_label() for line in report.pictures["sizes"].axes[0].containers} == {"cnaps", "quick"}
    assert list(report.tables["sizes"].columns)[-1] == "slow"
    assert all(row[-1] for row in report.tables["sizes"].rows)
    assert "in the table alone: slow." in report.text[-1]


def test_where_no_line_has_more_all_are_drawn() -> None:
    report = sizes_report(measured(cnaps=2, quick=2))
    assert len(report.pictures["sizes"].axes[0].containers) == 2
    assert "2 tasks of each" in report.text[-1]
