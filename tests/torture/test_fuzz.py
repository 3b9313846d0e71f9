"""A little of the fuzzing of every format; `make torture` does it in full."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import fuzzing


@pytest.mark.parametrize("each", fuzzing.FORMATS, ids=lambda each: each.title)
def test_a_spoiled_file_is_read_correctly_or_refused_with_a_sentence(each: fuzzing.Format, tmp_path: Path) -> None:
    found = fuzzing.outcomes(each, tmp_path, 200)
    assert found.keys() <= {"loaded", "refused", "cannot be written"}, found
    assert found["refused"] > 50
