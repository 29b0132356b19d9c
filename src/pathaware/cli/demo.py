"""`pathaware demo`: meta-learning in a few minutes on a laptop."""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import which
from typing import Any

from pathaware.cli.options import OUTPUT, TRAINING, examples, panel_option
from pathaware.core.errors import UsageError

EXAMPLES = examples("pathaware demo --scale 0.1", "pathaware demo --out demo")
MAX_SCALE = 1000.0
SINE: dict[str, Any] = {"problem": {"name": "sine", "shots": 10}}


def demo(
    out: Path = panel_option(Path("demo"), OUTPUT, "Folder for the runs and the report."),
    scale: float = panel_option(
        1.0, TRAINING, "Fraction of the usual number of training iterations.", min=0.001
    ),
) -> None:
    """Train on sine waves and on glyphs, compare with the paper and write an HTML report."""
    if not 0.001 <= scale <= MAX_SCALE:  # neither infinite nor NaN
        raise UsageError(f"must be between 0.001 and {MAX_SCALE:g}, not {scale}", field="scale")
    from pathaware.cli.report import REPORT
    from pathaware.cli.show import print_table
    from pathaware.report.run_report import compare, write_report
    from pathaware.training.config import Config
    from pathaware.training.presets import load_preset
    from pathaware.training.progress import ProgressDisplay
    from pathaware.training.train import train

    parts = (
        (SINE, ("pamela", "maml"), 5000, 1000),
        (load_preset("glyphs"), ("pamela",), 300, 200),
    )
    groups = []
    for tables, methods, iterations, tasks in parts:
        runs = []
        for name in methods:
            method = {**tables.get("method", {}), "name": name}
            training = {**tables.get("training", {}), "iterations": max(1, round(scale * iterations))}
            config = Config.from_dict({**tables, "method": method, "training": training})
            folder = out / f"{config.problem.label}-{name}"
            runs.append(train(config, folder, resume=True, display=ProgressDisplay))
        groups.append(compare(runs, max(10, round(min(scale, 1) * tasks))))
        print_table(groups[-1].results)
    print("drawing the figures …", file=sys.stderr, flush=True)
    write_report(out / REPORT, "Learning to learn", groups)
    program = "pathaware" if which("pathaware") else sys.argv[0]
    print(f"the report is {out / REPORT}: open it in a browser")
    print(f"next, teach a model classes of your own in a browser: {program} serve glyphs --open")
