"""The licence of every package that an installation of cnaps brings along, as docs/licences.md.

`python tests/packaging/licences.py` writes the page from the packages that are installed.
"""

from __future__ import annotations

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

PAGE = Path(__file__).resolve().parents[2] / "docs" / "licences.md"
EXTRAS = ("train", "serve", "export", "ray")
PERMISSIVE = ("mit", "bsd", "apache", "isc", "psf", "python software", "hpnd", "unlicense", "zlib", "0bsd", "cmu",
              "historical permission")  # fmt: skip
WEAK = ("mpl", "mozilla public", "lgpl")  # the library's own files stay under it; using it asks for nothing more

TEXT = """# Licences of dependencies

cnaps is under the MIT licence. What it needs at run time, with what that needs in turn, as the packages state it
themselves; a test fails where one is unknown or would pass its terms on to whoever uses cnaps. Written by
`python tests/packaging/licences.py`.

| package | licence | needed by |
| --- | --- | --- |
{rows}
"""


def licence(package: Distribution) -> str:
    """The licence as the package states it: an expression, its classifiers, or the first line of a text."""
    about = package.metadata
    (stated, *_) = about.get_all("License-Expression") or [""]
    (whole, *_) = about.get_all("License") or [""]
    classes = [
        value.split(" :: ")[-1] for value in about.get_all("Classifier") or [] if value.startswith("License :: ")
    ]
    named = [each for each in classes if each != "OSI Approved"]
    text = stated or ", ".join(named) or whole.strip().split("\n")[0]
    if text in ("", "UNKNOWN"):  # only the text itself lies beside the package: its title
        for file in package.files or ():
            if "LICENSE" in file.name.upper() and ".dist-info" in str(file):
                return " ".join(file.read_text().split()[:4])
    return text


def verdict(text: str) -> str:
    """permissive, weak, or unfit: a copyleft that reaches further, or nothing known."""
    words = text.lower()
    if "gpl" in re.sub("lgpl", "", words) and not any(word in words for word in PERMISSIVE):
        return "unfit"
    if any(word in words for word in PERMISSIVE):
        return "permissive"
    return "weak" if any(word in words for word in WEAK) else "unfit"


def dependencies() -> dict[str, tuple[str, str]]:
    """Installed packages that cnaps brings along: by name their licence, and the part of cnaps that needs them."""
    found: dict[str, tuple[str, str]] = {}
    for part in ("", *EXTRAS):
        waiting = [("cnaps", part)]
        seen = set()
        while waiting:
            name, extra = waiting.pop()
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                package = distribution(name)
            except PackageNotFoundError:
                continue  # of an extra or a platform that is not installed here
            key = re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower()
            if key != "cnaps":
                found.setdefault(key, (licence(package), f"cnaps[{part}]" if part else "cnaps"))
            for line in package.requires or ():
                need = Requirement(line)
                if need.marker is None or need.marker.evaluate({"extra": extra}):
                    waiting += [(need.name, each) for each in ("", *need.extras)]
    return dict(sorted(found.items()))


if __name__ == "__main__":
    from cnaps.files import write_text

    rows = "\n".join(f"| {name} | {text} | {part} |" for name, (text, part) in dependencies().items())
    write_text(PAGE, TEXT.format(rows=rows))
