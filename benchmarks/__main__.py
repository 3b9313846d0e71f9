"""Run every benchmark, or those named."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from cnaps.nn.devices import configure_threads


def main() -> None:
    configure_threads()
    known = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
    for name in sys.argv[1:] or known:
        if name not in known:
            sys.exit(f"no benchmark named {name!r}; there are: {', '.join(known)}")
        print(f"\n== {name} ==", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()


main()
