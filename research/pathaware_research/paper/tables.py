"""The tables of the paper: which experiment fills each cell, and what the paper prints there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pathaware.core.errors import UsageError
from pathaware.core.rule import Rule
from pathaware.data.catalogue import GLYPHS, store_folder
from pathaware.data.store import MANIFEST
from pathaware.methods import METHODS
from pathaware.methods.method import Method
from pathaware.report.paper_numbers import IMAGE_ACCURACY, SINE_MSE, sine_mse
from pathaware.training.metric import ACCURACY, MSE, Metric
from pathaware.training.presets import (
    DIRECT,
    PRINTED,
    PRINTED_PAMELA,
    PRINTED_SINE,
    SUGGESTED,
    load_preset,
    paper_problem,
    presets,
)
from pathaware.training.tables import NOTHING, Remark
from pathaware_research.experiments import Experiment

NOT_RUN = Remark("not run yet")
CITED = ("maml", "q0-single")
"""Rows of Table 4 whose printed numbers are those of Finn et al. and of Li et al., from other code."""


@dataclass(frozen=True)
class CellSpec:
    """The experiment that fills a cell, the paper's number, and the reason if it is unavailable."""

    experiment: Experiment
    printed: str = NOTHING
    reason: str = ""


def _rank(cell: CellSpec) -> int:
    claimed = cell.experiment.tables["method"]["name"] in ("pamela", "maml", "meta-sgd")
    return 2 if cell.printed == NOTHING else 0 if claimed else 1


@dataclass(frozen=True)
class RowSpec:
    """A row: `key` names it on the command line, `label` in the table; its cells by column."""

    key: str
    label: str
    cells: Mapping[str, CellSpec]
    group: str = ""


@dataclass(frozen=True)
class TableSpec:
    """A table of the paper.

    With `equal_iterations` all rows must be trained for the same number of iterations, with `equal_time` for
    the same time; runs of the latter are of no use to other tables. With `iterations`, only runs of that
    length count.
    """

    name: str
    title: str
    metric: Metric
    columns: Sequence[str]
    rows: Sequence[RowSpec]
    notes: Sequence[str] = ()
    equal_iterations: bool = False
    equal_time: bool = False
    iterations: int | None = None

    def experiments(self) -> list[Experiment]:
        return [cell.experiment for row in self.rows for cell in row.cells.values()]

    def available(self) -> list[Experiment]:
        """The experiments that can be trained here, the most informative first.

        The paper's claims are about PAMELA, MAML and Meta-SGD; then come other cells that it prints.
        """
        cells = [cell for row in self.rows for cell in row.cells.values() if not cell.reason]
        return [cell.experiment for cell in sorted(cells, key=_rank)]

    def with_settings(self, settings: Mapping[str, Mapping[str, Any]]) -> TableSpec:
        """The same table with some settings of every experiment replaced."""
        return self._map(lambda c: replace(c, experiment=c.experiment.with_settings(settings)), self.columns)

    def select(self, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> TableSpec:
        """These rows, by key, and columns, by title or key; all of them if none is named."""
        known = [row.key for row in self.rows]
        for key in rows:
            if key not in known:
                raise UsageError(
                    f"{key!r} is not a row of {self.name}; it has {', '.join(known)}", field="only"
                )
        keys = {column_key(column): column for column in self.columns}
        for name in columns:
            if column_key(name) not in keys:
                raise UsageError(
                    f"{name!r} is not a column of {self.name}; it has {', '.join(keys)}", field="columns"
                )
        wanted = {column_key(name) for name in columns} or set(keys)
        chosen = self._map(lambda cell: cell, [column for key, column in keys.items() if key in wanted])
        return replace(chosen, rows=[row for row in chosen.rows if not rows or row.key in rows])

    def _map(self, change: Callable[[CellSpec], CellSpec], columns: Sequence[str]) -> TableSpec:
        rows = [replace(row, cells={c: change(row.cells[c]) for c in columns}) for row in self.rows]
        return replace(self, rows=rows, columns=list(columns))


def column_key(column: str) -> str:
    """The name of a column on the command line.

    >>> column_key("CIFAR-FS 5-shot")
    'cifar-fs-5shot'
    """
    return "-".join(column.lower().replace("-shot", "shot").replace(",", "").split())


# Tables 1 and 2: few-shot image classification.


LABELS = {
    "maml": "MAML",
    "maml++": "MAML++",
    "fomaml": "FOMAML",
    "reptile": "Reptile",
    "meta-lstm": "Meta-LSTM",
    "meta-sgd": "Meta-SGD",
    "imaml-hf": "iMAML-HF",
    "mt-net": "MT-Net",
    "r2d2": "R2D2",
    "l-maml": "L-MAML",
    "hsml": "HSML",
    "pamela": "PAMELA, speed 1",
    "pamela-direct": "PAMELA, Q learned directly",
}
"""Q is learned at the paper's speed, or a hundred times as fast, as the step size itself (`DIRECT`)."""
BEYOND = {
    "meta-curvature": "Meta-Curvature",
    "warp-grad": "WarpGrad",
    "alfa": "ALFA",
    "l2f": "L2F",
    "metal": "MeTAL",
    "gap": "GAP",
    "anil": "ANIL",
    "boil": "BOIL",
    "prototypical": "Prototypical",
}
"""Methods that the paper does not compare with."""
FULL_LENGTH = 60_000
"""The paper's number of iterations for images."""
FURTHER = ("maml", "fomaml", "meta-sgd", "r2d2", "prototypical", "pamela", "pamela-direct")
"""Methods of the table of further data sets: one of each kind."""
DATA = {
    "miniimagenet": "miniImageNet",
    "cifar-fs": "CIFAR-FS",
    "tieredimagenet": "tieredImageNet",
    "fc100": "FC100",
    "omniglot": "Omniglot",
}
NOTES = (
    "Accuracy in % on new 5-way tasks, with 95 % intervals. Single models of Conv-4 with 64 filters, the "
    "checkpoint chosen on validation classes. Batch: batch norm uses the statistics of all queries, as in "
    "MAML's program; the paper does not mention it.",
)


CHOSEN: dict[tuple[str, str], dict[str, Any]] = {
    ("imaml-hf", "miniimagenet"): {"strength": 30.0},
    ("imaml-hf", "cifar-fs"): {"strength": 10.0},
}
"""Settings of a method on a data set that are not its defaults, chosen on validation classes."""


def is_imported(data: str) -> bool:
    """True if the data set is on this machine."""
    return data == GLYPHS or (store_folder(data, None) / MANIFEST).exists()


def table1(available: Callable[[str], bool] = is_imported) -> TableSpec:
    columns = _columns("table1", ("miniimagenet",), available)
    return TableSpec("table1", "Table 1: few-shot classification of miniImageNet", ACCURACY, *columns, NOTES)


def table2(available: Callable[[str], bool] = is_imported) -> TableSpec:
    columns = _columns("table2", ("cifar-fs", "tieredimagenet"), available)
    title = "Table 2: few-shot classification of CIFAR-FS and tieredImageNet"
    return TableSpec("table2", title, ACCURACY, *columns, NOTES)


def further(available: Callable[[str], bool] = is_imported) -> TableSpec:
    """Data sets that the paper does not have, with its settings."""
    columns = _columns("further", ("fc100", "omniglot"), available, FURTHER)
    return TableSpec("further", "Further data sets: FC100 and Omniglot", ACCURACY, *columns, NOTES)


def full_length(available: Callable[[str], bool] = is_imported) -> TableSpec:
    """The paper's own rows and MAML++, trained for as long as in the paper."""
    methods = ("maml", "maml++", "meta-sgd", "pamela", "pamela-direct")
    columns = _columns("full", ("miniimagenet", "cifar-fs"), available, methods)
    title = f"After the paper's {FULL_LENGTH:,} iterations"
    return TableSpec("full", title, ACCURACY, *columns, NOTES, iterations=FULL_LENGTH)


def _columns(
    table: str,
    sets: tuple[str, ...],
    available: Callable[[str], bool],
    methods: Sequence[str] = (*LABELS, *BEYOND),
) -> tuple[list[str], list[RowSpec]]:
    columns = {f"{DATA[data]} {shots}-shot": (data, shots) for data in sets for shots in (1, 5)}
    rows = [
        RowSpec(
            method,
            label,
            {name: _cell(table, method, data, shots, available) for name, (data, shots) in columns.items()},
            group="beyond" if method in BEYOND else "ours" if method.startswith("pamela") else "others",
        )
        for method, label in (LABELS | BEYOND).items()
        if method in methods
    ]
    return list(columns), rows


def _cell(table: str, method: str, data: str, shots: int, available: Callable[[str], bool]) -> CellSpec:
    printed = IMAGE_ACCURACY.get((data, shots), {}).get(method, NOTHING)
    own, direct = method.removesuffix("-direct"), method.endswith("-direct")
    preset = f"{table}-{data}-{own}-{shots}shot"
    problem = {**paper_problem(data), "shots": shots}
    # The defaults are the paper's settings.
    chosen = {"name": own, **CHOSEN.get((method, data), {})}
    tables = load_preset(preset) if preset in presets() else {"problem": problem, "method": chosen}
    if direct:
        tables["method"] = {**tables["method"], **DIRECT}
    experiment = Experiment(f"{data}-{own}{_speed(tables['method'])}-{shots}shot", tables)
    return CellSpec(experiment, printed, "" if available(data) else "data set not imported")


def _speed(method: Mapping[str, Any]) -> str:
    """The part of an experiment's name that tells speeds of Q apart; none if Q is learned directly."""
    if method["name"] != "pamela" or method.get("q") == "constant" or method.get("rate") == DIRECT["rate"]:
        return ""
    return f"-s{1 / method.get('q_start', 1.0):g}"


def speeds(data: str, method: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings for the paper's speed of Q, and for Q learned directly; the same for rows without Q.

    Both begin at the step size of the preset named after the data set, or the paper's.
    """
    if method["name"] != "pamela":
        return {}, {}
    own = load_preset(data)["method"] if data in presets() else PRINTED_PAMELA
    size = own["rate"] * own["q_start"]
    slow, direct = {"rate": size, "q_start": 1.0}, {"rate": 1.0, "q_start": size}
    return direct if method.get("q") == "constant" else slow, direct


def base(data: str, method: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings of a 5-way 5-shot experiment: the paper's, or those of the preset named after the data set."""
    own = load_preset(data, method["name"]) if data in presets() else {}
    return {
        "problem": {**paper_problem(data), **own.get("problem", {}), "shots": 5},
        "method": {**own.get("method", {}), **method},
        "training": dict(own.get("training", {})),
    }


# Table 3: regression of sine waves.


COLUMN = "MSE"
SINE_NOTES = ("Mean squared error over new waves, 1,000 points each, with 95 % intervals.",)


def table3(guard: bool = True) -> TableSpec:
    """With `guard` False, the same rows trained and evaluated without the divergence guard."""
    rows = [
        RowSpec(
            f"k{shots}-{method}",
            f"K = {shots}, {'PAMELA, speed 10' if method == 'pamela' else LABELS[method]}",
            {COLUMN: CellSpec(sine_experiment(shots, method, guard), sine_mse(shots, method))},
            group=str(shots),
        )
        for shots, cited in SINE_MSE.items()
        for method in (*cited, "pamela-direct")
    ]
    return TableSpec("table3", "Table 3: sine regression", MSE, [COLUMN], rows, SINE_NOTES)


def sine_experiment(shots: int, method: str, guard: bool = True) -> Experiment:
    own = method.removesuffix("-direct")
    tables: dict[str, dict[str, Any]] = {
        "problem": {"name": "sine", "shots": shots},
        "method": {"name": own, **(DIRECT if own != method else SUGGESTED["sine"].get(own, {}))},
    }
    if not guard:
        tables["training"] = {"guard": False}
    return Experiment(f"sine-k{shots}-{own}{_speed(tables['method'])}", tables)


STRICT_ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "maml": ("MAML", {"name": "maml"}),
    "meta-sgd": ("Meta-SGD", {"name": "meta-sgd"}),
    "pamela": ("PAMELA, speed 1", {"name": "pamela", **PRINTED_PAMELA}),
    "pamela-s3": ("PAMELA, speed 3", {"name": "pamela", "rate": 0.03, "q_start": 1 / 3}),
    "pamela-direct": ("PAMELA, Q learned directly", {"name": "pamela", **DIRECT}),
}
"""Rows of the strict table of sine waves; those of PAMELA differ in the speed of Q."""


def strict() -> TableSpec:
    """Table 3 with nothing added: no guard, no clipping, a constant learning rate, four tasks."""
    rows = [
        RowSpec(
            f"k{shots}-{key}",
            f"K = {shots}, {label}",
            {COLUMN: CellSpec(strict_experiment(shots, method), sine_mse(shots, key))},
            group=str(shots),
        )
        for shots in SINE_MSE
        for key, (label, method) in STRICT_ROWS.items()
    ]
    title = "Table 3, strict: sine regression with nothing added to the paper"
    return TableSpec("strict", title, MSE, [COLUMN], rows, SINE_NOTES, iterations=FULL_LENGTH)


def strict_experiment(shots: int, method: Mapping[str, Any]) -> Experiment:
    tables = {
        "problem": {"name": "sine", "shots": shots},
        "method": dict(method),
        "training": {**PRINTED, **PRINTED_SINE},
    }
    return Experiment(f"sine-k{shots}-{method['name']}{_speed(method)}-strict", tables)


SINE_LENGTH = 10_000
GUARDED = {"K = 10, guard": True, "K = 10, no guard": False}


REPTILE = {"adam": True, "steps": 50, "train_steps": 8, "rate": 0.01}
"""Reptile as its authors train it; of the rates 0.001, 0.003, 0.01 and 0.03, this has the smallest error on
validation waves after 1,500 iterations."""


def sine_methods() -> TableSpec:
    """All methods that fit curves, after a quarter of Table 3's iterations."""
    rows = [
        RowSpec(
            name,
            "pamela, speed 10" if name == "pamela" else name,
            {column: _sine_cell(method, guard) for column, guard in GUARDED.items()},
        )
        for name, method in METHODS.items()
        if method.regression
    ]
    as_authors = {column: _sine_cell(METHODS["reptile"], guard, REPTILE) for column, guard in GUARDED.items()}
    rows.append(RowSpec("reptile-adam", "reptile, inner Adam, 50 test steps", as_authors))
    title = f"All methods on sine waves, after {SINE_LENGTH:,} iterations"
    return TableSpec("sine", title, MSE, list(GUARDED), rows, SINE_NOTES, iterations=SINE_LENGTH)


def _sine_cell(method: Method, guard: bool, settings: Mapping[str, Any] | None = None) -> CellSpec:
    experiment = sine_experiment(10, method.name, guard)
    if settings:
        tables = {**experiment.tables, "method": {**experiment.tables["method"], **settings}}
        experiment = Experiment(f"{experiment.name}-adam", tables)
    if guard:
        return CellSpec(experiment)
    reason = "" if issubclass(method.adapter, Rule) else "no inner loop"
    return CellSpec(replace(experiment, name=f"{experiment.name}-noguard"), reason=reason)


# Table 4: what each part of PAMELA adds.


# Q₀ and Q are one per filter, so that rows differ in one thing only. Meta-SGD has one per parameter.
Q0: dict[str, Any] = {"name": "pamela", "q": "shared", "skip": None}
PAPER_SPEED, DIRECT_SPEED = "Q at the paper's speed", "Q learned directly"
# Table 4: accuracy in % on 5-way 5-shot tasks of miniImageNet, by what is added to MAML.
ABLATION = {
    "maml": "63.11 ± 0.92",
    "q0-single": "64.03 ± 0.94",
    "q0-multiple": "62.71 ± 0.69",
    "q": "69.71 ± 0.66",
    "p": "68.30 ± 0.67",
    "qp1": "70.72 ± 0.63",
    "qp2": "70.17 ± 0.67",
    "qp3": "70.31 ± 0.69",
    "qp4": "70.51 ± 0.65",
}

ABLATION_ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "maml": ("MAML", {"name": "maml"}),
    "q0-single": ("MAML + Q₀ (single step)", {**Q0, "steps": 1}),
    "q0-multiple": ("MAML + Q₀ (multiple steps)", Q0),
    "q": ("MAML + Q", {"name": "pamela", "skip": None}),
    "p": ("MAML + P", {"name": "pamela", "q": "constant"}),
    "qp1": ("MAML + Q + P¹", {"name": "pamela", "skip": 1}),
    "qp2": ("MAML + Q + P²", {"name": "pamela", "skip": 2}),
    "qp3": ("MAML + Q + P³", {"name": "pamela", "skip": 3}),
    "qp4": ("MAML + Q + P⁴", {"name": "pamela", "skip": 4}),
}


def table4(data: str, available: Callable[[str], bool] = is_imported) -> TableSpec:
    columns = [f"{DATA.get(data, data)} 5-shot, {speed}" for speed in (PAPER_SPEED, DIRECT_SPEED)]
    rows = [
        RowSpec(
            key,
            label,
            {
                column: _ablation_cell(data, key, {**method, **speed}, available(data))
                for column, speed in zip(columns, speeds(data, method), strict=True)
            },
            group="parts" if key[:2] != "qp" else "skips",
        )
        for key, (label, method) in ABLATION_ROWS.items()
    ]
    notes = [
        "Accuracy in % on new 5-way 5-shot tasks, with 95 % intervals; all rows trained equally long, with "
        "the paper's settings. The paper's numbers are of miniImageNet and 60,000 iterations.",
    ]
    return TableSpec(
        "table4", "Table 4: dissecting PAMELA", ACCURACY, columns, rows, notes, equal_iterations=True
    )


def _ablation_cell(data: str, key: str, method: dict[str, Any], available: bool) -> CellSpec:
    printed = ABLATION.get(key, NOTHING) + (" (cited)" if key in CITED else "")
    experiment = Experiment(f"{data}-5shot-ablation-{key}{_speed(method)}", base(data, method))
    return CellSpec(experiment, printed, "" if available else "data set not imported")


# The number of inner steps: "the performance does not change significantly except for the single update".


STEPS = (*range(1, 11), 20)
STEPPED = {"maml": "MAML", "pamela": "PAMELA, speed 1", "pamela-direct": "PAMELA, Q learned directly"}


def steps_method(data: str, method: str, steps: int) -> dict[str, Any]:
    """MAML or PAMELA with this number of steps; a single step has nothing to skip to."""
    if method == "maml":
        return {"name": method, "steps": steps}
    chosen = {"name": "pamela", "steps": steps, "skip": min(2, steps)}
    return {**chosen, **speeds(data, chosen)[method == "pamela-direct"]}


def steps_table(data: str, available: Callable[[str], bool] = is_imported) -> TableSpec:
    columns = {method: f"{DATA.get(data, data)} 5-shot, {title}" for method, title in STEPPED.items()}
    reason = "" if available(data) else "data set not imported"

    def cell(method: str, steps: int) -> CellSpec:
        chosen = steps_method(data, method, steps)
        name = f"{data}-{chosen['name']}{_speed(chosen)}-{steps}steps-5shot"
        return CellSpec(Experiment(name, base(data, chosen)), reason=reason)

    rows = [
        RowSpec(f"n{n}", f"n = {n}", {column: cell(method, n) for method, column in columns.items()})
        for n in STEPS
    ]
    notes = [
        "Accuracy in % on new 5-way 5-shot tasks, with 95 % intervals; all rows trained equally long, with "
        "the paper's settings. The paper gives no numbers; it says that n matters little, except for n = 1.",
    ]
    title = "The number of inner steps"
    return TableSpec("steps", title, ACCURACY, list(columns.values()), rows, notes, equal_iterations=True)
