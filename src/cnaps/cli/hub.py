"""`cnaps models`, `push` and `pull`."""

from __future__ import annotations

import typer

from cnaps.cli.common import echo


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (models, push, pull):
        app.command()(command)


def models() -> None:
    """List the models on this machine: those that come with the package, and those fetched from the hub."""
    from cnaps.errors import CnapsError
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


def push(
    source: str = typer.Argument(..., help="A model by name or folder, or a task file."),
    repository: str = typer.Argument(..., help="OWNER/NAME on the hub; made if it does not exist."),
    public: bool = typer.Option(False, "--public", help="For everybody to see; else a new repository is private."),
) -> None:
    """Upload a model or a task file to the Hugging Face hub, with a card; HF_TOKEN is who you are."""
    from cnaps.runtime import hub

    echo(f"pushed to {hub.push(source, repository, public=public)}")


def pull(
    repository: str = typer.Argument(..., help="OWNER/NAME on the hub, or OWNER/NAME@REVISION."),
) -> None:
    """Fetch a model or a task file from the Hugging Face hub, check it, and say where it lies."""
    from cnaps.runtime import hub

    path = hub.fetch(repository)
    echo(str(path))
    echo(f"next: cnaps predict {path} IMAGES" if path.is_file() else f"next: --model {hub.PREFIX}{repository}")
