"""The package as a whole: quick to import, readable from one place."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cnaps.errors import MissingPackageError

HEAVY = ("torch", "numpy", "PIL", "pyarrow", "sklearn", "matplotlib", "scipy", "accelerate", "onnx", "fastapi")


@pytest.mark.parametrize("code", ["import cnaps", "import cnaps.cli"])
def test_importing_the_package_or_its_commands_loads_nothing_heavy(code: str) -> None:
    check = f"{code}; import sys; print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_public_name_can_be_imported() -> None:
    import cnaps

    for name in cnaps.__all__:
        assert getattr(cnaps, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = cnaps.nonsense


def test_the_hint_of_a_missing_package_fits_installations_with_and_without_pip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/some where/python")
    assert '"/some where/python" -m pip install fastapi' in str(MissingPackageError("the server", "fastapi"))
    monkeypatch.setattr("cnaps.errors.find_spec", lambda name: None)  # as in environments that uv makes
    assert 'uv pip install --python "/some where/python" fastapi' in str(MissingPackageError("it", "fastapi"))
