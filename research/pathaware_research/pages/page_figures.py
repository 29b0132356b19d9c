"""Draw the figures of the pages from records and runs.

    python -m pathaware_research.pages.page_figures docs/images results
    python -m pathaware_research.pages.page_figures docs/images results RUN RUN

The first command draws from `results/`: the growth of cost (bench-scaling-*.png), the online learners
(online-*.png), convergence.png, methods.png and steps.png. The second also draws sine-curves.png and
sine-trend.png: the shipped model `sine`, PAMELA, and runs of other methods with its settings, such as
`pathaware train sine --method maml --iterations 20000`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure

from pathaware.core.learner import MetaLearner
from pathaware.inference.trained_model import find_run
from pathaware.report.figures import coefficients, fitted_curves
from pathaware.report.style import save
from pathaware.training.run_folder import Run
from pathaware_research.bench import scaling
from pathaware_research.online import report
from pathaware_research.pages import convergence, method_figure, steps_figure
from pathaware_research.pages.performance_page import sizes_text
from pathaware_research.records import measurement, measurements, read_results


def of_records(results: Path) -> Iterator[tuple[str, Figure]]:
    """Names and figures of the records of growth and of online learners."""
    for name, record in measurements(results, "timings/bench-scaling-*").items():
        yield name, scaling.draw(record | {"base": sizes_text(record["base"])})
    for name in ("online-sine", "online-glyphs"):
        yield name, report.draw(measurement(results, f"other/{name}"))


def of_methods(results: Path) -> Iterator[tuple[str, Figure]]:
    """Names and figures of comparisons of methods."""
    yield "convergence", convergence.draw(results)
    yield "methods", method_figure.draw(results)
    yield "steps", steps_figure.draw(read_results(results))


def of_runs(folders: list[Path]) -> Iterator[tuple[str, Figure]]:
    """Names and figures of the shipped model and of other runs on the same problem."""
    runs = [Run.open(folder) for folder in (find_run("sine"), *folders)]
    trained = [(run, run.load("cpu")) for run in runs]
    yield "sine-curves", fitted_curves(trained)
    learner = trained[0][1]
    assert isinstance(learner, MetaLearner)
    yield "sine-trend", coefficients(learner.rule)


def main() -> None:
    folder, results, *runs = map(Path, sys.argv[1:])
    for name, figure in (*of_records(results), *of_methods(results), *(of_runs(runs) if runs else ())):
        print(save(figure, folder / f"{name}.png"))


if __name__ == "__main__":
    main()
