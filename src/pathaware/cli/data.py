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
from pathaware.data.importers.folder import FolderImporter
from pathaware.data.importers.omniglot import Omniglot
from pathaware.data.importers.source import Importer, ImportRefused
from pathaware.data.importing import ImportProgress, import_dataset
from pathaware.data.pixels import ImageFormat
from pathaware.data.store import SPLITS, ImageStore
from pathaware.training.progress import ProgressDisplay


@contextmanager
def shown_progress(name: str) -> Iterator[ImportProgress]:
    """Show the progress of an import: a bar on a terminal, a line now and then in a pipe."""
    with ProgressDisplay(name, transient=True) as display:
        yield lambda done, total, class_name: display.update(
            done, class_name, f"{done:,} of {total:,} images", total
        )


app = typer.Typer(help="Import data sets, list them, look at them.", no_args_is_help=True)

DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the packed data sets (default: $PATHAWARE_DATA, else the XDG data home)."),
]


@app.command("import")
def import_(
    name: Annotated[str, typer.Argument(help=f"{', '.join(IMPORTERS)}, or a name for your own folder.")],
    source: Annotated[Path, typer.Option("--from", help="The folder or archive to read.")],
    data_dir: DataDir = None,
    layout: Annotated[
        str | None, typer.Option(help="A known data set or 'folder' (default: by NAME).")
    ] = None,
    rotations: Annotated[
        bool, typer.Option(help="Omniglot: add rotated characters as further classes.")
    ] = False,
    split_lists: Annotated[
        Path | None, typer.Option(help="Folder: a folder with train.txt, val.txt, test.txt.")
    ] = None,
    proportions: Annotated[
        str | None, typer.Option(help="Folder: split at random, such as 0.64,0.16,0.20.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Folder: seed of the random split.")] = 0,
    size: Annotated[
        int | None, typer.Option(help="Folder: side of the stored images in pixels (default: 84).")
    ] = None,
    grey: Annotated[
        bool | None, typer.Option("--grey/--colour", help="Folder: one channel or three (default).")
    ] = None,
    mirror: Annotated[
        bool | None, typer.Option(help="Folder: a mirrored image still shows its class.")
    ] = None,
    min_images: Annotated[
        int | None, typer.Option(help="Folder: smallest number of images per class (default: 2).")
    ] = None,
    replace_: Annotated[bool, typer.Option("--replace", help="Replace an earlier import.")] = False,
) -> None:
    """Pack a data set for training. The store appears only when all images have been read and counted."""
    kind = layout or (name if name in IMPORTERS else "folder")
    if GLYPHS in (kind, name):
        raise UsageError("glyphs: built in, no import needed; use it by its name")
    chosen: Importer
    if kind == "folder":
        form = ImageFormat(
            size=84 if size is None else size,
            channels=1 if grey else 3,
            mirror=not grey if mirror is None else mirror,
        )
        chosen = FolderImporter(
            form, split_lists, _numbers(proportions), seed, 2 if min_images is None else min_images
        )
    else:
        given = {
            "split_lists": split_lists,
            "proportions": proportions,
            "size": size,
            "grey": grey,
            "mirror": mirror,
            "min_images": min_images,
        }
        chosen = _published(kind, [field for field, value in given.items() if value is not None])
    if rotations:
        if not isinstance(chosen, Omniglot):
            raise UsageError(f"applies to omniglot, not to {kind}", field="rotations")
        chosen = replace(chosen, rotations=True)
    try:
        with shown_progress(name) as progress:
            store = import_dataset(name, chosen, source, data_dir, replace=replace_, progress=progress)
    except ImportRefused as refused:
        for problem in refused.problems:
            typer.echo(problem, err=True)
        raise
    except KeyboardInterrupt:
        typer.echo(f"{name}: interrupted; run the same command to resume", err=True)
        raise typer.Exit(130) from None
    typer.echo(f"{_summary(store)}  {store.folder}")


@app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """List the imported data sets and where they are."""
    found = imported_stores(data_dir)
    typer.echo(f"data folder: {default_data_dir(data_dir)}")
    for folder in found:
        try:
            typer.echo(f"{_summary(ImageStore.open(folder))}  {folder}")
        except UsageError as error:  # one damaged store must not hide the others
            typer.echo(f"{folder.name:16} unusable: {error}")
    if GLYPHS not in (folder.name for folder in found):
        typer.echo(f"{GLYPHS:16} built in, drawn on first use")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="An imported data set, or glyphs.")],
    ways: Annotated[int, typer.Option(help="Classes in the episode.")] = 5,
    shots: Annotated[int, typer.Option(help="Support images per class.")] = 5,
    queries: Annotated[int, typer.Option(help="Query images per class.")] = 5,
    split: Annotated[str, typer.Option(help=", ".join(SPLITS))] = "test",
    seed: Annotated[int, typer.Option(help="Seed of the episode.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Image file to write (default: NAME-episode.png).")] = None,
    data_dir: DataDir = None,
) -> None:
    """Draw one episode as an image, as the learner would see it."""
    import torch

    from pathaware.core.seeding import generator
    from pathaware.data.contact_sheet import contact_sheet
    from pathaware.data.episodes import ImageEpisodes

    store = open_store(name, data_dir)
    episodes = ImageEpisodes(store, split, ways, shots, queries, shuffle=False)  # class by class
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
        raise UsageError(f"{path} cannot be written ({error})", field="out") from None
    typer.echo(str(path))


def _summary(store: ImageStore) -> str:
    classes = "/".join(str(len(store.split(split))) for split in SPLITS)
    channels, height, width = store.shape
    megabytes = store.manifest.bytes / 1e6
    return (
        f"{store.name:16} {classes:>14} classes  {len(store):>9,} images  "
        f"{height}×{width}×{channels}  {megabytes:>8,.1f} MB"
    )


def _published(kind: str, fields: list[str]) -> Importer:
    """Return the importer of a published data set, to which the given `fields` do not apply."""
    if kind not in IMPORTERS:
        raise UsageError(f"must be folder or one of {', '.join(IMPORTERS)}, not {kind}", field="layout")
    if fields:
        raise UsageError(f"fixed for {kind}; applies to class folders only", field=fields[0])
    return IMPORTERS[kind]


def _numbers(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"must be three numbers such as 0.64,0.16,0.20, not {text}", field="proportions"
        ) from None


# Progress of an import: a bar on a terminal, a line per tenth otherwise.
