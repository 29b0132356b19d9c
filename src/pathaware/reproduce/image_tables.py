"""Tables 1 and 2: few-shot classification, our methods and the ones the paper cites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pathaware.datasets.location import store_folder
from pathaware.datasets.store import MANIFEST
from pathaware.presets import load_preset, presets
from pathaware.report.paper import IMAGE_ACCURACY
from pathaware.report.tables.model import NOTHING
from pathaware.reproduce.goal import Goal, Line, Place
from pathaware.reproduce.trial import Trial

TUNED = "pamela-tuned"
LABELS = {
    "maml": "MAML",
    "maml++": "MAML++",
    "fomaml": "FOMAML",
    "reptile": "Reptile",
    "meta-lstm": "Meta-LSTM",
    "meta-sgd": "Meta-SGD",
    "imaml": "iMAML-HF",
    "mt-net": "MT-Net",
    "r2d2": "R2D2",
    "l-maml": "L-MAML",
    "hsml": "HSML",
    "pamela": "PAMELA, the paper's settings",
    TUNED: "PAMELA, our settings",
}
DATA = {"miniimagenet": "miniImageNet", "cifar-fs": "CIFAR-FS", "tieredimagenet": "tieredImageNet"}
NOTES = (
    "Accuracy in % on new 5-way tasks, with 95 % intervals. Single models of Conv-4 with 64 filters, the "
    "checkpoint chosen on validation classes, batch norm transductive, as in the paper.",
    "Our settings: features pretrained by classification, stronger augmentation, a head that starts at zero, "
    "one Q for each channel of each tensor; the preset has them.",
)


def imported(data: str) -> bool:
    """Whether the data set is on this machine."""
    return data == "glyphs" or (store_folder(data, None) / MANIFEST).exists()


def table1(available: Callable[[str], bool] = imported) -> Goal:
    columns = _columns("table1", ("miniimagenet",), available)
    return Goal("table1", "Table 1: few-shot classification of miniImageNet", "accuracy", *columns, NOTES)


def table2(available: Callable[[str], bool] = imported) -> Goal:
    columns = _columns("table2", ("cifar-fs", "tieredimagenet"), available)
    title = "Table 2: few-shot classification of CIFAR-FS and tieredImageNet"
    return Goal("table2", title, "accuracy", *columns, NOTES)


def _columns(
    table: str, sets: tuple[str, ...], available: Callable[[str], bool]
) -> tuple[list[str], list[Line]]:
    columns = {f"{DATA[data]} {shots}-shot": (data, shots) for data in sets for shots in (1, 5)}
    cited = {method for key in columns.values() for method in IMAGE_ACCURACY[key]} | {TUNED}
    lines = [
        Line(
            method,
            label,
            {name: _place(table, method, *where, available) for name, where in columns.items()},
            group="ours" if method in ("pamela", TUNED) else "others",
        )
        for method, label in LABELS.items()
        if method in cited
    ]
    return list(columns), lines


def _place(table: str, method: str, data: str, shots: int, available: Callable[[str], bool]) -> Place:
    printed = IMAGE_ACCURACY[data, shots].get("pamela" if method == TUNED else method, NOTHING)
    name = f"{table}-{data}-{method}-{shots}shot"
    problem = {"name": "classification", "data": data, "shots": shots}
    defaults: dict[str, dict[str, Any]] = {
        "problem": problem,
        "method": {"name": method},
    }  # which are the paper's
    tables = load_preset(name) if name in presets() else defaults
    trial = Trial(name.removeprefix(f"{table}-"), tables)
    return Place(trial, printed, "" if available(data) else "data set not imported")


def base(data: str, method: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """5-way 5-shot with the paper's settings; those of glyphs, which suit a CPU, are its own."""
    own = load_preset(data) if data in presets() else {}
    return {
        "problem": {"name": "classification", "data": data, **own.get("problem", {}), "shots": 5},
        "method": {**own.get("method", {}), **method},
        "training": dict(own.get("training", {})),
    }
