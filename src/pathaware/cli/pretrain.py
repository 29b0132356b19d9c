"""`pathaware pretrain DATA …`: train features by supervised classification of all training classes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pathaware.cli.options import (
    METHOD,
    OUTPUT,
    TRAINING,
    Given,
    Json,
    argument,
    complete_data,
    complete_run,
    examples,
    of_settings,
    panel_option,
    with_settings,
)
from pathaware.core.errors import UsageError
from pathaware.training.settings import Pretraining

if TYPE_CHECKING:
    from pathaware.training.run_folder import PretrainRun

EXAMPLES = examples(
    "pathaware pretrain cifar-fs --epochs 60 --crop 1 --out runs/features",
    "pathaware pretrain miniimagenet --model resnet12 --minutes 7 --cutmix 0.5",
    "pathaware pretrain miniimagenet --teacher runs/resnet12 --set smoothing=0.1",
    "pathaware pretrain mine --teacher photos --set match=1 --set teacher_views=4",
    "pathaware pretrain --resume runs/features",
)


@with_settings
def pretrain(
    data: list[str] | None = argument(
        "Imported data sets; classes of several are learned together, at the size of the first.",
        "DATA",
        default=None,
        complete=complete_data,
    ),
    settings: Given = of_settings(
        Pretraining,
        *("splits", "data_dir", "model_name", "head", "epochs", "crop", "cutmix", "rotation", "teacher"),
        *("seed", "device"),
    ),
    width: str | None = panel_option(
        None,
        METHOD,
        "Filters per layer of conv4; of resnet12, those of its first or of all four blocks (64,128,256,480).",
        shown="64",
    ),
    minutes: float | None = panel_option(
        None,
        TRAINING,
        "Train for as many epochs as fit into this time, found by timing a few steps.",
        shown="--epochs decides",
    ),
    setting: list[str] | None = panel_option(
        None,
        TRAINING,
        "Any other setting, such as batch=128, rate=0.05, ema=0.9995. Can be repeated.",
        "--set",
        metavar="NAME=VALUE",
    ),
    resume: Path | None = panel_option(
        None,
        TRAINING,
        "Resume the pretraining in this folder, with the settings it began with.",
        shown="none",
        metavar="RUN",
        complete=complete_run,
    ),
    out: Path | None = panel_option(
        None, OUTPUT, "New folder for the run.", shown="runs/pretrain-DATA-MODEL-seedN"
    ),
    json: Json = False,
) -> None:
    """Train features by classifying all training classes of imported data sets.

    The result is a folder from which meta-training can start: name it in the setting training.start.
    """
    if resume is not None:
        if data:
            raise UsageError("the settings are those of the run; leave out the data sets", field="resume")
        from pathaware.training.run_files import must_exist
        from pathaware.training.run_folder import PretrainRun

        must_exist(resume, "resume")
        _train(PretrainRun.open(resume).settings, resume, json, resume=True)
        return
    if not data:
        raise UsageError("DATA: name at least one imported data set; see `pathaware data list`")
    if "epochs" in settings and minutes is not None:
        raise UsageError("give the time or the number of epochs, not both", field="minutes")
    if minutes is not None and not 0 < minutes < 1e6:
        raise UsageError(f"{minutes} is not allowed; must be a positive number", field="minutes")
    from pathaware.core.settings import trust
    from pathaware.training.config import parse_value

    tables = {"data": ",".join(data), **settings}
    if width is not None:
        tables |= {"widths": width} if "," in width else {"width": parse_value(width)}
    for text in setting or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"{text!r} is not of the form NAME=VALUE", field="set")
        tables[name] = parse_value(value)
    trust({"pretraining": tables})
    _train(Pretraining.from_dict(tables), out, json, minutes=minutes)


def _train(settings: Pretraining, folder: Path | None, json: bool, **options: Any) -> None:
    from pathaware.training.loop import QUIET
    from pathaware.training.progress import ProgressDisplay
    from pathaware.training.supervised import pretrain

    display = QUIET if json else ProgressDisplay
    _print(pretrain(settings, folder, display=display, find=_find_teacher, **options), json)


def _find_teacher(name: str) -> Path:
    from pathaware.inference.trained_model import find_run

    return find_run(name, field="teacher")


def _print(run: PretrainRun, json: bool) -> None:
    """Print what was trained and how good its features are."""
    import json as jsonlib

    from pathaware.data.store import counted

    found = run.load()
    rows = list(run.metrics())
    summary = {
        "folder": str(run.folder),
        "classes": len(found.classes),
        "epochs": run.settings.epochs,
        "seconds": rows[-1]["seconds"],
        "loss": rows[-1]["loss"],
        "checkpoint_epoch": found.epoch,
        "prototype_accuracy": found.accuracy,
    }
    if json:
        print(jsonlib.dumps(summary))
        return
    trained = f"{counted(len(found.classes), 'class')}, {counted(run.settings.epochs, 'epoch')}"
    print(f"{trained}, loss {summary['loss']:.4f}")
    if found.accuracy is not None:
        accuracy = f"{100 * found.accuracy:.2f} % at epoch {found.epoch}"
        print(f"5-way 5-shot prototypes of validation classes: {accuracy}")
    start = shlex.quote(f"training.start={run.folder}")
    print(f"start a run from it with: pathaware train … --set {start}")
