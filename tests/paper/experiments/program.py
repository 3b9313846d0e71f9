"""The command line with the tests' small backbone, as a program of its own."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
import tests.models  # noqa: F401  registers the small one

from cnaps.cli import main

if __name__ == "__main__":
    main()
