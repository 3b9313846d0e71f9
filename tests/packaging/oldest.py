"""Print the lower bounds in pyproject.toml as exact versions."""

from __future__ import annotations

import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
# the oldest web framework has a test client that the newest httpx does not fit
client = [line for line in extras["dev"] if line.startswith("httpx")]
for line in [*project["dependencies"], *extras["train"], *extras["serve"], *client]:
    print(line.replace(">=", "=="))
