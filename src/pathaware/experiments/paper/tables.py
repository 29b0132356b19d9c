"""A training that a table or a figure needs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pathaware.data.catalogue import store_folder
from pathaware.data.store import MANIFEST
from pathaware.experiments.paper.printed import ABLATION, IMAGE_ACCURACY, SINE_MSE, sine_mse
from pathaware.training.config import Config
from pathaware.training.metric import ACCURACY, MSE, Metric
from pathaware.training.presets import load_preset, presets
from pathaware.training.tables import NOTHING

# What of the training settings decides the outcome. The others say how and where it is computed.
_DECISIVE = ("tasks", "rate", "schedule", "clip", "guard", "pretrain", "dtype")


@dataclass(frozen=True)
class Trial:
    """A configuration but for its seed and its length. `name` is for folders and files."""

    name: str
    tables: Mapping[str, Mapping[str, Any]]

    def config(self, seed: int = 0, iterations: int | None = None) -> Config:
        """Of one run; its length is the paper's unless told otherwise."""
        tables: dict[str, Any] = copy.deepcopy({k: dict(v) for k, v in self.tables.items()})
        training = tables.setdefault("training", {})
        training["seed"] = seed
        if iterations is not None:
            training["iterations"] = iterations
        return Config.from_dict(tables)

    def changed(self, settings: Mapping[str, Mapping[str, Any]]) -> Trial:
        """The same with other settings."""
        names = [*self.tables, *(table for table in settings if table not in self.tables)]
        return Trial(self.name, {n: {**self.tables.get(n, {}), **settings.get(n, {})} for n in names})


def signature(config: Config) -> str:
    """Equal for runs that differ in seed, length and machinery only."""
    problem: Any = config.problem
    settings = {k: v for k, v in asdict(problem).items() if k != "data_dir"}
    training = {name: getattr(config.training, name) for name in _DECISIVE}
    return repr(
        (
            config.problem.name,
            settings,
            config.method,
            sorted(config.method_settings.items(), key=str),
            training,
        )
    )


# What is to be made: a table of places, each filled by a trial or left empty for a reason.


@dataclass(frozen=True)
class Place:
    """A number of a table: the paper's, the trial that makes ours, and why it cannot be made if it cannot."""

    trial: Trial
    printed: str = NOTHING
    reason: str = ""


@dataclass(frozen=True)
class Line:
    """A row: `key` names it on the command line, `label` in the table; its places by column."""

    key: str
    label: str
    places: Mapping[str, Place]
    group: str = ""


@dataclass(frozen=True)
class Goal:
    """A table of the paper. With `equal` all of its rows must have been trained for as many iterations, with
    `timed` for as much time; a run of such a table is of no use to others."""

    name: str
    title: str
    metric: Metric
    columns: Sequence[str]
    lines: Sequence[Line]
    notes: Sequence[str] = ()
    equal: bool = False
    timed: bool = False

    def trials(self) -> list[Trial]:
        return [place.trial for line in self.lines for place in line.places.values()]


# Tables 1 and 2: few-shot classification, our methods and the ones the paper cites.


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


def is_imported(data: str) -> bool:
    """Whether the data set is on this machine."""
    return data == "glyphs" or (store_folder(data, None) / MANIFEST).exists()


def table1(available: Callable[[str], bool] = is_imported) -> Goal:
    columns = _columns("table1", ("miniimagenet",), available)
    return Goal("table1", "Table 1: few-shot classification of miniImageNet", ACCURACY, *columns, NOTES)


def table2(available: Callable[[str], bool] = is_imported) -> Goal:
    columns = _columns("table2", ("cifar-fs", "tieredimagenet"), available)
    title = "Table 2: few-shot classification of CIFAR-FS and tieredImageNet"
    return Goal("table2", title, ACCURACY, *columns, NOTES)


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


# Table 3: regression of sine waves.


COLUMN = "MSE"
SINE_NOTES = ("Mean squared error over new waves, 1,000 points each, with 95 % intervals.",)


def table3() -> Goal:
    lines = [
        Line(
            f"k{shots}-{method}",
            f"K = {shots}, {LABELS[method].partition(',')[0]}",
            {COLUMN: Place(sine_trial(shots, method), sine_mse(shots, method))},
            group=str(shots),
        )
        for shots, cited in SINE_MSE.items()
        for method in cited
    ]
    return Goal("table3", "Table 3: sine regression", MSE, [COLUMN], lines, SINE_NOTES)


def sine_trial(shots: int, method: str) -> Trial:
    return Trial(
        f"sine-k{shots}-{method}", {"problem": {"name": "sine", "shots": shots}, "method": {"name": method}}
    )


# Table 4: what each part of PAMELA adds, on the same data and for the same number of iterations.


# One Q for every parameter, as Meta-SGD has it; PAMELA's own is one for each filter.
ABLATION_ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "maml": ("MAML", {"name": "maml"}),
    "q0-single": ("MAML + Q₀ (single step)", {"name": "meta-sgd"}),
    "q0-multiple": ("MAML + Q₀ (multiple steps)", {"name": "meta-sgd", "steps": 5}),
    "q": ("MAML + Q", {"name": "pamela", "skip": None}),
    "p": ("MAML + P", {"name": "pamela", "q": "constant"}),
    "qp1": ("MAML + Q + P¹", {"name": "pamela", "skip": 1}),
    "qp2": ("MAML + Q + P²", {"name": "pamela", "skip": 2}),
    "qp3": ("MAML + Q + P³", {"name": "pamela", "skip": 3}),
    "qp4": ("MAML + Q + P⁴", {"name": "pamela", "skip": 4}),
}


def table4(data: str, available: Callable[[str], bool] = is_imported) -> Goal:
    column = f"{DATA.get(data, data)} 5-shot"
    lines = [
        Line(
            key,
            label,
            {column: _ablation_place(data, key, method, available(data))},
            group="parts" if key[:2] != "qp" else "skips",
        )
        for key, (label, method) in ABLATION_ROWS.items()
    ]
    notes = [
        "Accuracy in % on new 5-way 5-shot tasks, with 95 % intervals; all rows trained equally long, with "
        "the paper's settings. The paper's numbers are of miniImageNet and 60,000 iterations.",
    ]
    return Goal("table4", "Table 4: dissecting PAMELA", ACCURACY, [column], lines, notes, equal=True)


def _ablation_place(data: str, key: str, method: dict[str, Any], available: bool) -> Place:
    printed = ABLATION.get(key, NOTHING)
    trial = Trial(f"{data}-5shot-ablation-{key}", base(data, method))
    return Place(trial, printed, "" if available else "data set not imported")
