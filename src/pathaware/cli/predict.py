"""`pathaware predict RUN --support DIR --images PATH`: label images after a few labelled examples."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace as with_changes
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from pathaware.cli.options import (
    DATA,
    METHOD,
    OUTPUT,
    Device,
    Replace,
    adapt,
    argument,
    complete_model,
    examples,
    flag,
    must_be_empty,
    must_be_new,
    must_be_png,
    open_model,
    panel_option,
    print_problems,
    print_warning,
    read_support,
    warn_undrawable,
)
from pathaware.core.errors import RunError, UsageError

if TYPE_CHECKING:
    from pathaware.inference.predictions import Predictions
    from pathaware.inference.trained_model import SupportSet, TrainedModel
    from pathaware.training.evaluation import Views

FORMATS = ("table", "csv", "json")
ENDINGS = {"": "table", ".csv": "csv", ".json": "json", ".md": "table", ".txt": "table"}
"""The format of a file by the ending of its name."""
EXAMPLES = examples(
    "pathaware predict glyphs --support letters --images new",
    "pathaware predict glyphs --support letters --images new --out labels.csv",
    "pathaware predict glyphs --support letters --images new --unknown 0.05 --why",
    "pathaware predict glyphs --support letters --images new --sort sorted",
)

Model = Annotated[
    str,
    argument(
        "Folder of a run on images or of a classifier, or a shipped model: glyphs or photos.",
        "RUN",
        complete_model,
    ),
]
Support = Annotated[
    Path | None,
    panel_option(
        ...,
        DATA,
        "Labelled pictures: a folder, zip or tar with one folder per class.",
        shown="those of the classifier, if `pathaware learn` made it",
    ),
]


def predict(
    run: Model,
    images: Path = panel_option(..., DATA, "Pictures to label: a file, folder, zip or tar."),
    support: Support = None,
    format: str | None = panel_option(
        None, OUTPUT, "table, csv or json.", shown="by the ending of --out, else table"
    ),
    out: Path | None = panel_option(None, OUTPUT, "File to write.", shown="standard output"),
    show: Path | None = panel_option(None, OUTPUT, "Also draw pictures and labels in this .png file."),
    sort: Path | None = panel_option(
        None,
        OUTPUT,
        "Also copy the pictures into this folder, which is new or empty: into one folder per label. "
        "The originals stay as they are.",
    ),
    top: int | None = panel_option(
        None,
        OUTPUT,
        "Classes to show per picture, the most probable first.",
        shown="2 in a table, all in json",
        min=1,
    ),
    score: bool = flag(
        "--score", OUTPUT, "Report the accuracy, for pictures in folders named after classes."
    ),
    unknown: float | None = panel_option(
        None,
        OUTPUT,
        "Label pictures that are too far from all classes 'none of these'. The value is the share "
        "of pictures of known classes that may be labelled so by mistake, such as 0.05.",
        shown="never",
    ),
    why: bool = flag(
        "--why",
        OUTPUT,
        "Show the labelled pictures that count most for and against each label, and name labelled "
        "pictures whose own labels may be wrong.",
    ),
    views: str = panel_option(
        "single",
        METHOD,
        "Views of every picture: single, or mirror for the mean over it and its mirror image.",
    ),
    replace: Replace = False,
    device: Device = "auto",
) -> None:
    """Adapt to a few labelled pictures and label other pictures."""
    from pathaware.core.writing import replace_file
    from pathaware.data.store import counted
    from pathaware.inference.calibration import check_share
    from pathaware.inference.class_folders import copy_by_label, folder_name, read_images
    from pathaware.inference.influence import reasons
    from pathaware.inference.open_set import unknown_images
    from pathaware.inference.predictions import Predictions, Score, true_labels

    chosen = _format(format, out)
    if chosen == "csv" and top is not None:
        raise UsageError("does not apply to csv, which has a column for every class", field="top")
    if out is not None and show is not None and out.resolve() == show.resolve():
        raise UsageError(f"{show} is also the file of --out", field="show")
    for option, path in (("--out", out), ("--show", show)):
        if path is not None:
            must_be_new(option, path, replace)
    must_be_png("--show", show)
    if sort is not None:
        _must_be_elsewhere(sort, {"--images": images, "--support": support}, {"--out": out, "--show": show})
        must_be_empty("--sort", sort)
    if unknown is not None:
        check_share(unknown)
    model = open_model(run, device, cast("Views", views))
    labelled = read_support(support, model)
    classes = tuple(_writable(name) for name in labelled.classes)
    if sort is not None:
        for name in classes:
            folder_name(name, "sort")
    found, pixels, problems = read_images(images, model.image_input)
    if not found:
        if len(problems) == 1:
            raise RunError(f"--images: {problems[0]}")
        print_problems(problems)
        raise RunError(f"--images: no picture in {images} can be read")
    if model.typical is not None and (unlike := model.typical.warning(pixels, labelled.pixels)):
        print_warning(unlike)
    adapted = adapt(model, labelled)
    probabilities = adapted.probabilities(pixels)
    predictions = Predictions(
        [_writable(image.label) for _, image in found],
        classes,
        probabilities,
        None if unknown is None else unknown_images(model, adapted, labelled, pixels, unknown),
        reasons(model, labelled, pixels, probabilities.argmax(1)) if why else None,
        tuple(_writable("/".join(Path(name).parts[-2:])) for name in labelled.names),
    )
    truths = true_labels(images, predictions) if score else None
    if sort is not None:
        copies = copy_by_label(found, predictions.labels, sort)
        predictions = with_changes(predictions, copies=[_writable(str(path)) for path in copies])
    _write(predictions, chosen, out, top)
    if show is not None:
        from pathaware.inference.prediction_sheet import prediction_sheet

        title = f"{images.absolute().name} · {counted(len(found), 'picture')}, "
        title += counted(len(labelled.classes), "class")
        buffer = BytesIO()
        prediction_sheet(title, labelled, pixels, predictions, truths).save(buffer, "PNG")
        replace_file(show, buffer.getvalue())
        warn_undrawable(title, *labelled.classes)
    if why:
        print_problems(_suspicions(model, labelled), most=None)
    if truths is not None:
        print_problems(Score.of(predictions, truths).lines(), most=None)
    print_problems(problems)
    if sort is not None:
        print_problems([_sorted_line(predictions.labels, sort)])
    if problems:
        raise typer.Exit(1)


def _must_be_elsewhere(sort: Path, read: dict[str, Path | None], written: dict[str, Path | None]) -> None:
    """Raise if the folder for copies is in a folder that is read, or is a file that is written."""

    place = sort.resolve()
    for option, path in read.items():
        if path is not None and path.is_dir() and place.is_relative_to(path.resolve()):
            raise UsageError(
                f"{sort} is in the folder of {option}, where the copies would be read the next time; name a "
                "folder outside of it",
                field="sort",
            )
    for option, path in written.items():
        if path is not None and place == path.resolve():
            raise UsageError(f"{sort} is also the file of {option}", field="sort")


def _sorted_line(labels: list[str], folder: Path) -> str:
    from pathaware.data.store import counted

    counts = Counter(labels).most_common()
    parts = [f"{label} {count:,}" for label, count in counts[:10]]
    more = f" and {counted(len(counts) - 10, 'more folder')}" if counts[10:] else ""
    return f"copied {counted(len(labels), 'picture')} into {folder}: {', '.join(parts)}{more}"


def _suspicions(model: TrainedModel, support: SupportSet) -> list[str]:
    """A line per labelled picture whose label may be wrong."""
    from pathaware.inference.influence import suspicious_labels, times

    return [
        f"{support.names[i]}: the label {support.classes[int(support.labels[i])]} may be wrong; by the other "
        f"pictures, {support.classes[other]} is {times(-score)} as probable"
        for i, score, other in suspicious_labels(model, support)
    ]


def _format(given: str | None, out: Path | None) -> str:

    ending = out.suffix.lower() if out else ""
    if given is None and ending not in ENDINGS:
        known = ", ".join(name for name in ENDINGS if name)
        raise UsageError(f"{out} must end in one of {known}; or choose a --format", field="out")
    format = ENDINGS[ending] if given is None else given
    if format not in FORMATS:
        raise UsageError(f"must be one of {', '.join(FORMATS)}, not {format}", field="format")
    return format


def _write(predictions: Predictions, format: str, out: Path | None, top: int | None) -> None:
    """Write to the file, or to stdout, where nothing else is printed."""
    from pathaware.cli.show import print_table
    from pathaware.core.writing import replace_file
    from pathaware.training.tables import markdown

    table = predictions.table(2 if top is None else top)
    if format == "table" and out is None:
        print_table(table)
        return
    text = (
        predictions.csv()
        if format == "csv"
        else predictions.json(top)
        if format == "json"
        else markdown(table) + "\n"
    )
    if out is None:
        print(text, end="")
    else:
        replace_file(out, text)


def _writable(name: str) -> str:
    """Escape bytes of a file name that are not text."""
    return name.encode("utf-8", "backslashreplace").decode()
