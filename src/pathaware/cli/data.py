"""`pathaware data`: import data sets, list them, look at them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pathaware.core.errors import UsageError
from pathaware.data.catalogue import GLYPHS, IMPORTERS, imported_stores, open_store
from pathaware.data.catalogue import data_dir as default_data_dir
from pathaware.data.importers.folder import Folder
from pathaware.data.importers.omniglot import Omniglot
from pathaware.data.importers.source import Importer, ImportRefused
from pathaware.data.importing import Progress as Report
from pathaware.data.importing import import_dataset
from pathaware.data.pixels import ImageFormat
from pathaware.data.store import SPLITS, ImageStore
from pathaware.training.progress import ProgressDisplay


@contextmanager
def shown_progress(name: str) -> Iterator[Report]:
    """Show the progress of an import: a bar on a terminal, a line now and then in a pipe."""
    with ProgressDisplay(name, transient=True) as display:
        yield lambda done, total, class_name: display.update(
            done, class_name, f"{done:,} of {total:,} images", total
        )


app = typer.Typer(help="Import data sets, list them, look at them.", no_args_is_help=True)

DataDir = Annotated[
    Path | None,
    typer.Option(help="Where packed data sets are kept; else $PATHAWARE_DATA, or the XDG data home."),
]


@app.command("import")
def import_(
    name: Annotated[str, typer.Argument(help=f"{', '.join(IMPORTERS)}, or a name for your own folder.")],
    source: Annotated[Path, typer.Option("--from", help="The folder or archive to read.")],
    data_dir: DataDir = None,
    layout: Annotated[str | None, typer.Option(help="A known set or 'folder'; else told by NAME.")] = None,
    rotations: Annotated[
        bool, typer.Option(help="Omniglot: quarter turns are classes of their own.")
    ] = False,
    split_lists: Annotated[
        Path | None, typer.Option(help="Folder: a folder with train.txt, val.txt, test.txt.")
    ] = None,
    proportions: Annotated[
        str | None, typer.Option(help="Folder: split at random, as 0.64,0.16,0.20.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Folder: the seed of that split.")] = 0,
    size: Annotated[
        int | None, typer.Option(help="Folder: side of the stored images in pixels [84].")
    ] = None,
    grey: Annotated[
        bool | None, typer.Option("--grey/--colour", help="Folder: one channel or three.")
    ] = None,
    mirror: Annotated[
        bool | None, typer.Option(help="Folder: a mirrored image is still of its class.")
    ] = None,
    min_images: Annotated[
        int | None, typer.Option(help="Folder: fewest images allowed in a class [2].")
    ] = None,
    replace_: Annotated[bool, typer.Option("--replace", help="Import again over an earlier import.")] = False,
) -> None:
    """Pack a data set for training. Nothing is stored until all of it has been read and counted."""
    kind = layout or (name if name in IMPORTERS else "folder")
    if GLYPHS in (kind, name):
        raise UsageError("glyphs: built in, there is nothing to import; use it by its name")
    chosen: Importer
    if kind == "folder":
        form = ImageFormat(
            size=84 if size is None else size,
            channels=1 if grey else 3,
            mirror=not grey if mirror is None else mirror,
        )
        least = 2 if min_images is None else min_images
        chosen = Folder(form, split_lists, _numbers(proportions), seed, least)
    else:
        given = {
            "--split-lists": split_lists,
            "--proportions": proportions,
            "--size": size,
            "--grey/--colour": grey,
            "--mirror": mirror,
            "--min-images": min_images,
        }
        chosen = _known(kind, [option for option, value in given.items() if value is not None])
    if rotations:
        if not isinstance(chosen, Omniglot):
            raise UsageError(f"--rotations: applies to omniglot, not to {kind}")
        chosen = replace(chosen, rotations=True)
    try:
        with shown_progress(name) as progress:
            store = import_dataset(name, chosen, source, data_dir, replace=replace_, progress=progress)
    except ImportRefused as refused:
        for problem in refused.problems:
            typer.echo(problem, err=True)
        raise
    except KeyboardInterrupt:
        typer.echo(f"{name}: interrupted; the same command goes on where this one stopped", err=True)
        raise typer.Exit(130) from None
    typer.echo(f"{_summary(store)}  {store.folder}")


@app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """Say what is imported, and where."""
    found = imported_stores(data_dir)
    typer.echo(f"data folder: {default_data_dir(data_dir)}")
    for folder in found:
        try:
            typer.echo(f"{_summary(ImageStore.open(folder))}  {folder}")
        except UsageError as error:  # one damaged store must not hide the others
            typer.echo(f"{folder.name:16} unusable: {error}")
    if GLYPHS not in (folder.name for folder in found):
        typer.echo(f"{GLYPHS:16} built in, made when first used")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="An imported data set, or glyphs.")],
    ways: Annotated[int, typer.Option(help="Classes in the episode.")] = 5,
    shots: Annotated[int, typer.Option(help="Support images of each class.")] = 5,
    queries: Annotated[int, typer.Option(help="Query images of each class.")] = 5,
    split: Annotated[str, typer.Option(help=", ".join(SPLITS))] = "test",
    seed: Annotated[int, typer.Option(help="Which episode.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The picture to write [NAME-episode.png].")] = None,
    data_dir: DataDir = None,
) -> None:
    """Write a picture of one episode, as the learner would see it."""
    import torch

    from pathaware.core.seeding import generator
    from pathaware.data.contact_sheet import contact_sheet
    from pathaware.data.episodes import ImageEpisodes

    store = open_store(name, data_dir)
    episodes = ImageEpisodes(store, split, ways, shots, queries)
    plan = episodes.draw(1, generator(seed, "show"))
    chosen = plan.images[0].view(shots + queries, ways).T
    classes = store.split(split)
    rows = torch.searchsorted(classes.starts, chosen[:, 0].contiguous(), right=True) - 1
    images = store.images[chosen].numpy()
    title = f"{store.name} · {split} · {ways}-way {shots}-shot · seed {seed}"
    sheet = contact_sheet(
        title, [classes.names[r] for r in rows.tolist()], images[:, :shots], images[:, shots:]
    )
    path = out or Path(f"{name}-episode.png")
    try:
        sheet.save(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"--out {path}: cannot be written ({error})") from None
    typer.echo(str(path))


def _summary(store: ImageStore) -> str:
    classes = "/".join(str(len(store.split(split))) for split in SPLITS)
    channels, height, width = store.shape
    megabytes = store.manifest.bytes / 1e6
    return (
        f"{store.name:16} {classes:>14} classes  {len(store):>9,} images  "
        f"{height}×{width}×{channels}  {megabytes:>8,.1f} MB"
    )


def _known(kind: str, options: list[str]) -> Importer:
    """The layout of a published set, for which nothing that would change the set may be given."""
    if kind not in IMPORTERS:
        raise UsageError(f"--layout {kind}: must be folder or one of {', '.join(IMPORTERS)}")
    if options:
        raise UsageError(f"{options[0]}: fixed for {kind}; it applies to --layout folder")
    return IMPORTERS[kind]


def _numbers(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--proportions {text}: must be three numbers such as 0.64,0.16,0.20") from None
