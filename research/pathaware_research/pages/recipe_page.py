"""The tables of docs/recipe.md: the recipe on test tasks for several methods, and the worth of its parts.

Also what other pages show of it.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from pathaware.sweep.intervals import over_seeds_and_tasks
from pathaware.training.metric import ACCURACY, MSE, Metric
from pathaware.training.tables import NOTHING, Table, pipe_table
from pathaware_research.experiments import Result
from pathaware_research.pages import methods_page
from pathaware_research.paper.tables import NOT_RUN
from pathaware_research.records import Records, measurement
from pathaware_research.studies import pretraining, recipe, sine_recipe

DATA = {"cifar-fs": "CIFAR-FS", "miniimagenet": "miniImageNet"}
METHODS = {
    recipe.WHOLE: "PAMELA, Q learned directly",
    "maml": "MAML",
    "meta-sgd": "Meta-SGD, 5 steps",
    "r2d2": "R2-D2",
    "prototypical": "prototypical networks",
}
"""Titles of the variants that differ in the method only."""
LEVELS = {
    "alone": recipe.TEST,
    "centred": recipe.TEST_CENTRED,
    "joint": recipe.JOINT,
    "joint means": recipe.TEST_MEANS,
}
"""Evaluations that differ in the use of the other queries of a task."""


def blocks(folder: Path) -> dict[str, str]:
    records = Records("recipe", folder)
    return {
        "methods": pipe_table(methods(records)),
        "inner-steps": pipe_table(inner_steps(records)),
        "worth": worth(records),
        "pretraining": pretrainings(folder),
        "sine": pipe_table(sine(records)),
        "sine-worth": pipe_table(sine_worth(records)),
    }


def pretrainings(folder: Path) -> str:
    """The pretrainings of a Conv-4 on miniImageNet, side by side."""
    return pipe_table(pretraining.table(measurement(folder, "other/pretraining-miniimagenet")["rows"]))


def cell(records: Records, column: str) -> str:
    """PAMELA's result with the recipe, for a column such as `CIFAR-FS 5-shot` or `sine, 5 points`."""
    for points in sine_recipe.POINTS:
        if column.startswith(f"sine, {points} points"):
            return _in_a_row(error(records, points, recipe.WHOLE))
    for (data, title), shots in itertools.product(DATA.items(), (5, 1)):
        if column.startswith(f"{title} {shots}-shot"):
            return _in_a_row(accuracy(records, data, recipe.WHOLE, shots, recipe.TEST))
    return NOTHING


def _in_a_row(found: str) -> str:
    return NOTHING if found == NOT_RUN else re.sub(r", (\d+ seeds)", r" (\1)", found)


def methods(records: Records) -> Table:
    """Test accuracy of every method, and PAMELA's lead on the same tasks, for the levels that were run."""
    ran = [
        (level, each)
        for level, each in LEVELS.items()
        if any(recipe.results(records, data, shots, recipe.WHOLE, each) for data in DATA for shots in (5, 1))
    ]
    columns = [(shots, each) for shots in (5, 1) for _, each in ran]
    rows = []
    for data, title in DATA.items():
        for part, name in METHODS.items():
            rows.append((title, name, *_seeds_apart(accuracy(records, data, part, *c) for c in columns)))
        for part in list(METHODS)[1:]:
            cells = _seeds_apart(lead(records, data, part, *column) for column in columns)
            rows.append((title, f"PAMELA − {METHODS[part]}", *cells))
    header = (f"{shots}, {level}" for shots in ("5 shots", "1 shot") for level, _ in ran)
    return Table.of("", ("", "", *header, "seeds"), rows)


def inner_steps(records: Records) -> Table:
    """By how many points the inner steps change the test accuracy, mean of the seeds."""
    columns = list(itertools.product({5: "5 shots", 1: "1 shot"}.items(), ("alone", "joint")))
    rows = []
    for (data, title), part in itertools.product(DATA.items(), (recipe.WHOLE, "maml", "meta-sgd")):
        found = (recipe.results(records, data, k, part, LEVELS[level]) for (k, _), level in columns)
        rows.append((title, METHODS[part], *map(_change, found)))
    return Table.of("", ("", "", *(f"{shots}, {level}" for (_, shots), level in columns)), rows)


def _change(results: Sequence[Result]) -> str:
    curves = [result.record["result"]["accuracy_per_step"] for result in results]
    return f"{100 * statistics.fmean(curve[-1] - curve[0] for curve in curves):+.2f}" if curves else NOT_RUN


def _seeds_apart(cells: Iterable[str]) -> list[str]:
    """The cells of a row without their numbers of seeds, and those in a last one."""
    split = [re.fullmatch(r"(.*?)(?:, (\d+) seeds)?", cell) for cell in cells]
    found = [(each[1], each[2] or "1") for each in split if each]
    seeds = dict.fromkeys(number for text, number in found if text not in (NOT_RUN, NOTHING))
    return [*(text for text, _ in found), " or ".join(seeds)]


def sine(records: Records) -> Table:
    """The error of every method on sine waves."""
    rows = [
        (title, *(error(records, points, part) for points in sine_recipe.POINTS))
        for part, title in sine_recipe.METHODS.items()
    ]
    return Table.of("", ("", *(f"{points} points" for points in sine_recipe.POINTS)), rows)


def sine_worth(records: Records) -> Table:
    """The error of every variant on sine waves, for one seed."""
    points = sine_recipe.COMPARED
    rows = [(title, error(records, points, p, seeds=1)) for p, (title, _) in sine_recipe.PARTS.items()]
    return Table.of("", ("", f"{points} points"), rows)


def error(records: Records, points: int, part: str, seeds: int = sine_recipe.SEEDS) -> str:
    """`0.0196 ± 0.0024, 3 seeds`"""
    found = recipe.read_results(records, f"recipe-sine-k{points}-{part}-[0-9]+-seed[0-9]+")
    return _mean(found[:seeds], MSE)


def choosing(folder: Path) -> dict[str, str]:
    """Accuracy with the recipe, and CPU times of training and adapting, of methods that differ in kind."""
    records, times = Records("recipe", folder), methods_page.method_times(folder, "cifar-fs")
    rows = []
    for part, any_task in {recipe.WHOLE: "no", "maml": "no", "r2d2": "no", "prototypical": "yes"}.items():
        name = "pamela" if part == recipe.WHOLE else part
        shown = (accuracy(records, data, part, shots, recipe.TEST) for data in DATA for shots in (5, 1))
        costs = (f"{times[name][key]:.0f}" for key in ("training_ms", "adaptation_ms"))
        rows.append((METHODS[part], *shown, *costs, any_task))
    header = (
        *("", *(f"{title}, {shots}" for title in DATA.values() for shots in ("5 shots", "1 shot"))),
        *("training, CPU ms per task", "adapting, CPU ms", "classes and images may vary"),
    )
    return {"choosing": pipe_table(Table.of("", header, rows))}


def accuracy(records: Records, data: str, part: str, shots: int, evaluation: recipe.Evaluation) -> str:
    """`81.21 ± 0.35, 3 seeds`"""
    return _mean(recipe.results(records, data, shots, part, evaluation), ACCURACY)


def _mean(found: Sequence[Result], metric: Metric) -> str:
    if not found:
        return NOT_RUN
    estimate = over_seeds_and_tasks(found, metric)
    seeds = f", {len(found)} seeds" if len(found) > 1 else ""
    return f"{metric.with_interval(estimate.mean, estimate.half_width)}{seeds}"


def lead(records: Records, data: str, part: str, shots: int, evaluation: recipe.Evaluation) -> str:
    one, other = (recipe.results(records, data, shots, each, evaluation) for each in (recipe.WHOLE, part))
    return recipe.paired(one, other)


def worth(records: Records) -> str:
    """Validation accuracy of each variant, for every data set and number of shots that was run."""
    parts = []
    for (data, title), shots in itertools.product(DATA.items(), (5, 1)):
        table = recipe.worth(records, data, shots)
        if len(table.rows) > 1:
            images = "image" if shots == 1 else "images"
            parts.append(f"{title}, {shots} {images} per class:\n\n{pipe_table(table)}")
    return "\n\n".join(parts)
