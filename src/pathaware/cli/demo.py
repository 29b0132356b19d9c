"""`pathaware demo`: meta-learning in three minutes on a laptop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

METHODS = ("pamela", "maml")
SHOTS = 10


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("demo"),
    iterations: Annotated[int, typer.Option(help="Meta-iterations of each method.", min=1)] = 6000,
) -> None:
    """Train PAMELA and MAML on sine waves, compare them with the paper, write an HTML report."""
    from rich.console import Console
    from rich.table import Table

    from pathaware.report.sine_report import FILE, comparison, write_report
    from pathaware.training.config import Config, Training
    from pathaware.training.regression import Sine
    from pathaware.training.session import train_or_open

    training = Training(iterations=iterations)
    runs = [train_or_open(Config(Sine(SHOTS), name, {}, training), out / f"sine-{name}") for name in METHODS]
    results = comparison(runs)
    table = Table(*results.header, title=f"sine waves from {SHOTS} points")
    for row in results.rows:
        table.add_row(*row)
    Console().print(table)
    write_report(runs, results, out / FILE)
    print(f"the report with all pictures: {out / FILE}")
