"""``cnaps data``: prepare collections and look at them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cnaps.cli import common
from cnaps.cli.common import app as root
from cnaps.cli.common import command, echo
from cnaps.files import check_output

if TYPE_CHECKING:
    from cnaps.data.collection import Collection

app = typer.Typer(no_args_is_help=True, help="Prepare collections of images, and look at them.")


root.add_typer(app, name="data")


@command(of=app)
def prepare(
    name: Annotated[
        str, typer.Argument(help="Which data set, see `cnaps data list`; folder for your own images.")
    ],
    source: Annotated[Path, typer.Argument(help="Its files: a folder, an archive, or a CSV of path and label.")],
    dest: Annotated[Path, typer.Argument(help="The folder of the new collection, e.g. collections/birds.")],
    size: Annotated[int, typer.Option(help="Images are shrunk to at most this many pixels a side.")] = 84,
    splits: Annotated[
        str | None,
        typer.Option(help="published, random or none; train, valid or test takes all classes; or a JSON file."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of random splits.")] = 0,
    wordnet: Annotated[
        Path | None,
        typer.Option(help="The folder of wordnet.is_a.txt and words.txt, for ImageNet's published split."),
    ] = None,
    collection: Annotated[
        str | None, typer.Option("--name", help="The collection's name, if not that of the data set.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one a processor if not given.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="A broken image is an error, not left out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a collection made otherwise.")] = False,
) -> None:
    """Make a collection from a data set as its publisher ships it, or from your own folders.

    An interrupted preparation continues when it is run again; running it twice changes nothing.

    Example: cnaps data prepare cu_birds downloads collections/cu_birds
    """
    from cnaps.data.prepare import prepare as run

    options: dict[str, Any] = {"size": size, "name": collection, "splits": splits, "seed": seed}
    options["wordnet"] = wordnet
    done = run(name, source, dest, **options, workers=workers, strict=strict, overwrite=overwrite)
    made = done.collection
    echo(f"{dest}: {summary(made)}" + (" (was there already)" if done.unchanged else ""))
    for key, reason in made.broken[:10]:
        echo(f"  broken: {key}: {reason}", err=True)
    if len(made.broken) > 10:
        echo(f"  ... {len(made.broken)} broken images in all; `cnaps data show` lists them", err=True)


@command("list", of=app)
def list_(
    folder: Annotated[Path | None, typer.Argument(help="A folder of collections.")] = None,
) -> None:
    """List the data sets that can be prepared, or the collections in a folder."""
    if folder is None:
        from cnaps.data.readers import READERS

        for reader in READERS.values():
            echo(f"{reader.name:21}{reader.title}")
        return
    from cnaps.data.collection import find_collections

    for collection in find_collections(folder):
        echo(f"{collection.name:21}{summary(collection)}")


@command(of=app)
def show(
    dest: Annotated[Path, typer.Argument(help="A collection.")],
    sheet: Annotated[Path | None, typer.Option(help="The picture to write; DEST.png if not given.")] = None,
    force: common.Force = False,
) -> None:
    """Show counts, splits and broken images of a collection, and write a contact sheet of it as PNG."""
    from cnaps.data.collection import Collection
    from cnaps.data.contact_sheet import write_contact_sheet

    collection = Collection.open(dest)
    counts = collection.counts
    sheet = sheet or dest.resolve().with_name(f"{dest.resolve().name}.png")
    check_output(sheet, (".png",), inputs=[dest], force=force)
    write_contact_sheet(collection, sheet)
    echo(f"{collection.name}: {summary(collection)}")
    echo(f"  images a class   {counts.min()} to {counts.max()}, {len(collection) / len(counts):.1f} on average")
    for split, classes in collection.splits.items():
        echo(f"  {split:17}{len(classes)} classes, {int(counts[classes].sum())} images")
    if collection.hierarchy:
        kind = collection.hierarchy["kind"]
        groups = collection.hierarchy["groups" if kind == "alphabets" else "nodes"]
        echo(f"  hierarchy        {len(groups)} {kind if kind == 'alphabets' else 'nodes of WordNet'}")
    echo(f"  source           {collection.source or 'not known'}")
    echo(f"  licence          {collection.licence or 'not known'}")
    echo(f"  fingerprint      {collection.fingerprint}")
    echo(f"  contact sheet    {sheet}")
    for key, reason in collection.broken:
        echo(f"  broken           {key}: {reason}")


@command(of=app)
def doctor(
    folder: Annotated[Path, typer.Argument(help="The folder of collections and downloads.")],
) -> None:
    """Tell which of Meta-Dataset's data sets are ready, which files are missing, and where those are.

    Example: cnaps data doctor downloads
    """
    from cnaps.data.doctor import examine

    marks = {"ready": "green", "downloaded": "yellow", "damaged": "red", "missing": "red"}
    findings = examine(folder)
    for finding in findings:
        typer.secho(f"{finding.state:12}", fg=marks[finding.state], nl=False)
        echo(f"{finding.name:14}{finding.note}")
        for part in finding.missing:
            echo(f"{'':12}{'':14}{part.file}  <-  {part.url}")
    ready = sum(finding.state == "ready" for finding in findings)
    echo(f"{ready} of {len(findings)} data sets are ready in {folder}")


def summary(collection: Collection) -> str:
    """One line about a collection."""
    parts = [f"{len(collection.classes):,} classes", f"{len(collection):,} images of {collection.size} pixels"]
    if collection.splits:
        parts.append(" / ".join(f"{len(classes)} {split}" for split, classes in collection.splits.items()))
    if collection.broken:
        parts.append(f"{len(collection.broken):,} broken")
    return ", ".join(parts)
