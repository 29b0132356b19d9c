"""One Conv-4 meta-iteration on glyph-sized images beside the same, one task after another.

    python benchmarks/glyph_step.py [--threads 2] [--json results/glyph-step.json]

The network and tasks of `pathaware train glyphs`: 28 × 28, 32 filters, 5-way 1-shot, 5 queries a class, 4
tasks, 5 inner steps, second order. All compute the same meta-gradient, which is checked before anything is
timed; the times are medians, taken in turns so that all meet the same noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from pathaware import Episodes, MetaLearner, Pamela
from pathaware.models import conv4
from pathaware.report.environment import environment

WAYS, QUERIES, TASKS, SIZE = 5, 5, 4, 28
LOOP, AUTOGRAD, EXPLICIT = (
    "one task after another",
    "batched, by autograd",
    "batched, derivatives written out",
)


def images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = (torch.arange(count) % WAYS).expand(TASKS, -1)
    return torch.randn(TASKS, count, 1, SIZE, SIZE), labels


def gradient(learner: MetaLearner, episodes: Episodes) -> torch.Tensor:
    grads = torch.autograd.grad(learner.meta_loss(episodes), list(learner.parameters()))
    return torch.cat([g.flatten() for g in grads])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    model = conv4(WAYS, size=SIZE, channels=1, width=32)
    rule = Pamela(model, 5, rate=0.1)
    episodes = Episodes(*images(WAYS), *images(WAYS * QUERIES))
    learners = {
        LOOP: MetaLearner(model, rule, F.cross_entropy, execution="loop"),
        AUTOGRAD: MetaLearner(model, rule, F.cross_entropy),
        EXPLICIT: MetaLearner(model, rule, F.cross_entropy),
    }
    learners[AUTOGRAD].execution.program = None
    expected = gradient(learners[LOOP], episodes)
    errors = {}
    for name, learner in learners.items():
        errors[name] = float((gradient(learner, episodes) - expected).norm() / expected.norm())
    assert max(errors.values()) < 1e-4, f"the meta-gradients differ: {errors}"

    times: dict[str, list[float]] = {name: [] for name in learners}
    for _ in range(options.repeats):
        for name, learner in learners.items():
            start = time.perf_counter()
            learner.meta_loss(episodes).backward()
            times[name].append(1e3 * (time.perf_counter() - start))
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, value in medians.items():
        print(f"{name:34s} {value:8.1f} ms (least {min(times[name]):.1f})   {medians[LOOP] / value:5.2f} ×")
    if options.json:
        result = {
            "milliseconds": medians,
            "least_milliseconds": {name: min(values) for name, values in times.items()},
            "ratio_to_the_loop": medians[LOOP] / medians[EXPLICIT],
            "gradient_difference": errors,
            "threads": options.threads,
            "environment": environment(),
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
