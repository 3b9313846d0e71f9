"""Which rate was best for each method, from the runs of `make grid`: `python tools/grid.py RUNS GRID.json`.

A run lies in METHOD/RATE; its accuracy is that of its last validation, on domains that training has not seen.
Beside the figures rates.mk is written, from which `make comparison` takes the best ones.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from cnaps.files import write_json, write_text
from cnaps.paper.experiments.reporting import provenance


def collect(runs: Path) -> dict[str, Any]:
    """For each method the accuracy at each rate, by validation set, and the best rate."""
    found: dict[str, Any] = {}
    for path in sorted(runs.glob("*/*/metrics.jsonl")):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        validations = [line for line in lines if line.get("kind") == "validation"]
        if validations:
            last = validations[-1]
            rates = found.setdefault(path.parts[-3], {"rates": {}})["rates"]
            rates[path.parts[-2]] = {"accuracy": last["accuracy"], "sets": last["sets"], "step": last["step"]}
    for method in found.values():
        method["best"] = max(method["rates"], key=lambda rate: method["rates"][rate]["accuracy"])
    return found


if __name__ == "__main__":
    folder, out = map(Path, sys.argv[1:3])
    table = collect(folder)
    write_json(out, {"methods": table, "made": provenance() | {"command": "make grid"}})
    rates = [f"RATE_{name} := {method['best']}\n" for name, method in table.items()]
    write_text(out.with_name("rates.mk"), "".join(rates))
    for name, method in table.items():
        shown = "  ".join(f"{rate} {each['accuracy']:.3f}" for rate, each in method["rates"].items())
        print(f"{name:26}{shown}   best {method['best']}")
