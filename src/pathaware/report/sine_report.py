"""Sine runs beside the paper's Table 3, as a table and as an HTML report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pathaware.errors import UsageError
from pathaware.report import html
from pathaware.report.environment import environment
from pathaware.report.paper import SINE_MSE
from pathaware.training.evaluation import evaluate
from pathaware.training.regression import Sine
from pathaware.training.run import Run

FILE = "report.html"


@dataclass(frozen=True)
class Comparison:
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    best: int


def comparison(runs: Sequence[Run], tasks: int = 1000) -> Comparison:
    """Every run on the same new waves, beside what the paper printed for its method."""
    rows, errors = [], []
    for run in runs:
        problem = run.config.problem
        assert isinstance(problem, Sine)
        summary = evaluate(run.load(), problem, tasks=tasks).summary()
        errors.append(summary["mse"])
        printed = SINE_MSE.get(problem.shots, {}).get(run.config.method)
        rows.append(
            (
                run.config.method,
                f"{summary['mse_per_step'][0]:.2f}",
                f"{summary['mse']:.3f} ± {summary['mse_ci95']:.3f}",
                f"{summary['mse_max']:.2f}",
                f"{printed[0]:.2f} ± {printed[1]:.2f}" if printed else "–",
                f"{run.config.training.iterations:,}",
            )
        )
    header = ("method", "MSE before", f"MSE after, {tasks:,} waves", "worst wave", "paper", "meta-iterations")
    return Comparison(header, rows, errors.index(min(errors)))


def write_report(runs: Sequence[Run], results: Comparison, path: Path) -> None:
    from pathaware.report.figures import figures
    from pathaware.report.style import data_uri

    pictures = [
        html.figure(data_uri(figure), caption)
        for _, caption, figure in figures([(run, run.load()) for run in runs])
    ]
    made = ", ".join(f"{name} {value}" for name, value in environment().items())
    text = html.page(
        "Sine waves",
        "Meta-trained on waves of random amplitude, frequency and phase; judged on waves never seen.",
        [
            html.section("Results", html.table(results.header, results.rows, results.best)),
            html.section("Pictures", *pictures),
            html.section("Settings", *(html.preformatted(run.config.to_toml()) for run in runs)),
            html.section("Made with", f"<p>{made}</p>"),
        ],
    )
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out: {path} cannot be written ({error.strerror})") from None
