"""Print the lower bounds in pyproject.toml as exact versions; torch stays as it is pinned elsewhere."""

from __future__ import annotations

import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
for line in [*project["dependencies"], *extras["train"], *extras["serve"]]:
    if not line.startswith("torch"):
        print(line.replace(">=", "=="))
