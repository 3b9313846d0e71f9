"""The curves of a run as a picture."""

from __future__ import annotations

import json
from pathlib import Path

from cnaps.files import atomic_path


def draw_curves(run: Path) -> None:
    """Draw loss, accuracy and validation accuracy a set into ``curves.png``."""
    import numpy as np
    from matplotlib.figure import Figure  # without pyplot: no backend, no window, no global state

    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines if line]
    steps = [r for r in records if r["kind"] == "step"]
    validations = [r for r in records if r["kind"] == "validation"]
    if not steps:
        return
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    axes = figure.subplots(1, 3)
    x = np.array([r["step"] for r in steps])
    width = max(1, len(steps) // 50)
    kernel = np.ones(width) / width
    for axis, key in zip(axes[:2], ("loss", "accuracy"), strict=True):
        y = np.array([r[key] for r in steps])
        axis.plot(x, y, color="tab:blue", alpha=0.3, linewidth=0.8)
        axis.plot(x[width - 1 :], np.convolve(y, kernel, mode="valid"), color="tab:blue")
        axis.set(title=f"training {key}", xlabel="step")
        axis.grid(alpha=0.3)
    for name in validations[0]["sets"] if validations else ():
        axes[2].plot([r["step"] for r in validations], [r["sets"][name] for r in validations], ".-", label=name)
    axes[2].set(title="validation accuracy", xlabel="step")
    axes[2].grid(alpha=0.3)
    if validations:
        axes[2].legend(fontsize="x-small")
    with atomic_path(run / "curves.png") as temporary:
        figure.savefig(temporary, format="png", dpi=110)
