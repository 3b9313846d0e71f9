"""What is published: a wheel built from the sdist, whole and small, that works where nothing else is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Built = tuple[Path, Path, Path]
DATA = ("models", "static")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The wheel, the sdist and the package that they were made from: the files that git knows."""
    folder = tmp_path_factory.mktemp("package")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / "source" / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", "source"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    return wheel, sdist, folder / "source" / "src" / "cnaps"


def test_the_wheel_holds_the_package_its_model_and_its_page_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built[0]) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = archive.read(next(n for n in archive.namelist() if n.endswith("METADATA"))).decode()
    package = built[2]
    sources = {f"cnaps/{path.relative_to(package)}" for path in package.rglob("*.py")}
    data = {f"cnaps/{p.relative_to(package)}" for d in DATA for p in (package / d).rglob("*") if p.is_file()}
    assert names == sources | data | {"cnaps/py.typed", "cnaps/paper/experiments/report.html"}
    assert {"cnaps/models/cnaps-lite0/model.safetensors", "cnaps/static/index.html"} <= names
    assert built[0].stat().st_size < 30_000_000
    assert "License-Expression: MIT" in metadata


def test_the_sdist_holds_what_is_needed_to_build_and_nothing_heavy_beside_the_model(
    built: Built,
) -> None:
    with tarfile.open(built[1]) as archive:
        sizes = {member.name.partition("/")[2]: member.size for member in archive.getmembers()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/cnaps/py.typed"} <= sizes.keys()
    assert sum(size for name, size in sizes.items() if not name.startswith("src/cnaps/models/")) < 5_000_000


_ESTIMATOR = """
import pathlib
from cnaps import FewShotClassifier

files = sorted(pathlib.Path("examples").rglob("*.png"))
labels = [path.parent.name for path in files]
classifier = FewShotClassifier().fit(files[:20], labels[:20]).partial_fit(files[20:], labels[20:])
assert classifier.predict_proba(files).shape == (30, 10) and len(classifier.novelty(files)) == 30
assert len(classifier.suggest("images", 3)) == 3 and len(classifier.review(files, labels)) == 30
classifier.forget([classifier.classes_[0]]).save("less.task")
FewShotClassifier.load("less.task").export_onnx("less.onnx")
"""


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(built: Built, tmp_path: Path) -> None:
    from PIL import Image
    from sklearn.datasets import load_digits

    data = load_digits()
    for i in range(40):
        place = "images" if i >= 30 else f"examples/digit {data.target[i]}"
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray((data.images[i] * 15.9).astype("uint8")).resize((64, 64))
        picture.save(tmp_path / place / f"{i}.png")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python, cnaps = tmp_path / "venv/bin/python", tmp_path / "venv/bin/cnaps"
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def run(*command: object) -> str:
        done = subprocess.run(
            [str(part) for part in command], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    constraints = ROOT / "constraints.txt"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "-c", constraints, built[0])
    absent = "import importlib.util as u; print([n for n in ('torch', 'pyarrow', 'matplotlib') if u.find_spec(n)])"
    assert run(python, "-c", absent) == "[]\n"
    run(python, "-c", f"import cnaps, sys; assert cnaps.__file__.startswith({str(tmp_path)!r})")
    assert "Three things to do next" in run(cnaps)
    tour = run(cnaps, "demo", "tour")
    assert re.search(r"5\d of 60 right|60 of 60 right", tour)
    assert re.search(r"of 1,747 right: 8\d", tour)
    assert (tmp_path / "tour/digits.html").stat().st_size < 10_000_000
    table = run(cnaps, "classify", "examples", "images", "--save", "digits.task")
    found = [line.split()[2] for line in table.splitlines() if line.startswith("images/")]
    truth = [str(digit) for digit in data.target[30:40]]
    assert sum(a == b for a, b in zip(found, truth, strict=True)) >= 7
    for line in (
        "fit examples more.task",
        "suggest more.task images --sheet next.png",
        "review examples",
        "export more.task more.onnx",
        "check more.task",
        "models",
    ):
        run(cnaps, *line.split())
    run(python, "-c", _ESTIMATOR)
    # the sdist again builds on a machine of somebody else's, with a build environment of its own
    run(*pip, "--force-reinstall", "--no-deps", built[1])
    assert "digit" in run(cnaps, "predict", "digits.task", "images")
    # commands of extras that are not here say what to install
    done = subprocess.run([cnaps, "serve", tmp_path / "digits.task"], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"{python} -m pip install fastapi uvicorn python-multipart" in done.stderr.replace("\n", " ")
