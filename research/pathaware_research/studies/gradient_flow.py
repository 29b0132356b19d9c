"""The gradient's way back through the inner steps of trained runs (Section 3.2).

    python -m pathaware_research.studies.gradient_flow RUN… --tasks 20 \\
        --json results/gradients/gradients-miniimagenet-20steps.json

For paths of 1 to n steps of each run: the norms of the gradient at the end of the path and at θ₀, and their
ratio. Runs that learned P are measured with P set to 0, too. `pathaware reproduce gradients` and
`gradients-conv4` do the same for the paper's five steps, and for constant skips on untrained networks.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pathaware.training.provenance import revision, write_record
from pathaware.training.run_folder import Run
from pathaware_research.paper.figures import origin
from pathaware_research.paper.gradient_flow import of_trained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    revision()  # the record names the code that runs now
    runs = [Run.open(folder) for folder in options.runs]
    flows = of_trained([(run, run.load(options.device)) for run in runs], tasks=options.tasks)
    for flow in flows:
        print(flow.label, [round(share, 3) for share in flow.summary()["share"]["median"]])
    if options.json:
        record = {
            "flow": {"trained": [flow.summary() for flow in flows]},
            "problem": runs[0].config.problem.label,
            "runs": {run.config.method: origin(run) for run in runs},
        }
        write_record(options.json, record, field="json")


if __name__ == "__main__":
    main()
