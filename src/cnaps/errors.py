"""Errors meant for people: what is wrong, with which file or value, and what to do.

Everything a user can cause is a :class:`CnapsError`; the command line prints its text without a traceback.
Any other exception is a bug.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec


class CnapsError(Exception):
    """The base of all errors that a user can cause and mend."""

    def __str__(self) -> str:
        """One line, of bearable length: it may quote what a file says."""
        line = " ".join(super().__str__().splitlines())
        return line if len(line) <= 1200 else f"{line[:600]} ... {line[-400:]}"


class InputError(CnapsError, ValueError):
    """A value given by the caller does not fit: an image tensor, a label, an option."""


class DataError(CnapsError, ValueError):
    """A data set, collection, archive, manifest or image file is missing or damaged."""


class MissingPackageError(CnapsError):
    """Something needs packages that are not installed here; says how to add them to any kind of installation."""

    def __init__(self, what: str, *packages: str) -> None:
        program = f'"{sys.executable}"' if " " in sys.executable else sys.executable
        pip = f"{program} -m pip install" if find_spec("pip") else f"uv pip install --python {program}"
        command = f"{pip} {' '.join(packages)}"
        super().__init__(f"{what} needs packages that are not installed. This adds them: {command}")


class CheckpointError(CnapsError, ValueError):
    """A model, task or training file is missing, damaged or does not fit."""


@contextmanager
def explained(kind: type[CnapsError], what: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn what goes wrong within, if it is one of these errors, into one for people: `what`, and the reason.

    Without any errors it is about the operating system's, whose reason is given without the path.

    >>> with explained(InputError, "weights are numbers", ValueError):
    ...     float("many")
    Traceback (most recent call last):
    cnaps.errors.InputError: weights are numbers: could not convert string to float: 'many'
    """
    expected = errors or (OSError,)
    try:
        yield
    except expected as error:
        brief = None if errors else getattr(error, "strerror", None)
        raise kind(f"{what}: {brief or error}") from error
