"""Parts of docs/reproduction.md: Table 3 with and without the guard, the studies, and Figures 5 and 6.

Sentences with numbers are rendered too, so that none can contradict its record.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathaware.sweep.intervals import Estimate, bootstrap, mean, over_seeds, over_seeds_and_tasks
from pathaware.sweep.run_store import PlannedRun
from pathaware.training.metric import ACCURACY, MSE, Metric, median
from pathaware.training.tables import NOTHING, Remark, Table, pipe_table
from pathaware_research.experiments import Experiment, Result, Results
from pathaware_research.paired import mean_lead, paired_differences
from pathaware_research.paper.tables import (
    ABLATION_ROWS,
    CITED,
    COLUMN,
    DATA,
    DIRECT_SPEED,
    NOT_RUN,
    STEPPED,
    STEPS,
    CellSpec,
    TableSpec,
    sine_experiment,
    sine_methods,
    steps_table,
    strict,
    table3,
    table4,
)
from pathaware_research.records import Records, measurement, measurements
from pathaware_research.studies import ablation, additions, cross_domain, one_step, sine_gap, steps

SINE_FULL = 40_000
"""The number of iterations of Table 3 with our settings."""
STUDIES = ("ablation-", "additions-", "sine-gap-", "inner-steps-")
"""Beginnings of the names of records that only the tables here show."""


def blocks(folder: Path, results: Results) -> dict[str, str]:
    tables = {
        "additions": additions_table,
        "sine-gap": sine_gap_table,
        "one-step": one_step_table,
        "claims": claims_table,
        "image-claims": image_claims_table,
        "sine-methods": sine_methods_table,
        "steps": steps_rows,
        "steps-differences": steps_differences,
        "intervals": intervals_table,
        "fig5": error_per_step,
        "table3": sine_table,
        "strict": strict_table,
    }
    return {
        **{name: pipe_table(table(results)) for name, table in tables.items()},
        "fig6": "\n".join(gradient_sentences(folder)),
        "gradient-ratio": pipe_table(gradient_ratio_table(folder)),
        "cross-domain": pipe_table(cross_domain_table(folder)),
    }


def lead(one: Sequence[Result], other: Sequence[Result], **options: Any) -> str:
    """The mean lead of one over the other on the same tasks, see `mean_lead`."""
    differences = paired_differences(one, other, **options)
    return mean_lead(differences) if differences else NOT_RUN


def sine_cells(results: Sequence[Result]) -> tuple[str, str]:
    """Mean with its interval, and median, of the errors of waves."""
    if not results:
        return NOT_RUN, NOTHING
    found = over_seeds_and_tasks(results, MSE)
    return with_ends(found), NOTHING if found.median is None else f"{found.median:.4f}"


def with_ends(found: Estimate) -> str:
    """`0.1442 (0.1365 to 0.1527)`: the interval of an error need not be symmetric."""
    mean, low, high = (f"{v:.4f}" if v < 1000 else f"{v:.2g}" for v in (found.mean, found.low, found.high))
    return f"{mean} ({low} to {high})"


def sine_table(results: Results) -> Table:
    """Table 3 with the divergence guard in training and evaluation, and without it in both."""
    guarded, unguarded = table3(), table3(guard=False)
    rows = []
    for row, bare in zip(guarded.rows, unguarded.rows, strict=True):
        cell = row.cells[COLUMN]
        found = [in_its_precision(results, each, SINE_FULL) for each in (cell, bare.cells[COLUMN])]
        cells = [text for each in found for text in (*sine_cells(each), seeds(each))]
        rows.append((row.label, *cells, cell.printed))
    header = ("method", "MSE, guard", "median", "seeds", "MSE, no guard", "median", "seeds", "the paper")
    return Table.of("", header, rows)


def in_its_precision(results: Results, cell: CellSpec, iterations: int | None = None) -> list[Result]:
    """The results of one cell, in the precision that most of them have."""
    return results.in_one_precision([cell.experiment]).of(cell.experiment, iterations)


def strict_table(results: Results) -> Table:
    """Table 3 with nothing added to the paper's settings, and the worst wave of all seeds."""
    spec, rows = strict(), []
    for row in spec.rows:
        cell = row.cells[COLUMN]
        found = in_its_precision(results, cell, spec.iterations)
        each = ", ".join(f"{result.value(MSE)[0]:.3f}" for result in found)
        worst = max((result.record["result"]["mse_max"] for result in found), default=None)
        most = NOTHING if worst is None else f"{worst:.3g}"
        rows.append((row.label, *sine_cells(found), each or NOTHING, most, cell.printed))
    return Table.of("", ("method", "MSE (95 %)", "median", "each seed", "worst wave", "the paper"), rows)


def sine_methods_table(results: Results) -> Table:
    """All methods that fit curves, by their error with the guard; those without a result come last."""
    spec, rows = sine_methods(), []
    for row in spec.rows:
        cells, errors = list[str](), list[float]()
        for cell in row.cells.values():
            found = in_its_precision(results, cell, spec.iterations)
            errors.append(over_seeds_and_tasks(found, MSE).mean if found else math.inf)
            why = cell.reason
            cells += [Remark(why), NOTHING, NOTHING] if why else [*sine_cells(found), seeds(found)]
        rows.append((errors[0], (row.label, *cells)))
    rows.sort(key=lambda pair: pair[0])
    header = ("method", "MSE, guard", "median", "seeds", "MSE, no guard", "median", "seeds")
    return Table.of("", header, [row for _, row in rows])


def seeds(results: Sequence[Result]) -> str:
    return str(len(results)) if results else NOTHING


def of_run(results: Results, run: PlannedRun) -> list[Result]:
    """The result of exactly this run of a study, under the name of its experiment's settings."""
    length, seed = run.config.training.iterations, run.config.training.seed
    return [r for r in results.matching(run.config) if (r.iterations, r.seed) == (length, seed)]


def of_runs(results: Results, runs: Iterable[PlannedRun]) -> list[Result]:
    """The results of these runs that are there."""
    return [found for run in runs for found in of_run(results, run)]


def additions_table(results: Results) -> Table:
    """Mean over seeds of each problem, with all additions and without some of them."""

    def cell(problem: str, variant: str) -> str:
        runs = (additions.run(problem, variant, seed) for seed in range(additions.SEEDS))
        metric = ACCURACY if problem.startswith("glyphs") else MSE
        return study_cell(of_runs(results, runs), metric, additions.SEEDS)

    rows = [
        (title, *(cell(problem, variant) for problem in additions.PROBLEMS))
        for variant, (title, _) in additions.VARIANTS.items()
    ]
    titles = (title for title, _ in additions.PROBLEMS.values())
    return Table.of("", ("with (errors: mean, 95 %, median)", *titles), rows)


def study_cell(results: Sequence[Result], metric: Metric, planned: int) -> str:
    """The mean over seeds; it says so if some are missing."""
    if not results:
        return NOT_RUN
    found = over_seeds_and_tasks(results, metric)
    if metric.lower_is_better:
        text = " / ".join(sine_cells(results))
    else:
        text = metric.with_interval(found.mean, found.half_width)
    return text if len(results) == planned else f"{text}, {len(results)} of {planned} seeds"


def claims_table(results: Results) -> Table:
    """Claims of the paper's ablation on sine waves: paired differences of errors, wave by wave.

    Means of errors have heavy tails, so the median over waves and the share of waves with a smaller error are
    there, too.
    """
    rows = []
    for claim, keys in ablation.CLAIMS.items():
        pair = [of_runs(results, (ablation.run(key, seed) for seed in range(ablation.SEEDS))) for key in keys]
        per_seed = paired_differences(*pair)
        rows.append((claim, compared(keys), *difference(per_seed)))
    names = ("difference of errors, 95 %", "median", "waves with a smaller error", "each seed")
    return Table.of("", ("claim", "rows", *names), rows)


def image_claims_table(results: Results) -> Table:
    """Claims of the paper's ablation on its own data: paired differences of accuracies, task by task."""
    spec = table4("miniimagenet", lambda data: True)
    *_, column = spec.columns  # Q learned directly: the column that is full
    cells = {row.key: row.cells[column] for row in spec.rows}
    experiments = [cell.experiment for cell in cells.values()]
    of_images = results.in_one_precision(experiments)
    length = of_images.common_length(experiments)
    rows = []
    for claim, keys in ablation.CLAIMS.items():
        per_seed = paired_differences(*(of_images.of(cells[key].experiment, length) for key in keys))
        each = ", ".join(f"{100 * seed.mean().item():+z.2f}" for seed in per_seed)
        first, second = (float(cells[key].printed.partition(" ")[0]) for key in keys)
        lead = mean_lead(per_seed) if per_seed else NOT_RUN
        theirs = f"{first - second:+.2f}{' (cited)' if {*keys} & {*CITED} else ''}"
        rows.append((claim, compared(keys), theirs, lead, each or NOTHING))
    return Table.of("", ("claim", "rows", "the paper", "difference in points, 95 %", "each seed"), rows)


def compared(keys: Sequence[str]) -> str:
    """`Q against MAML`"""
    return " against ".join(ABLATION_ROWS[key][0].removeprefix("MAML + ") for key in keys)


def difference(per_seed: Sequence[Tensor]) -> tuple[str, str, str, str]:
    """Mean with its interval over waves and seeds, median, share below zero, and the mean of each seed."""
    if not per_seed:
        return NOT_RUN, NOTHING, NOTHING, NOTHING
    waves = torch.stack(list(per_seed))
    means = waves.mean(1).tolist()
    below, above = bootstrap(waves.mean(0))
    seeds_part = over_seeds(means) or 0.0
    mean = waves.mean().item()
    ends = (mean - math.hypot(below, seeds_part), mean + math.hypot(above, seeds_part))
    share = 100 * (waves < 0).double().mean().item()
    return (
        f"{mean:+.4f} ({ends[0]:+.4f} to {ends[1]:+.4f})",
        f"{median(waves):+.4f}",
        f"{share:.0f} %",
        ", ".join(f"{each:+.4f}" for each in means),
    )


def image_steps(results: Results) -> tuple[TableSpec, dict[str, dict[int, list[Result]]]]:
    """The table of inner steps on images, and its results by method and number of steps."""
    spec = steps_table("miniimagenet", lambda data: True)
    in_one = results.in_one_precision(spec.experiments())
    length = in_one.common_length(spec.experiments())
    found = {
        method: {
            n: in_one.of(row.cells[column].experiment, length)
            for n, row in zip(STEPS, spec.rows, strict=True)
        }
        for method, column in zip(STEPPED, spec.columns, strict=True)
    }
    return spec, found


def steps_rows(results: Results) -> Table:
    """Errors on sine waves and accuracies on images by the number of inner steps."""
    images, on_images = image_steps(results)
    rows = []
    for n in STEPS:
        cells = []
        for method in steps.METHODS:
            found = of_runs(results, [steps.with_steps(method, n, seed) for seed in range(steps.SEEDS)])
            cells.append(study_cell(found, MSE, steps.SEEDS))
        for method in STEPPED:
            found = on_images[method][n]
            cells.append(ACCURACY.with_interval(*mean(found, ACCURACY)) if found else NOT_RUN)
        rows.append((str(n), *cells))
    waves = (f"sine, {STEPPED[each]}: error (95 %) / median" for each in steps.METHODS)
    return Table.of("", ("n", *waves, *(f"{column}, batch" for column in images.columns)), rows)


USUAL_STEPS = 5
"""The paper's number of inner steps."""


def steps_differences(results: Results) -> Table:
    """On images, each number of steps against the paper's five, and PAMELA against MAML; the same tasks."""
    _, found = image_steps(results)
    rows = []
    for n in STEPS:
        cells = [NOTHING if n == USUAL_STEPS else lead(of[n], of[USUAL_STEPS]) for of in found.values()]
        rows.append((str(n), *cells, lead(found["pamela-direct"][n], found["maml"][n])))
    header = (f"{title}, n steps − {USUAL_STEPS} steps" for title in STEPPED.values())
    return Table.of("", ("n", *header, "PAMELA, Q learned directly − MAML, both n steps"), rows)


def intervals_table(results: Results) -> Table:
    """Errors on sine waves by the interval of skips, with ten steps."""
    rows = []
    for w in steps.INTERVALS:
        found = of_runs(results, [steps.with_interval(w, seed) for seed in range(steps.SEEDS)])
        rows.append((str(w), study_cell(found, MSE, steps.SEEDS)))
    return Table.of("", ("w", "error (95 %) / median"), rows)


def sine_gap_table(results: Results) -> Table:
    """Our settings, the paper's, and ours with one setting replaced."""

    def ours(method: str, shots: int) -> list[Result]:
        return [r for r in results.of(sine_experiment(shots, method)) if r.seed == 0]

    def changed(key: str, shots: int) -> list[Result] | None:
        return of_run(results, sine_gap.changed(key, shots)) if shots == 10 else None

    direct = "PAMELA, Q learned directly, ours"
    lookups: dict[str, Callable[[int], list[Result] | None]] = {
        "MAML, ours": partial(ours, "maml"),
        "MAML, the paper's, one step": lambda shots: of_run(results, sine_gap.strict(shots, "maml", 1)),
        "Meta-SGD, ours": partial(ours, "meta-sgd"),
        direct: partial(ours, "pamela-direct"),
        **{f"{direct} with {how[0]}": partial(changed, key) for key, how in sine_gap.ONE_BY_ONE.items()},
    }
    rows = []
    for title, lookup in lookups.items():
        found = [lookup(shots) for shots in sine_gap.SHOTS]
        texts = (NOTHING if f is None else " / ".join(sine_cells(f)) if f else NOT_RUN for f in found)
        rows.append((title, *texts))
    return Table.of("", ("settings: mean (95 %) / median", *(f"K = {k}" for k in sine_gap.SHOTS)), rows)


def one_step_table(results: Results) -> Table:
    """CIFAR-FS 5-shot: accuracy by method and number of iterations, and differences on the same tasks."""

    def first(same: Sequence[Experiment], length: int) -> list[Result]:
        """The result of seed 0, if there is one; several experiments can be the same training."""
        return [result for each in same for result in results.of(each, length) if result.seed == 0][:1]

    lengths = one_step.LENGTHS
    found = {title: [first(same, n) for n in lengths] for title, same in one_step.METHODS.items()}
    rows = [
        (title, *(ACCURACY.with_interval(*r[0].value(ACCURACY)) if r else NOT_RUN for r in cells))
        for title, cells in found.items()
    ]
    rows += [
        (f"{one} − {other}", *map(lead, found[one], found[other]))
        for one, other in itertools.combinations(reversed(found), 2)
    ]
    return Table.of("", ("CIFAR-FS 5-shot", *(f"{n:,} iterations, batch" for n in lengths)), rows)


RATIOS = {
    "gradients-sine-k10": "sine waves",
    "gradients-glyphs-5way-5shot": "glyphs, Conv-4",
    "gradients-miniimagenet-20steps": "miniImageNet, Conv-4",
}
VIEWS = {"untrained": "untrained θ₀", "start of pamela": "PAMELA's θ₀", "trained": "trained method"}
NUMBERS_OF_STEPS = (1, 3, 5, 10, 20)


def gradient_ratio_table(folder: Path) -> Table:
    """Median over tasks of the ratio of the gradients at θ₀ and at θₙ, by number of steps (Section 3.2)."""
    rows = []
    for name, problem in RATIOS.items():
        record = measurement(folder, f"gradients/{name}")
        for view, title in VIEWS.items():
            for flow in record["flow"].get(view, ()):
                found = flow["share"]["median"]
                cells = (f"{found[n - 1]:.2f}" if n <= len(found) else NOTHING for n in NUMBERS_OF_STEPS)
                label = flow["label"].replace("its P", "P").replace("pamela", STEPPED["pamela-direct"])
                rows.append((problem, title, label.replace("maml", "MAML"), *cells))
    return Table.of("", ("", "from", "", *(f"n = {n}" for n in NUMBERS_OF_STEPS)), rows)


SHARED = Remark("classes shared")


def cross_domain_table(folder: Path) -> Table:
    """Accuracy of trained models by the data set whose test classes they are evaluated on."""
    rows = []
    studies = ("cross-domain", *(f"tables-{data}" for data in cross_domain.TRAINED_ON))
    records = {study: Records(study, folder) for study in studies}
    for trained in cross_domain.TRAINED_ON:
        for shots in (1, 5):
            for method, title in cross_domain.METHODS.items():
                cells = (
                    cross_domain_cell(records, trained, method, shots, data) for data in cross_domain.DATA
                )
                rows.append((cross_domain.DATA[trained], str(shots), title, *cells))
    return Table.of("", ("trained on", "shots", "method", *cross_domain.DATA.values()), rows)


def cross_domain_cell(
    records: Mapping[str, Records], trained: str, method: str, shots: int, data: str
) -> str:
    """Accuracy with its interval over tasks; of the training's own data set from the record of the run."""
    run = cross_domain.run_name(trained, method, shots, data)
    if cross_domain.shares_classes(trained, data) and data != trained:
        return SHARED
    study, name = ("cross-domain", f"{run}-on-{data}") if data != trained else (f"tables-{trained}", run)
    record = records[study].get(name)
    return ACCURACY.with_interval(*Result(record).value(ACCURACY)) if record else NOT_RUN


def error_per_step(results: Results) -> Table:
    """Mean error after every inner step over all test waves, K = 10, seed 0."""
    rows = []
    for method, label in (("maml", "MAML"), ("pamela", "PAMELA, speed 10")):
        found = [r for r in results.of(sine_experiment(10, method), SINE_FULL) if r.seed == 0]
        if found:
            path = found[0].record["result"]["mse_per_step"]
            rows.append((label, *(f"{value:.4f}" for value in path)))
    steps = len(rows[0]) - 1 if rows else 0
    return Table.of("", ("after step", *map(str, range(steps))), rows)


def gradient_sentences(folder: Path) -> list[str]:
    """Gradients and meta-gradients in the last tenth of training, from the records of Fig. 6."""
    lines = []
    for record in measurements(folder, "gradients/fig6-*").values():
        data = record["problem"].partition("-5way")[0]
        late = {method: each["last tenth"] for method, each in record["gradients"].items()}
        inner = {method: each["mean"][0] for method, each in late.items()}
        meta = {method: each["mean"][-1] for method, each in late.items()}
        most = {method: each["largest"][-1] for method, each in late.items()}
        lengths = {run["iterations"] for run in record.get("runs", {}).values()}
        title = ", ".join(
            [DATA.get(data, data), *(f"{length:,} iterations" for length in lengths), DIRECT_SPEED]
        )
        lines.append(
            f"- {title}: at step 1 the mean |∇L| of conv4 is {_compare(inner)}. "
            f"The mean |meta-gradient| is {_compare(meta)}, the largest {_compare(most)}."
        )
    return lines


def _compare(values: dict[str, float]) -> str:
    """`smaller for PAMELA (0.0007) than for MAML (0.0352)`"""
    pamela, maml = values["pamela"], values["maml"]
    word = "smaller" if pamela < maml else "larger"
    return f"{word} for PAMELA ({pamela:.4f}) than for MAML ({maml:.4f})"
