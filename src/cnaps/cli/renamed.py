"""Options by the names that they had before: taken for one version, with a note."""

from __future__ import annotations

import os
from collections.abc import Sequence

from cnaps.cli.common import warn

RENAMED = {  # by command, then by option
    "ship": {"--shared": "--lora"},
    "evaluate": {"--beside": "--published"},
    "train": {"--run": "--out"},
    "pretrain": {"--run": "--out"},
}
FLAGS = {"--published"}  # without the value that the old name had


def current(arguments: Sequence[str]) -> list[str]:
    """The arguments of the program with the names that options have now."""
    command = next((word for word in arguments if not word.startswith("-")), "")
    names = RENAMED.get(command, {})
    result, words = [], iter(arguments)
    for word in words:
        option, equals, value = word.partition("=")
        if option in names:
            if "RANK" not in os.environ:  # one of several processes
                warn(f"{option} is called {names[option]} now; the old name will go with the next version")
            word = names[option] + equals + value
            if names[option] in FLAGS:
                word = names[option]
                if not equals:
                    next(words, None)
        result.append(word)
    return result
