"""`pathaware learn DIR`: a classifier for your own class folders, measured and saved, in one command."""

from __future__ import annotations

import json as jsonlib
import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pathaware.cli.options import (
    DATA,
    METHOD,
    OUTPUT,
    Device,
    Json,
    argument,
    complete_model,
    examples,
    flag,
    listed_problems,
    must_be_new,
    must_be_png,
    panel_option,
    print_problems,
    print_warning,
    warn_undrawable,
)
from pathaware.core.errors import UsageError

if TYPE_CHECKING:
    from pathaware.inference.learning import Learned
    from pathaware.inference.predictions import Score
    from pathaware.training.tables import Table

DEFAULT = "photos"
WIDEST = 20
"""Largest number of classes of which a confusion matrix is printed."""
CORNER = "true class, labelled as"
EXAMPLES = examples(
    "pathaware learn birds",
    "pathaware learn birds --out birds-classifier --show wrong.png",
    "pathaware learn letters --model glyphs",
)


def learn(
    folder: Path = argument("Folder, zip or tar with one folder of pictures per class.", "DIR"),
    model: str = panel_option(
        DEFAULT,
        METHOD,
        "Folder of a run, a shipped model, or a backbone: efficientnet-lite2, timm:NAME or "
        "package.module:function.",
        complete=complete_model,
    ),
    weights: Path | None = panel_option(
        None, METHOD, "Weights of a backbone: safetensors, or a PyTorch state dict.", shown="none"
    ),
    size: int | None = panel_option(
        None, METHOD, "Side of a backbone's images in pixels.", shown="its own", min=16, max=1024
    ),
    hold_out: float = panel_option(
        0.2,
        DATA,
        "Fraction of each class that each fold of the cross-validation holds out, at most 0.5; 0.2 "
        "makes 5 folds.",
    ),
    skip: bool = flag(
        "--skip-unreadable",
        DATA,
        "List pictures that cannot be read or are in no class folder, and leave them out.",
    ),
    seed: int = panel_option(0, DATA, "Seed of the choice of pictures per fold.", min=0),
    out: Path | None = panel_option(None, OUTPUT, "New folder for the classifier.", shown="DIR-classifier"),
    show: Path | None = panel_option(None, OUTPUT, "Draw the misclassified pictures in this .png file."),
    replace: bool = flag("--replace", OUTPUT, "Replace an earlier classifier and the file of --show."),
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Learn to label pictures from class folders.

    Adapts a model to them, measures its accuracy by cross-validation, on pictures that it did not learn from,
    and saves a classifier for predict, serve and export.
    """
    from pathaware.core.settings import trust
    from pathaware.data.store import counted
    from pathaware.inference import learning
    from pathaware.inference.class_folders import SupportRefused, read_labelled
    from pathaware.inference.trained_model import TrainedModel

    learning.check_hold_out(hold_out)
    target = out or Path(f"{folder.resolve().name.split('.')[0]}-classifier")
    learning.must_be_free(target, replace)
    if show is not None:
        must_be_new("--show", show, replace)
        if show.resolve() == target.resolve():
            raise UsageError(f"{show} is also the folder of the classifier", field="show")
        must_be_png("--show", show)
    if learning.is_backbone(model):
        trust({"learn": {"model": model}})
        opened = learning.untrained_model(model, weights, size, device)
    else:
        if weights is not None:
            raise UsageError("is for a backbone: timm:NAME or package.module:function", field="weights")
        if size is not None:
            raise UsageError("is for a backbone: timm:NAME or package.module:function", field="size")
        try:
            opened = TrainedModel.open(model, device)
        except UsageError as error:
            error.field = "model" if error.field == "run" else error.field
            raise
    try:
        with listed_problems():
            labelled = read_labelled(folder, opened.image_input, merge_splits=True, skip=skip, field="folder")
    except SupportRefused as refused:
        if not skip:
            refused.message += "; --skip-unreadable leaves such files out"
        raise
    print_problems(labelled.problems)
    test, notes = learning.test_images(labelled)
    memory = opened.memory
    with memory.kept(str(folder.resolve())) if memory is not None else nullcontext():
        learned = learning.learn(opened, labelled.support, labelled.names, test, hold_out=hold_out, seed=seed)
    if count := len(labelled.problems):
        notes.append(f"left out {counted(count, 'file')} that cannot be used")
    notes += learning.notes_on(labelled)
    duplicates = learning.duplicates_across(labelled.support, learned.folds)
    labels = labelled.support.labels
    if same := [(one, other) for one, other in duplicates if labels[one] == labels[other]]:
        copies = len({second for _, second in same})
        are = f"{counted(copies, 'held-out picture')} {'is' if copies == 1 else 'are'}"
        first, second = (labelled.names[i] for i in same[0])
        notes.append(
            f"{are} nearly equal to learned ones, such as {second} to {first}; that makes the accuracy too "
            "good"
        )
    if learned.skipped:
        measured = len(learned.test)
        pictures = counted(measured + learned.skipped, "picture")
        notes.append(
            f"accuracy was measured on {measured:,} of {pictures}; on all of them it would take more than "
            f"{learning.VALIDATION_SECONDS:.0f} s"
        )
    if opened.typical is not None and (unlike := opened.typical.warning(labelled.support.pixels)):
        print_warning(unlike)
    learning.save_classifier(learned, opened, target, replace=replace)
    if show is not None:
        _draw(learned, show)
        warn_undrawable(*learned.support.classes)
    advice = learning.training_advice(folder, labelled)
    if json:
        print(jsonlib.dumps(_summary(learned, target, duplicates, labelled.problems, notes, advice)))
    else:
        _print(learned, target, notes, advice)


def _print(learned: Learned, target: Path, notes: list[str], advice: str) -> None:
    from pathaware.cli import one_line
    from pathaware.cli.show import command_line, plugin_modules, print_table
    from pathaware.data.episodes import ENOUGH
    from pathaware.data.store import counted

    classes, score = learned.support.classes, learned.score
    counts = learned.support.labels.bincount()
    least, most = int(counts.min()), int(counts.max())
    each = counted(most, "picture") if least == most else f"{least:,} to {most:,} pictures"
    print(f"learned {counted(len(classes), 'class')} from {each} each")
    for note in notes:
        print(one_line(note))
    if score is None:
        print("accuracy was not measured: no picture was held out; that takes a class with two or more")
    else:
        if learned.fold_count > 1:
            pictures = counted(score.total, "picture")
            right = f"{score.right} of {pictures} right, each by a classifier that had not learned it"
        else:
            right = f"{score.right} of {counted(score.total, 'held-out picture')} right"
        low, high = score.interval
        mean = f"; mean over classes {score.class_mean:.2f}" if score.unequal else ""
        print(f"accuracy {score.accuracy:.4f}: {right}; 95 % interval {low:.2f} to {high:.2f}{mean}")
        if missing := learned.unmeasured:
            names = ", ".join(missing[:10]) + (f" and {len(missing) - 10:,} more" if missing[10:] else "")
            print(one_line(f"not measured, because no picture of it could be held out: {names}"))
        if len(classes) <= WIDEST:
            if (table := _confusion_table(score, classes)) is not None:
                print_table(table)
            else:
                print("the confusion matrix does not fit the terminal; --json prints it")
        assert learned.predictions is not None
        doubtful = set(learned.suspicious)
        for i in learned.wrong[:10]:
            truth = classes[int(learned.support.labels[learned.test[i]])]
            label, probability = learned.predictions.ranked(i, 1)[0]
            line = f"wrong: {learned.predictions.images[i]} is {truth}, labelled {label} ({probability:.2f})"
            print(one_line(line + ("; is it in the right folder?" if i in doubtful else "")))
        if len(learned.wrong) > 10:
            print(f"… and {len(learned.wrong) - 10:,} more wrong; --show draws them")
    if len(classes) >= ENOUGH[0]:
        print(one_line(advice))
    predict = command_line("predict", target, "--images", "PICTURES", modules=plugin_modules(target))
    print(f"saved in {target}; label others with: {predict}")


def _confusion_table(score: Score, classes: Sequence[str]) -> Table | None:
    """The confusion matrix as it fits the terminal: with names over columns, else with numbers, else none."""
    from rich.cells import cell_len

    from pathaware.cli import one_line
    from pathaware.inference.learning import confusion
    from pathaware.training.tables import Table

    names = [one_line(name) for name in classes]
    cells = [row[1:] for row in confusion(score, classes)]
    named = Table.of("", [CORNER, *names], [[name, *row] for name, row in zip(names, cells, strict=True)])
    rows = [[f"{i} {name}", *row] for i, (name, row) in enumerate(zip(names, cells, strict=True), 1)]
    numbered = Table.of("", [CORNER, *map(str, range(1, len(names) + 1))], rows)
    if not sys.stdout.isatty():
        return named
    room = shutil.get_terminal_size().columns
    for table in (named, numbered):
        columns = zip(table.header, *(row.cells for row in table.rows), strict=True)
        if 1 + sum(3 + max(map(cell_len, column)) for column in columns) <= room:
            return table
    return None


def _summary(
    learned: Learned,
    target: Path,
    duplicates: list[tuple[int, int]],
    problems: Sequence[str],
    notes: list[str],
    advice: str,
) -> dict[str, Any]:
    from pathaware.inference.learning import distinct_pairs

    score, classes = learned.score, learned.support.classes
    given = {} if score is None else {truth: dict(labels) for truth, labels in score.given.items()}
    wrong, doubtful = [], set(learned.suspicious)
    for i in learned.wrong:
        assert learned.predictions is not None
        truth = classes[int(learned.support.labels[learned.test[i]])]
        wrong.append(
            {
                "picture": learned.predictions.images[i],
                "class": truth,
                "label": learned.predictions.labels[i],
                "suspicious": i in doubtful,
            }
        )
    return {
        "classifier": str(target),
        "classes": list(classes),
        "pictures": len(learned.names),
        "held_out": len(learned.test),
        "folds": learned.fold_count,
        "accuracy": None if score is None else score.accuracy,
        "interval": None if score is None else score.interval,
        "class_mean": None if score is None else score.class_mean,
        "unmeasured": learned.unmeasured,
        "confusion": given,
        "wrong": wrong,
        "near_duplicates": [[learned.names[a], learned.names[b]] for a, b in distinct_pairs(duplicates)],
        "left_out": list(problems),
        "notes": notes,
        "training": advice,
    }


def _draw(learned: Learned, path: Path) -> None:
    """Draw the pictures with wrong labels, if any, beside those that were learned."""
    from pathaware.core.writing import replace_file
    from pathaware.data.store import counted
    from pathaware.inference.learning import without
    from pathaware.inference.prediction_sheet import prediction_sheet
    from pathaware.inference.predictions import Predictions

    rows, predictions = learned.wrong, learned.predictions
    chosen = learned.test[rows]
    probabilities = (
        learned.classifier.probabilities(learned.support.pixels[:0])
        if predictions is None
        else predictions.probabilities[rows]
    )
    names = [learned.names[i] for i in chosen.tolist()]
    found = Predictions(names, learned.support.classes, probabilities)
    truths = [learned.support.classes[i] for i in learned.support.labels[chosen].tolist()]
    support, count = learned.support, len(learned.test)
    if learned.fold_count > 1:
        pictures = counted(count, "picture")
        title = f"{len(rows)} of {pictures} got a wrong label from a classifier that had not learned them"
    else:
        title = f"{len(rows)} of {counted(count, 'held-out picture')} got a wrong label"
        support = without(support, learned.test)
    buffer = BytesIO()
    prediction_sheet(title, support, learned.support.pixels[chosen], found, truths).save(buffer, "PNG")
    replace_file(path, buffer.getvalue())
