"""Options by the names that they had in the version before."""

from __future__ import annotations

import pytest

from cnaps.cli.renamed import current


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("evaluate data --beside paper --tasks 3", "evaluate data --published --tasks 3"),
        ("evaluate data --beside=paper", "evaluate data --published"),
        ("ship a b --shared 0.5", "ship a b --lora 0.5"),
        ("train --run=runs/a --set seed=1", "train --out=runs/a --set seed=1"),
    ],
)
def test_an_old_option_is_taken_for_the_new_one_with_a_warning(
    before: str, now: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert current(before.split()) == now.split()
    assert "is called --" in capsys.readouterr().err
    assert current(now.split()) == now.split()
    assert capsys.readouterr().err == ""


def test_options_of_other_commands_and_their_values_stay() -> None:
    assert current(["classify", "--run", "x"]) == ["classify", "--run", "x"]
