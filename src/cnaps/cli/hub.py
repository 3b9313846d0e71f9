"""`cnaps models`, `push` and `pull`."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from cnaps.cli.common import command, echo
from cnaps.errors import CnapsError

_Source = Annotated[
    str, Argument(metavar="SOURCE", help="A task file (birds.task), or a model by name or folder.")
]
_Repository = Annotated[str, Argument(metavar="REPOSITORY", help="OWNER/NAME on the hub; @REVISION to pull that.")]
_Public = Annotated[bool, Option("--public", help="For everybody to see; else a new repository is private.")]


@command()
def models() -> None:
    """List the models on this machine.

    Those that come with the package, and those that were fetched from the hub.
    """
    from cnaps.runtime.bundle import has_bundle, read_bundle
    from cnaps.runtime.hub import known_models
    from cnaps.weights import DEFAULT_MODEL

    for model in known_models():
        default = " (default)" if model.name == DEFAULT_MODEL else ""
        echo(f"{model.name}{default}: {model.size / 1e6:.1f} MB in {model.folder}")
        try:
            if has_bundle(model.folder):
                about = read_bundle(model.folder)
                echo(
                    f"  fingerprint {about.fingerprint}; {about.settings['backbone']}, "
                    f"{about.settings['adaptation']}, head {about.settings['head']}, {about.image_size} pixels"
                )
            else:
                echo("  no graphs: needs torch, or `cnaps ship`")
        except CnapsError as error:
            echo(f"  damaged: {error}")


@command()
def push(source: _Source, repository: _Repository, public: _Public = False) -> None:
    """Upload a task file or a model to the Hugging Face hub.

    With a card of its own; the token in HF_TOKEN says who you are.

    Example: cnaps push birds.task ada/birds
    """
    from cnaps.runtime import hub

    echo(f"pushed to {hub.push(source, repository, public=public)}")


@command()
def pull(repository: _Repository) -> None:
    """Fetch a task file or a model from the hub.

    It is checked, and where it lies is said.

    Example: cnaps pull ada/birds
    """
    from cnaps.runtime import hub

    path = hub.fetch(repository)
    echo(str(path))
    echo(f"next: cnaps predict {path} IMAGES" if path.is_file() else f"next: --model {hub.PREFIX}{repository}")
