"""Every experiment behind the results' pages, one after the other, in sessions of any length.

    python tools/reviewer.py run FOLDER STEP ... [--minutes 120]
    python tools/reviewer.py status FOLDER STEP ...

A step is a target of the Makefile; each goes on where it was stopped, and leaves its numbers in results/. FOLDER
holds the output of each step, STEP.log, and STEP.done when it came to its end; remove that to have it looked at
again. A step that fails does not keep the next ones from running. `status` also says what is kept in results/,
which outlives FOLDER and the models.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MAKE = ["make", "--no-print-directory"]
GRACE = 120  # seconds for a training to write its state


def run(folder: Path, steps: list[str], minutes: float | None) -> int:
    """Do what is left, until the time is over; gives the number of steps that failed."""
    folder.mkdir(parents=True, exist_ok=True)
    end = None if minutes is None else time.monotonic() + 60 * minutes
    failed = 0
    for step in steps:
        if is_done(folder, step):
            continue
        print(f"{step} ...", flush=True)
        code = make(step, folder / f"{step}.log", end)
        if code is None:
            print(f"{step}: stopped; it goes on the next time")
            break
        if code == 0:
            (folder / f"{step}.done").touch()
        else:
            failed += 1
            print(f"{step}: failed, see {folder / f'{step}.log'}")
    status(folder, steps)
    return failed


def make(step: str, log: Path, end: float | None) -> int | None:
    """Run a target, trainings side by side with a core each; its exit code, or None if it was stopped."""
    one_core = {"CNAPS_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with log.open("ab") as file:
        process = subprocess.Popen(
            [*MAKE, f"-j{os.cpu_count()}", step],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **one_core},
            start_new_session=True,  # so that everything that it started can be stopped with it
        )
        try:
            return process.wait(None if end is None else max(0.0, end - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            stop(process)
            return None


def stop(process: subprocess.Popen[bytes]) -> None:
    """Let everything that is running write its state, and end what does not."""
    end = time.monotonic() + GRACE
    try:
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < end:
            process.poll()  # make itself is gone at once, what it started may not be
            os.killpg(process.pid, 0)
            time.sleep(0.2)
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def status(folder: Path, steps: list[str]) -> None:
    """A line for each step: done, begun or not; then what results/ holds, and the rows of the comparison."""
    for step in steps:
        begun = "begun" if (folder / f"{step}.log").exists() else "to do"
        print(f"{step:18}{'done' if is_done(folder, step) else begun}")
    for path in sorted(Path("results").glob("*.json")):
        made = json.loads(path.read_text(encoding="utf-8"))["made"]
        command = made["command"] if len(made["command"]) < 70 else made["command"][:66] + " ..."
        print(f"kept: {path.stem:27}{command}")
    if Path("results").exists():
        subprocess.run([sys.executable, str(Path(__file__).with_name("comparison.py")), "status"], check=True)


def is_done(folder: Path, step: str) -> bool:
    """Whether a step came to its end."""
    return (folder / f"{step}.done").exists()


def main() -> None:
    """Read the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=("run", "status"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", nargs="+")
    parser.add_argument("--minutes", type=float)
    o = parser.parse_args()
    if o.command == "run":
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        sys.exit(run(o.folder, o.steps, o.minutes) > 0)
    status(o.folder, o.steps)


if __name__ == "__main__":
    main()
