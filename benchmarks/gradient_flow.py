"""Does the skip connection keep the meta-gradient from vanishing? The paper's section 3.2, on your runs.

python benchmarks/gradient_flow.py RUN [RUN …] [--rate 0.01] [--tasks 100] [--out results/flow]

Of the first run's network, untrained and trained, under rules with a constant P; and of all runs as they are.
Writes OUT.json and three figures OUT-….png.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pathaware.report.environment import environment
from pathaware.report.flow_figures import flow_figure
from pathaware.report.gradient_flow import controlled, of_trained
from pathaware.report.record import commit
from pathaware.report.style import save
from pathaware.training.run import Run
from pathaware.training.trainer import build


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--rate", type=float, help="inner rate of the controlled rules; default: the run's")
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("flow"))
    options = parser.parse_args()
    trained = [(run, run.load()) for run in map(Run.open, options.runs)]
    first, learner = trained[0]
    first.config.training.apply()
    problem, rate = first.config.problem, options.rate or first.config.rule["rate"]
    fresh = build(first.config, next(learner.parameters()).device)
    views = {
        "untrained": controlled(fresh, problem, rate=rate, tasks=options.tasks),
        f"start of {first.config.method}": controlled(learner, problem, rate=rate, tasks=options.tasks),
        "trained runs": of_trained(trained, tasks=options.tasks),
    }
    for name, flows in views.items():
        print(f"{problem.label}, {name}")
        for flow in flows:
            share, loss = flow.share.quantile(0.5, dim=0), flow.loss.quantile(0.5, dim=0)
            shown = [j for j in (1, 5, 10, 20) if j <= len(share)]
            line = ", ".join(f"{share[j - 1]:.3f} at {j} (loss {loss[j - 1]:.3g})" for j in shown)
            print(f"  {flow.label}: share {line}")
        figure = flow_figure(
            flows, f"{problem.label}, {name}: median and middle half of {options.tasks} tasks"
        )
        save(figure, options.out.with_name(f"{options.out.name}-{name.replace(' ', '-')}.png"))
    record = {
        "problem": problem.label,
        "rate": rate,
        "views": {name: [flow.summary() for flow in flows] for name, flows in views.items()},
        "commit": commit(),
        "environment": environment(),
    }
    options.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
