"""`pathaware predict RUN --support DIR --images PATH`: label pictures after a few labelled examples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pathaware.inference.predictions import Predictions

FORMATS = ("table", "csv", "json")


def predict(
    run: Annotated[str, typer.Argument(help="Folder of a run on images, or `glyphs`.", metavar="RUN")],
    support: Annotated[Path, typer.Option(help="Folder, zip or tar with one folder of pictures per class.")],
    images: Annotated[Path, typer.Option(help="Pictures to label: a file, folder, zip or tar.")],
    format: Annotated[
        str | None, typer.Option(help="table, csv or json (default: by the name of --out, else table).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of stdout.")] = None,
    show: Annotated[Path | None, typer.Option(help="Also draw pictures and labels in this .png.")] = None,
    top: Annotated[
        int | None,
        typer.Option(help="Classes to show per picture (default: 2 in a table, all in json).", min=1),
    ] = None,
    score: Annotated[
        bool,
        typer.Option("--score", help="Report the accuracy, for pictures in folders named after classes."),
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite existing files.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Adapt to a few labelled pictures and label other pictures."""
    from pathaware.cli.options import adapt, must_be_new, read_support, say_all
    from pathaware.core.errors import UsageError
    from pathaware.inference.class_folders import read_images
    from pathaware.inference.predictions import Predictions, Score, true_labels
    from pathaware.inference.trained_model import TrainedModel

    chosen = _format(format, out)
    if chosen == "csv" and top is not None:
        raise UsageError("a csv has a column for every class; leave it out", field="top")
    for option, path in (("--out", out), ("--show", show)):
        if path is not None:
            must_be_new(option, path, replace)
    model = TrainedModel.open(run, device)
    labelled = read_support(support, model)
    names, pixels, problems = read_images(images, model.image_input)
    adapted = adapt(model, labelled)
    predictions = Predictions(
        [_writable(name) for name in names],
        tuple(_writable(name) for name in labelled.classes),
        adapted.probabilities(pixels),
    )
    truths = true_labels(images, predictions) if score and names else None
    _write(predictions, chosen, out, top)
    if show is not None:
        from pathaware.inference.prediction_sheet import prediction_sheet

        title = f"{images.absolute().name} · {len(names):,} pictures, {len(labelled.classes)} classes"
        prediction_sheet(title, labelled, pixels, predictions, truths).save(show, "PNG")
    if truths is not None:
        say_all(Score.of(predictions, truths).lines())
    if problems:
        say_all(problems)
        raise typer.Exit(1)


def _format(given: str | None, out: Path | None) -> str:
    from pathaware.core.errors import UsageError

    by_name = out.suffix[1:].lower() if out else ""
    format = given or (by_name if by_name in FORMATS else "table")
    if format not in FORMATS:
        raise UsageError(f"must be one of {', '.join(FORMATS)}, not {format}", field="format")
    return format


def _write(predictions: Predictions, format: str, out: Path | None, top: int | None) -> None:
    """Write to the file, or to stdout, where nothing else is printed."""
    from pathaware.cli.show import print_table
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
        out.write_text(text, encoding="utf-8")


def _writable(name: str) -> str:
    """Escape bytes of a file name that are not text."""
    return name.encode("utf-8", "backslashreplace").decode()
