"""Classify images as they arrive: python watch-a-folder.py birds.task incoming"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from cnaps import FewShotClassifier


def main(task: str, folder: str, rounds: int | None = None) -> None:
    """Look once a second for images that were not there before; for ever, or so many times."""
    classifier = FewShotClassifier.load(task)
    known: set[Path] = set()
    while rounds is None or (rounds := rounds - 1) >= 0:
        new = sorted(path for path in Path(folder).glob("*.[jp][pn]g") if path not in known)
        known.update(new)
        for path, row in zip(new, classifier.predict_proba(new) if new else [], strict=True):
            print(f"{path.name}: {classifier.classes_[row.argmax()]} ({row.max():.0%})", flush=True)
        time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
