"""Budgets and curves of the trainings behind `make paper`, beside the scores of its models.

    python tools/paper_runs.py out/paper/paper.json runs/paper/theta runs/paper/film+ar ...

adds them to the result's file, so that the page shows what each model was given and how it learned.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from cnaps.files import write_text
from cnaps.paper.experiments.comparison import comparison_report
from cnaps.paper.experiments.reporting import Report, Table, new_figure, style

POINTS = 40  # of a curve: each is the mean over as many steps


def read_run(folder: Path) -> dict[str, Any]:
    """What a run was given, how long it took, and its curves."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [record for record in records if record["kind"] == "step"]
    parts = np.array_split(np.arange(len(steps)), min(POINTS, len(steps)))
    curves = {
        "step": [steps[part[-1]]["step"] for part in parts],
        **{
            key: [round(float(np.mean([steps[i][key] for i in part])), 4) for part in parts]
            for key in ("loss", "accuracy")
        },
    }
    validations = [record for record in records if record["kind"] == "validation"]
    return {
        "budget": _budget(config, len(steps)),
        "minutes": round(sum(record["seconds"] for record in records if "seconds" in record) / 60),
        "curves": curves,
        "validation": [[record["step"], round(record["accuracy"], 4)] for record in validations],
    }


def _budget(config: dict[str, Any], steps: int) -> dict[str, Any]:
    if "epochs" in config:  # of theta
        size, rate = config["image_size"], config["learning_rate"]
        return {
            "trained on": f"{config['epochs']} epochs of images of {size} pixels",
            "steps": steps,
            "rate": rate,
        }
    tasks, rate = config["tasks"], config["optimiser"]["learning_rate"]
    largest = f"at most {tasks['max_ways']} ways and {tasks['max_context']} context images"
    return {"trained on": f"{tasks['total']:,} tasks of {largest}", "steps": steps, "rate": rate}


def paper_report(data: dict[str, Any]) -> Report:
    """The comparison of the models, and beside it what each was given and how it learned."""
    report = comparison_report(data)
    table = Table(
        "What each training was given, and its best accuracy in validation (%)",
        ["training", "trained on", "steps", "rate", "best validation", "minutes of a core"],
    )
    for name, run in data["trainings"].items():
        best = max((found for _, found in run["validation"]), default=None)
        shown = "" if best is None else f"{100 * best:.1f}"
        table.rows.append([name, *run["budget"].values(), shown, run["minutes"]])
    figure = new_figure(11, 7)
    for part, axes in zip(("theta", "phi"), figure.subplots(2, 2), strict=True):
        mine = {
            name: run for name, run in data["trainings"].items() if name.startswith("theta") == (part == "theta")
        }
        for i, (name, run) in enumerate(mine.items()):
            last, look = run["curves"]["step"][-1], style(i) | {"markersize": 3, "label": name}
            axes[0].plot([step / last for step in run["curves"]["step"]], run["curves"]["loss"], **look)
            done = [step / last for step, _ in run["validation"]]
            axes[1].plot(done, [100 * found for _, found in run["validation"]], **look)
        axes[0].set(title=f"{part}: loss in training", ylabel="cross-entropy", yscale="log")
        axes[1].set(title=f"{part}: validation", ylabel="accuracy in percent", xlim=axes[0].get_xlim())
        for axis in axes:
            axis.set(xlabel="share of the training")
            axis.grid(alpha=0.3)
        axes[0].legend(fontsize="x-small")
    report.tables["trainings"], report.pictures["trainings"] = table, figure
    return report


def main(result: str, *runs: str) -> None:
    """Add the trainings to a result's file."""
    path = Path(result)
    data = json.loads(path.read_text(encoding="utf-8"))
    data["trainings"] = {Path(run).name: read_run(Path(run)) for run in runs}
    data["made"]["command"] = "make paper"
    write_text(path, json.dumps(data) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
