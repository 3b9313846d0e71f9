"""Options by the names that they had before: taken for one version, with a note."""

from __future__ import annotations

from collections.abc import Sequence

from cnaps.cli.common import warn

RENAMED = {  # by command, then by option
    "ship": {"--shared": "--lora"},
}


def current(arguments: Sequence[str]) -> list[str]:
    """The arguments of the program with the names that options have now."""
    command = next((word for word in arguments if not word.startswith("-")), "")
    names = RENAMED.get(command, {})
    result = []
    for word in arguments:
        option, equals, value = word.partition("=")
        if option in names:
            warn(f"{option} is called {names[option]} now; the old name will go with the next version")
            word = names[option] + equals + value
        result.append(word)
    return result
