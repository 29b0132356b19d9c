"""`pathaware data`: import data sets, list them, look at them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pathaware.cli.options import (
    DATA,
    DATA_SETS,
    OUTPUT,
    TASKS,
    DataDir,
    Replace,
    argument,
    complete_data,
    examples,
    flag,
    must_be_new,
    panel_option,
    print_problems,
)
from pathaware.core.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from pathaware.data.importers.source import Importer
    from pathaware.data.importing import ImportProgress
    from pathaware.data.store import ImageStore

IMPORTABLE = ", ".join(name for name in DATA_SETS if name != "glyphs")
FOLDERS = "Class folders"
SHOWN = 5
"""Query images per class that `show` draws by default."""
IMPORT_EXAMPLES = examples(
    "pathaware data import cifar-fs --from cifar-100-python.tar.gz",
    "pathaware data import birds --from photographs --proportions 0.64,0.16,0.20",
)
LIST_EXAMPLES = examples("pathaware data list")
SHOW_EXAMPLES = examples("pathaware data show glyphs --ways 3 --out episode.png")

app = typer.Typer(
    help="Import, list and show data sets.",
    no_args_is_help=True,
    epilog=examples("pathaware data list", "pathaware data show glyphs"),
)


@contextmanager
def shown_progress(name: str) -> Iterator[ImportProgress]:
    """Show the progress of an import: a bar on a terminal, a line per tenth otherwise."""
    from pathaware.training.progress import ProgressDisplay

    with ProgressDisplay(name, transient=True) as display:
        yield lambda done, total, class_name: display.update(
            done, class_name, f"{done:,} of {total:,} images", total
        )


@app.command(
    "import",
    help="Pack a data set for training.\n\nIt is available once all images have been read and checked. If "
    "class folders are not sorted into train, val and test, add --split-lists or --proportions.",
    epilog=IMPORT_EXAMPLES,
)
def import_(
    name: str = argument(f"{IMPORTABLE}, or a new name for your own images.", "NAME", complete=complete_data),
    source: Path = panel_option(..., DATA, "Folder or archive to read.", "--from", metavar="PATH"),
    data_dir: DataDir = None,
    layout: str | None = panel_option(
        None,
        DATA,
        "How the source is organised: like one of the known data sets, or folder for one folder per class.",
        shown="NAME if it is known, else folder",
    ),
    rotations: bool = panel_option(False, DATA, "Omniglot: add rotated characters as further classes."),
    split_lists: Path | None = panel_option(
        None, FOLDERS, "Folder with train.txt, val.txt and test.txt, which list the classes of each split."
    ),
    proportions: str | None = panel_option(
        None, FOLDERS, "Split the classes at random in these proportions, such as 0.64,0.16,0.20."
    ),
    seed: int = panel_option(0, FOLDERS, "Seed of the random split."),
    size: int | None = panel_option(None, FOLDERS, "Side of the stored images in pixels.", shown="84"),
    grey: bool | None = panel_option(
        None, FOLDERS, "Store one channel or three.", "--grey/--colour", shown="colour"
    ),
    mirror: bool | None = panel_option(
        None,
        FOLDERS,
        "A mirrored image still shows its class, so training may mirror images.",
        shown="mirror for colour, no-mirror for grey",
    ),
    min_images: int | None = panel_option(None, FOLDERS, "Smallest number of images per class.", shown="2"),
    skip: bool = flag(
        "--skip-unreadable",
        FOLDERS,
        "List images that cannot be read and leave them out. Without this option the import fails.",
    ),
    replace_: bool = flag("--replace", OUTPUT, "Replace an earlier import."),
) -> None:
    """Pack a data set for training."""
    from pathaware.data.catalogue import GLYPHS, IMPORTERS
    from pathaware.data.importers.folder import FolderImporter
    from pathaware.data.importers.omniglot import Omniglot
    from pathaware.data.importers.source import ImportRefused
    from pathaware.data.importing import Skip, import_dataset
    from pathaware.data.pixels import ImageFormat

    least = 2 if min_images is None else min_images
    kind = layout or (name if name in IMPORTERS else "folder")
    if GLYPHS in (kind, name):
        raise UsageError("glyphs: built in, no import needed; try `pathaware data show glyphs`")
    if layout is None and kind == "folder" and (hint := did_you_mean(name, IMPORTERS)):
        typer.echo(f"{name} is a new name, so the source is read as class folders{hint}", err=True)
    chosen: Importer
    if kind == "folder":
        form = ImageFormat(
            size=84 if size is None else size,
            channels=1 if grey else 3,
            mirror=not grey if mirror is None else mirror,
        )
        chosen = FolderImporter(form, split_lists, _numbers(proportions), seed, least)
    else:
        given = {
            "split_lists": split_lists,
            "proportions": proportions,
            "size": size,
            "grey": grey,
            "mirror": mirror,
            "min_images": min_images,
            "skip_unreadable": skip or None,
        }
        chosen = _published(kind, [field for field, value in given.items() if value is not None])
    if rotations:
        if not isinstance(chosen, Omniglot):
            raise UsageError(f"applies to omniglot, not to {kind}", field="rotations")
        chosen = replace(chosen, rotations=True)
    try:
        with shown_progress(name) as progress:
            left_out = Skip(partial(typer.echo, err=True), least) if skip else None
            store = import_dataset(
                name, chosen, source, data_dir, replace=replace_, progress=progress, skip=left_out
            )
    except ImportRefused as refused:
        if kind == "folder" and not skip and refused.unreadable:
            refused.message += "; --skip-unreadable leaves such images out"
        if len(refused.problems) > 1:  # a single one is the message of the error
            print_problems(refused.problems)
        raise
    except KeyboardInterrupt:
        typer.echo(f"{name}: interrupted; run the same command to resume", err=True)
        raise typer.Exit(130) from None
    typer.echo(f"{_summary(store)}  {store.folder}")
    if kind == "folder":
        typer.echo(_next_command(name, store, source))


@app.command("list", epilog=LIST_EXAMPLES)
def list_(data_dir: DataDir = None) -> None:
    """List the imported data sets and where they are."""
    from pathaware.data.catalogue import GLYPHS, imported_stores
    from pathaware.data.catalogue import data_dir as default_data_dir
    from pathaware.data.store import ImageStore

    found = imported_stores(data_dir)
    typer.echo(f"data folder: {default_data_dir(data_dir)}")
    for folder in found:
        try:
            typer.echo(f"{_summary(ImageStore.open(folder))}  {folder}")
        except UsageError as error:  # one damaged store must not hide the others
            typer.echo(f"{folder.name:16} unusable: {error}")
    if GLYPHS not in (folder.name for folder in found):
        typer.echo(f"{GLYPHS:16} built in, drawn on first use")


@app.command(epilog=SHOW_EXAMPLES)
def show(
    name: str = argument("An imported data set, or glyphs.", "NAME", complete=complete_data),
    ways: int | None = panel_option(
        None, TASKS, "Classes in the episode.", shown="5, or as many as there are"
    ),
    shots: int | None = panel_option(
        None, TASKS, "Support images per class.", shown="5, or 1 if there are few"
    ),
    queries: int | None = panel_option(
        None, TASKS, "Query images per class.", shown="5, or as many as there are"
    ),
    split: str | None = panel_option(
        None, TASKS, "train, val or test.", shown="test, or train if it is empty"
    ),
    seed: int = panel_option(0, TASKS, "Seed of the episode."),
    out: Path | None = panel_option(None, OUTPUT, "Image file to write.", shown="NAME-episode.png"),
    replace: Replace = False,
    data_dir: DataDir = None,
) -> None:
    """Draw one episode as an image, as the learner would see it."""
    import torch
    from PIL import Image

    from pathaware.cli.options import warn_undrawable
    from pathaware.core.seeding import generator
    from pathaware.core.writing import replace_file
    from pathaware.data.catalogue import open_store
    from pathaware.data.contact_sheet import contact_sheet
    from pathaware.data.episodes import USUAL, ImageEpisodes, fitting_tasks

    path = out or Path(f"{name}-episode.png")
    must_be_new("--out", path, replace)
    store = open_store(name, data_dir)
    split = split or ("test" if len(store.split("test")) else "train")
    classes = store.split(split)
    images = int(classes.counts.min()) if len(classes) else 0
    fitting = fitting_tasks(len(classes), images) if images else USUAL
    ways = fitting[0] if ways is None else ways
    random = generator(seed, "show")
    if images == 1 and queries is None and shots in (None, 1) and 1 <= ways <= len(classes):
        shots, chosen = 1, classes.starts[torch.randperm(len(classes), generator=random)[:ways], None]
    else:
        shots = fitting[1] if shots is None else shots
        queries = max(1, min(SHOWN, images - shots)) if queries is None else queries
        # Not shuffled: class by class.
        episodes = ImageEpisodes(store, split, ways, shots, queries, shuffle=False)
        chosen = episodes.draw(1, random).images[0].view(shots + queries, ways).T
    rows = torch.searchsorted(classes.starts, chosen[:, 0].contiguous(), right=True) - 1
    pixels = store.images[chosen].numpy()
    title = f"{store.name} · {split} · {ways}-way {shots}-shot · seed {seed}"
    sheet = contact_sheet(
        title, [classes.names[r] for r in rows.tolist()], pixels[:, :shots], pixels[:, shots:]
    )
    buffer = BytesIO()
    try:
        sheet.save(buffer, Image.registered_extensions().get(path.suffix.lower(), path.suffix[1:] or "PNG"))
    except (OSError, KeyError, ValueError) as error:
        raise UsageError(f"{path}: {path.suffix} is not a format of images ({error})", field="out") from None
    replace_file(path, buffer.getvalue())
    warn_undrawable(*(classes.names[r] for r in rows.tolist()))
    typer.echo(str(path))


def _next_command(name: str, store: ImageStore, source: Path) -> str:
    """The command that trains on a store, with tasks that fit it, or what is missing."""
    from pathaware.data.episodes import ENOUGH, USUAL
    from pathaware.data.store import SPLITS

    command = train_command(name, store)
    if command is None:
        train, val, test = (len(store.split(split)) for split in SPLITS)
        return (
            f"too small to train on: {train}/{val}/{test} classes for training, validation and test; each "
            f"needs 2 or more, of 2 images or more. {ENOUGH[0]} classes of {ENOUGH[1]} images, split by "
            f"0.6,0.2,0.2, are enough for tasks of {USUAL[0]} classes. Without training: "
            f"pathaware learn {shlex.quote(str(source))}"
        )
    return f"train on it with: {command}"


def train_command(name: str, store: ImageStore) -> str | None:
    """The command that trains on a store, with tasks that fit it; None if it is too small for any."""
    from pathaware.data.episodes import USUAL, fitting_tasks
    from pathaware.data.store import SPLITS

    splits = [store.split(split) for split in SPLITS]
    classes, images = min(map(len, splits)), min((int(n) for each in splits for n in each.counts), default=0)
    if classes < 2 or images < 2:
        return None
    options = [
        f" --{option} {value}"
        for option, value, usual in zip(
            ("ways", "shots", "queries"), fitting_tasks(classes, images), USUAL, strict=True
        )
        if value != usual
    ]
    return f"pathaware train folder --data {name}{''.join(options)}"


def _summary(store: ImageStore) -> str:
    from pathaware.data.store import SPLITS

    classes = "/".join(str(len(store.split(split))) for split in SPLITS)
    channels, height, width = store.shape
    megabytes = store.manifest.bytes / 1e6
    return (
        f"{store.name:16} {classes:>14} classes  {len(store):>9,} images  "
        f"{height}×{width}×{channels}  {megabytes:>8,.1f} MB"
    )


def _published(kind: str, fields: list[str]) -> Importer:
    """Return the importer of a published data set, to which the given `fields` do not apply."""
    from pathaware.data.catalogue import IMPORTERS

    if kind not in IMPORTERS:
        hint = did_you_mean(kind, ["folder", *IMPORTERS])
        raise UsageError(f"must be folder or one of {', '.join(IMPORTERS)}, not {kind}{hint}", field="layout")
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
